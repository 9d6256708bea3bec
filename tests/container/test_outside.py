"""A container to which something happens from outside while a command runs in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.to_thread
import pytest

from ringfence.backend import Sandbox
from ringfence.backends import _docker_fate
from ringfence.errors import SandboxLostError
from ringfence.models import Command

from ..machine import held, nothing_left, processes_with, until, until_gone
from .conftest import containers
from .seen import Seen

pytestmark = pytest.mark.container

MARK = "86397.25"
SLEEP = Command(("sleep", MARK), timeout=100)


async def running(count: int = 1) -> None:
    with anyio.fail_after(60):
        while len(processes_with(MARK)) < count:
            await anyio.sleep(0.02)


async def lost(sandbox: Sandbox, act: Callable[[], object]) -> SandboxLostError:
    """Return how a running command ends to whose container something happens."""
    caught: list[SandboxLostError] = []

    async def run() -> None:
        with pytest.raises(SandboxLostError) as found:
            await sandbox.exec(SLEEP)
        caught.append(found.value)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await running()
            await anyio.to_thread.run_sync(act)
    assert not until_gone(processes_with(MARK))
    return caught[0]


@pytest.mark.parametrize("how", ["killed", "removed", "paused"])
def test_what_happens_to_a_container_is_told(seen: Seen, how: str) -> None:
    """Who waits is told how it was lost, the next call too, and others live on."""

    async def main() -> None:
        before = held()
        async with containers(seen.socket) as backend:
            other, sandbox = await backend.create(), await backend.create()

            def act() -> None:
                if how == "removed":
                    seen.remove(sandbox.id)
                else:
                    seen.do(sandbox.id, "kill" if how == "killed" else "pause")

            error = await lost(sandbox, act)
            # Removing kills first, and that may be all that is known by then.
            assert error.cause in ({"killed", "removed"} if how == "removed" else {how})
            assert sandbox.id in error.message
            with pytest.raises(SandboxLostError):
                await sandbox.write_file("x", b"x")
            await sandbox.aclose()
            await until(lambda: seen.inspect(sandbox.id) is None)
            assert (await other.exec("echo", ["well"])).stdout == b"well\n"
            await other.aclose()
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)


def test_a_short_pause_does_no_harm(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_docker_fate, "_PAUSE_SECONDS", 60.0)  # what is short on a busy machine

    async def main() -> None:
        async with containers(seen.socket) as backend, await backend.create() as sandbox:

            async def pause() -> None:
                await anyio.to_thread.run_sync(seen.do, sandbox.id, "pause")
                await anyio.sleep(0.2)
                await anyio.to_thread.run_sync(seen.do, sandbox.id, "unpause")

            async with anyio.create_task_group() as group:
                group.start_soon(pause)
                result = await sandbox.exec("sh", ["-c", "sleep 1; echo whole"])
            assert result.stdout == b"whole\n"

    anyio.run(main)


def test_an_idle_sandbox_that_is_killed_says_so_when_it_is_used(seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket) as backend, await backend.create() as sandbox:
            await sandbox.exec("true")
            await anyio.to_thread.run_sync(seen.do, sandbox.id, "kill")
            with anyio.fail_after(60):
                while seen.inspect(sandbox.id) is not None:
                    await anyio.sleep(0.05)
            with pytest.raises(SandboxLostError):
                await sandbox.exec("true")
            with pytest.raises(SandboxLostError):
                await sandbox.ping()

    anyio.run(main)


def test_closing_the_backend_ends_its_sandboxes(seen: Seen) -> None:
    """They can't do without it; what is in use then is lost, and nothing is left."""

    async def main() -> None:
        before = held()
        async with containers(seen.socket) as backend:
            idle, busy = await backend.create(), await backend.create()
            process = await busy.start(SLEEP)
            await running()
        with pytest.raises(SandboxLostError):
            await process.wait()
        with pytest.raises(SandboxLostError):
            await idle.exec("true")
        await idle.aclose()
        await busy.aclose()
        seen.nothing_left(seconds=0.1)
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)
