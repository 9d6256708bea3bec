"""Containers with gVisor's kernel: the contract as far as it goes there, and what differs."""

from __future__ import annotations

import contextlib
import os

import anyio
import anyio.to_thread
import pytest

from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.errors import LimitError, SandboxLostError
from ringfence.models import Enforcement, Isolation, Limits, SandboxSpec
from ringfence.testing import Check, Conformance

from .conftest import PYTHON, containers
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

MIB = 1 << 20
GVISOR = Conformance(
    "container",
    lambda: ContainerBackend(ContainerConfig(image=PYTHON, runtime="runsc")),
    python="/usr/bin/python3",
    patience=4,
)
WHOLE = os.environ.get("RINGFENCE_TEST_GVISOR") == "whole"
TOPICS = ("leftovers", "paths", "security")
"""What a kernel of another make may well do otherwise. The rest takes a quarter of an hour."""

SUITE = [
    param
    for param in GVISOR.params(hostile_mark="hostile")
    if WHOLE or (isinstance(param.values[0], Check) and param.values[0].topic in TOPICS)
]


@pytest.mark.parametrize("check", SUITE)
def test_gvisor(check: Check) -> None:
    GVISOR.verify(check)


def test_what_it_can_t_do_is_said(seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket, runtime="runsc") as backend:
            able = backend.capabilities
            assert able.isolation is Isolation.GVISOR
            assert able.limits.workspace_bytes is Enforcement.ENFORCED
            assert able.limits.workspace_files is Enforcement.NONE
            assert any("out of memory" in note for note in able.notes)
            with pytest.raises(LimitError) as caught:
                await backend.create(SandboxSpec(limits=Limits(workspace_files=10)))
            assert caught.value.limit == "workspace_files"

    anyio.run(main)


def test_programs_have_another_kernel(seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket, runtime="runsc") as backend:
            result = await backend.execute("uname", ["-r"])
            assert result.stdout.decode().strip() not in ("", os.uname().release)

    anyio.run(main)


def test_running_out_of_memory_ends_the_sandbox_and_no_other(seen: Seen) -> None:
    small = SandboxSpec(limits=Limits(memory_bytes=96 * MIB, workspace_bytes=8 * MIB))

    async def main() -> None:
        async with containers(seen.socket, runtime="runsc") as backend:
            other, box = await backend.create(small), await backend.create(small)
            result = await box.exec("sh", ["-c", "head -c 300m /dev/zero | tail -c 300m | wc -c"])
            assert result.out_of_memory
            assert result.exit_code == 137
            with pytest.raises(SandboxLostError) as caught:
                await box.exec("true")
            assert caught.value.cause == "out of memory"
            await box.aclose()
            assert (await other.exec("echo", ["well"])).stdout == b"well\n"
            await other.aclose()

    anyio.run(main)


def test_the_size_of_its_file_systems_is_held(seen: Seen) -> None:
    limits = Limits(workspace_bytes=8 * MIB, tmp_bytes=4 * MIB)
    fill = "dd if=/dev/zero of=$d/f bs=1M count=32; wc -c <$d/f"
    script = f"for d in /workspace /tmp /dev/shm; do {fill}; done"

    async def main() -> None:
        async with (
            containers(seen.socket, runtime="runsc") as backend,
            await backend.create(SandboxSpec(limits=limits)) as box,
        ):
            result = await box.exec("sh", ["-c", script])
            assert result.stdout.split() == [b"%d" % (n * MIB) for n in (8, 4, 4)]
            assert result.stderr.count(b"No space left") == 3

    anyio.run(main)


def test_as_many_processes_run_as_were_asked_for(seen: Seen) -> None:
    """Its kernel's own threads are counted by the host, and take nothing from the programs."""
    script = "i=0; while [ $i -lt 25 ]; do sleep 20 & i=$((i+1)); done; echo all"

    async def main() -> None:
        async with (
            containers(seen.socket, runtime="runsc") as backend,
            await backend.create(SandboxSpec(limits=Limits(pids=30))) as box,
        ):
            result = await box.exec("sh", ["-c", script])
            assert (result.stdout, result.stderr) == (b"all\n", b"")

    anyio.run(main)


@pytest.mark.hostile
def test_a_fork_bomb_costs_its_sandbox_and_nothing_else(seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket, runtime="runsc") as backend:
            box = await backend.create(SandboxSpec(limits=Limits(pids=30)))
            with contextlib.suppress(SandboxLostError), anyio.fail_after(60):
                await box.exec("sh", ["-c", "b() { b | b & }; b; sleep 60"], timeout=10)
            await box.aclose()
            assert (await backend.execute("echo", ["well"])).stdout == b"well\n"

    anyio.run(main)


def test_a_paused_one_is_removed_all_the_same(seen: Seen) -> None:
    """It can't be killed while it is paused, and the engine tries for ten seconds."""

    async def main() -> None:
        async with containers(seen.socket, runtime="runsc") as backend:
            box = await backend.create()
            await anyio.to_thread.run_sync(seen.do, box.id, "pause")
            with pytest.raises(SandboxLostError) as caught:
                await box.exec("sleep", ["60"])
            assert caught.value.cause == "paused"
            with anyio.fail_after(60):
                await box.aclose()
                await seen.until_nothing_left()

    anyio.run(main)


def test_a_sandbox_that_is_killed_is_lost(seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket, runtime="runsc") as backend:
            box = await backend.create()
            await anyio.to_thread.run_sync(seen.do, box.id, "kill")
            with pytest.raises(SandboxLostError) as caught:
                await box.exec("sleep", ["60"])
            assert caught.value.cause == "killed"
            await box.aclose()

    anyio.run(main)
