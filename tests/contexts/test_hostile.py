"""What a kernel can do to the host: nothing, whatever it sends and however much."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.contexts import CodeContexts
from ringfence.errors import ContextError, ContextLostError, SandboxLostError
from ringfence.models import Limits, shell

from ..machine import forget_peak, status_bytes
from .conftest import Room

pytestmark = [pytest.mark.anyio, pytest.mark.hostile, pytest.mark.timeout(120)]

MIB = 1 << 20
MOST_GROWTH = 64 * MIB
"""Of the host's memory, whatever is sent: the bounds of one run, and a copy of it on the way."""


@pytest.fixture(scope="module")
async def roomy(room: Room) -> AsyncIterator[Sandbox]:
    """A sandbox with enough memory for a kernel to do its worst."""
    async with await room.sandbox(Limits(memory_bytes=2048 * MIB)) as made:
        yield made


FLOODS = {
    "one line": "print('x' * 100_000_000)",
    "many lines": "for _ in range(100): print('x' * 1_000_000, flush=True)",
    "a child": "import subprocess\nsubprocess.run('head -c 100000000 /dev/zero', shell=True)",
    "a figure": "from IPython.display import Image\nImage(data=bytes(100_000_000), format='png')",
    "a page": "from IPython.display import HTML\nHTML('x' * 100_000_000)",
    "an error": "raise ValueError('x' * 30_000_000)",
}


JAIL = pytest.param("bubblewrap")
CONTAINER = pytest.param("container", marks=pytest.mark.container)
in_a_jail = pytest.mark.parametrize("room", [JAIL], indirect=True)
in_both = pytest.mark.parametrize("room", [JAIL, CONTAINER], indirect=True)


@in_a_jail
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_hundred_megabytes_cost_the_host_no_more_than_its_bound(
    room: Room, roomy: Sandbox, kind: str
) -> None:
    async with room.contexts(roomy) as contexts:
        await contexts.run_code("1")
        forget_peak()
        before = status_bytes("VmRSS")
        result = await contexts.run_code(FLOODS[kind], timeout=90)
        assert status_bytes("VmHWM") - before < MOST_GROWTH
        cut = result.cut_bytes + sum(
            sum(one.cut.values()) for one in result.outputs if hasattr(one, "cut")
        )
        assert cut > 20_000_000
        assert (await contexts.run_code("'alive'")).ok


# In the place of a relay: what a program says that has taken it over.
READY = '{"is": "ready", "python": "3", "ipykernel": "7"}'
FORGERIES = {
    "no json": "echo nonsense; sleep 99",
    "an endless line": "cat /dev/zero",
    "a message too large": f"""echo '{READY}'
read line; echo '{{"is": "msg", "id": "1", "parts": [["stdout", 999999999]]}}'; cat /dev/zero""",
    "messages without end": f"""echo '{READY}'
read line; yes '{{"is": "msg", "id": "1", "type": "stream", "parts": [["stdout", 0]]}}'""",
    "ready without end": f"yes '{READY}'",
    "another's answer": f"""echo '{READY}'
read line; echo '{{"is": "done", "id": "7", "count": 1, "cut": 0}}'; sleep 99""",
    "an answer before it is asked": """echo '{"is": "done", "id": "1"}'; sleep 99""",
    "an unknown type": f"""echo '{READY}'
read line; echo '{{"is": "msg", "id": "1", "type": "comm_open", "cut": {{}}}}'; sleep 99""",
    "an answer that is none": f"""echo '{READY}'
read line; echo '{{"is": "done", "id": "1", "count": "many"}}'; sleep 99""",
    "an end": f"echo '{READY}'; read line; exit 0",
    "an end at once": "exit 7",
}


@in_a_jail
@pytest.mark.parametrize("kind", FORGERIES)
async def test_who_takes_a_relay_over_gets_the_context_ended_and_no_more(
    room: Room, roomy: Sandbox, kind: str
) -> None:
    await roomy.write_file("python", f"#!/bin/sh\n{FORGERIES[kind]}\n", mode=0o755)
    async with CodeContexts(roomy, python=f"{roomy.workspace}/python") as contexts:
        forget_peak()
        before = status_bytes("VmRSS")
        with anyio.fail_after(30), pytest.raises(ContextError) as caught:
            await contexts.run_code("1", timeout=5)
        assert status_bytes("VmHWM") - before < MOST_GROWTH
        assert str(Path(__file__).parents[2]) not in str(caught.value)
    assert (await roomy.exec(shell("echo alive"))).stdout == b"alive\n"


@in_a_jail
async def test_a_silent_relay_is_given_up(room: Room, roomy: Sandbox) -> None:
    await roomy.write_file("python", f"#!/bin/sh\necho '{READY}'\nsleep 99\n", mode=0o755)
    async with CodeContexts(roomy, python=f"{roomy.workspace}/python") as contexts:
        with anyio.fail_after(30):
            result = await contexts.run_code("1", timeout=0.2)
        assert result.kernel_lost


@in_both  # the process backend holds each process to the limit, and tells nothing
async def test_memory_that_runs_out_is_told_as_that(room: Room) -> None:
    limits = Limits(memory_bytes=256 * MIB)
    async with await room.sandbox(limits) as sandbox, room.contexts(sandbox) as contexts:
        with pytest.raises(ContextLostError) as caught:
            await contexts.run_code("kept = bytearray(1_000_000_000)")
        assert caught.value.cause == "out of memory"


@in_both
async def test_a_figure_too_large_for_the_sandbox_itself_leaves_it_alive(room: Room) -> None:
    limits = Limits(memory_bytes=256 * MIB)
    async with await room.sandbox(limits) as sandbox, room.contexts(sandbox) as contexts:
        context = await contexts.create_context()
        with pytest.raises(ContextLostError) as caught:
            await contexts.run_code(FLOODS["a figure"], context=context)
        assert caught.value.cause == "out of memory"
        await contexts.restart_context(context)
        assert (await contexts.run_code("1", context=context)).ok


@in_both  # with too few processes there is no kernel, and it is said what it takes
async def test_a_sandbox_too_small_for_a_kernel_says_what_it_takes(room: Room) -> None:
    async with await room.sandbox(Limits(pids=12)) as sandbox, room.contexts(sandbox) as contexts:
        with pytest.raises(ContextError, match="100 MB of memory and 24 processes"):
            await contexts.create_context()


@in_both
async def test_a_sandbox_that_dies_is_told_as_that(room: Room) -> None:
    async with await room.sandbox() as sandbox, room.contexts(sandbox) as contexts:
        context = await contexts.create_context()
        async with contexts.stream_code(
            "print(1, flush=True)\nwhile True: pass", context=context
        ) as run:
            await anext(run)
            await sandbox.aclose()
            with anyio.fail_after(20), pytest.raises((SandboxLostError, ContextLostError)):
                await run.finish()
