"""An engine that is restarted with sandboxes alive, and one that is killed in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from ringfence.backend import Backend, Sandbox
from ringfence.errors import (
    BackendUnreachableError,
    SandboxError,
    SandboxLostError,
    StreamBrokenError,
)
from ringfence.models import Command

from ..machine import held, nothing_left, processes_with, until_gone
from .between import Between
from .conftest import containers
from .own_engine import OwnEngine
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(180)]

MARK = "86397.5"
SLEEP = Command(("sleep", MARK), timeout=100)


def test_an_engine_that_is_restarted_with_sandboxes_alive(own_engine: OwnEngine) -> None:
    """Each of them is lost and says so, the backend goes on, and nothing of them is left."""

    async def main() -> None:
        before = held()
        async with containers(own_engine.socket) as backend:
            boxes = [await backend.create() for _ in range(3)]
            async with anyio.create_task_group() as group:
                ends: list[SandboxError] = []

                async def run(number: int) -> None:
                    with pytest.raises(SandboxLostError) as caught:
                        await boxes[number].exec(SLEEP)
                    ends.append(caught.value)

                for number in range(3):
                    group.start_soon(run, number)
                await running(3)
                await anyio.to_thread.run_sync(own_engine.stop)
            assert len(ends) == 3
            assert {type(error) for error in ends} == {SandboxLostError}
            with pytest.raises(BackendUnreachableError):
                await backend.create()
            for box in boxes:
                with pytest.raises(SandboxLostError):
                    await box.exec("true")
            await anyio.to_thread.run_sync(own_engine.start)
            assert (await backend.execute("echo", ["again"])).stdout == b"again\n"
            for box in boxes:
                await box.aclose()
            await watched_again(backend, Seen(own_engine.socket))
        assert not until_gone(processes_with(MARK))
        Seen(own_engine.socket).nothing_left()
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)


async def _start_again(engine: OwnEngine) -> None:
    await anyio.to_thread.run_sync(engine.start)


async def running(count: int) -> None:
    with anyio.fail_after(60):
        while len(processes_with(MARK)) < count:
            await anyio.sleep(0.05)


async def watched_again(backend: Backend, seen: Seen) -> None:
    """What happens to containers is heard of again from the engine that came back."""
    sandbox = await backend.create()
    seen.do(sandbox.id, "kill")
    with pytest.raises(SandboxLostError) as caught:
        await sandbox.exec(SLEEP)
    assert caught.value.cause == "killed"


@pytest.mark.parametrize("moment", ["create", "attach", "start"])
def test_an_engine_that_is_killed_in_the_middle_of_making_one(
    own_engine: OwnEngine, moment: str
) -> None:
    """A typed error at once; and whatever it had made is gone when it is there again."""

    async def main() -> None:
        before = held()
        between = Between(own_engine.socket, str(own_engine.place / "between"))

        def kill(request: str) -> None:
            if request == moment:
                own_engine.kill()

        async with between.serve():
            async with containers(between.path, transport="attach") as backend:
                other = await backend.create()
                between.on_request = kill
                with pytest.raises(BackendUnreachableError):
                    await backend.create()
                between.on_request = lambda _: None
                with pytest.raises(SandboxLostError) as caught:
                    await other.exec(SLEEP)
                assert "engine" in caught.value.cause
            await anyio.to_thread.run_sync(own_engine.start)
            async with containers(between.path) as backend:
                assert (await backend.execute("echo", ["again"])).stdout == b"again\n"
        Seen(own_engine.socket).nothing_left()
        assert not until_gone(processes_with(MARK))
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)


def test_an_engine_that_is_killed_while_a_socket_goes_past_it(own_engine: OwnEngine) -> None:
    """The sandbox can be used until the engine is back, which ends it; that is told."""

    async def main() -> None:
        before = held()
        async with containers(own_engine.socket) as backend:
            box = await backend.create()
            await anyio.to_thread.run_sync(own_engine.kill)
            assert (await box.exec("echo", ["still here"])).stdout == b"still here\n"
            with pytest.raises(BackendUnreachableError):
                await backend.create()
            async with anyio.create_task_group() as group:
                group.start_soon(_start_again, own_engine)
                with pytest.raises(SandboxLostError):
                    await box.exec(SLEEP)
            assert (await backend.execute("echo", ["again"])).stdout == b"again\n"
        Seen(own_engine.socket).nothing_left()
        assert not until_gone(processes_with(MARK))
        await nothing_left(before)

    anyio.run(main)


def test_an_engine_that_leaves_its_containers_running(own_engine: OwnEngine) -> None:
    """With `live-restore`: what ran is killed and told, and the sandbox is taken up again."""

    async def main() -> None:
        before = held()
        async with (
            containers(own_engine.socket, transport="attach") as backend,
            await backend.create() as box,
        ):
            await box.write_file("kept", "x")
            async with anyio.create_task_group() as group:
                group.start_soon(_is_broken, box)
                await running(1)
                await anyio.to_thread.run_sync(own_engine.stop)
            with pytest.raises(BackendUnreachableError):
                await backend.create()
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, _start_with_live_restore, own_engine)
                with anyio.fail_after(60):
                    assert await box.read_file("kept") == b"x"  # which waits for the engine
            assert (await box.exec("echo", ["again"])).stdout == b"again\n"
            assert not until_gone(processes_with(MARK))
            assert (await backend.execute("echo", ["new"])).stdout == b"new\n"
        await nothing_left(before)

    with _live_restore(own_engine):
        anyio.run(main)
        Seen(own_engine.socket).nothing_left()


def test_what_goes_past_such_an_engine_does_not_notice(own_engine: OwnEngine) -> None:
    """With a socket to the warden a command runs on, whatever becomes of the engine meanwhile."""

    async def main() -> None:
        before = held()
        async with containers(own_engine.socket) as backend, await backend.create() as box:
            waits = Command(("sh", "-c", "read line; echo $line"), timeout=100)
            process = await box.start(waits, stdin_open=True)
            await anyio.to_thread.run_sync(own_engine.stop)
            assert (await box.exec("echo", ["still here"])).stdout == b"still here\n"
            await anyio.to_thread.run_sync(_start_with_live_restore, own_engine)
            await process.write_stdin(b"through\n")
            await process.close_stdin()
            chunk = await process.receive()
            assert chunk is not None
            assert chunk.data == b"through\n"
            assert (await process.wait()).code == 0
            assert (await backend.execute("echo", ["new"])).stdout == b"new\n"
        await nothing_left(before)

    with _live_restore(own_engine):
        anyio.run(main)
        Seen(own_engine.socket).nothing_left()


@contextmanager
def _live_restore(engine: OwnEngine) -> Iterator[None]:
    """Have an engine leave its containers running, and make it as it was."""
    engine.stop()
    _start_with_live_restore(engine)
    try:
        yield
    finally:
        engine.stop()
        engine.start()


def _start_with_live_restore(engine: OwnEngine) -> None:
    engine.start(settings={"live-restore": True})


async def _is_broken(box: Sandbox) -> None:
    with pytest.raises(StreamBrokenError):
        await box.exec(SLEEP)
