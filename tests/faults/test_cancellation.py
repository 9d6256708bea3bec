"""An operation that is cancelled at any of its awaits leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from functools import partial
from typing import Any

import anyio
import pytest

from ringfence.backend import Backend, Sandbox
from ringfence.models import Command

from ..machine import SOON, Held, new_mark, nothing_left, processes_with, steady, until_gone
from .conftest import Factory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MARK = new_mark()
MOST_AWAITS = 300

Cancel = Callable[[], object]
Operation = Callable[[Backend, Sandbox], Awaitable[object]]


class Interrupted:
    """Awaits something, and cancels at the moment when it waits for the `count`th time."""

    def __init__(self, work: Awaitable[object], count: int, cancel: Cancel) -> None:
        self._work = work
        self._left = count
        self._cancel = cancel
        self.reached = False

    def __await__(self) -> Generator[Any, Any, object]:
        steps = self._work.__await__()
        send: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                waited_for = send()
            except StopIteration as end:
                return end.value
            self._left -= 1
            if not self._left:
                self.reached = True
                self._cancel()
            try:
                value = yield waited_for
                send = partial(steps.send, value)
            except BaseException as error:  # noqa: BLE001  # it is passed on
                send = partial(steps.throw, error)


async def by_scope(work: Awaitable[object], count: int) -> bool:
    """Cancel as anyio does, at every await from then on; return whether it came to that."""
    with anyio.CancelScope() as scope:
        interrupted = Interrupted(work, count, scope.cancel)
        await interrupted
    return interrupted.reached


async def by_task(work: Awaitable[object], count: int) -> bool:
    """Cancel as asyncio does, once."""

    async def body() -> None:
        await interrupted

    task = asyncio.ensure_future(body())
    interrupted = Interrupted(work, count, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        assert interrupted.reached
    return interrupted.reached


def shell(script: str, **options: Any) -> Command:
    """Return a command that leaves nothing behind, cancelled or not."""
    return Command(("sh", "-c", script), leftovers="kill", **options)


# What is cancelled. Those that make something put it away if they are not cancelled.


async def create(backend: Backend, _: Sandbox) -> None:
    async with await backend.create() as sandbox:
        await sandbox.exec("true")


async def execute(backend: Backend, _: Sandbox) -> None:
    await backend.execute(shell(f"sleep {MARK} & sleep 0.02"))


async def run(_: Backend, sandbox: Sandbox) -> None:
    await sandbox.exec(shell(f"(setsid sleep {MARK} &) ; echo a; sleep 0.02; echo b"))


async def run_into_timeout(_: Backend, sandbox: Sandbox) -> None:
    await sandbox.exec("sleep", [MARK], timeout=0.02)


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(3):
        yield b"x" * 50_000
        await anyio.sleep(0.001)


async def feed(_: Backend, sandbox: Sandbox) -> None:
    await sandbox.exec(shell(f"sleep {MARK} & sleep 0.01; wc -c", stdin=pieces()))


async def stream(_: Backend, sandbox: Sandbox) -> None:
    script = f"sleep {MARK} & for i in 1 2 3; do echo $i; sleep 0.005; done"
    async with sandbox.stream(shell(script)) as chunks:
        async for _chunk in chunks:
            await anyio.sleep(0)


async def files(_: Backend, sandbox: Sandbox) -> None:
    await sandbox.write_file("d/large", b"x" * 500_000)
    assert len(await sandbox.read_file("d/large")) == 500_000
    await sandbox.list_files("d")
    await sandbox.move("d/large", "d/moved")
    await sandbox.stat("d/moved")
    await sandbox.remove("d")


async def open_backend(backend: Backend, _: Sandbox) -> None:
    async with type(backend)(backend._config):  # type: ignore[attr-defined,call-arg]
        pass


IN_SANDBOX = {
    "exec": run,
    "exec into its timeout": run_into_timeout,
    "exec with stdin": feed,
    "stream": stream,
    "files": files,
}
ON_BACKEND = {"create": create, "execute": execute, "open": open_backend}
WAYS = {"scope": by_scope, "task": by_task, "trio": by_scope}


def run_on_loop(main: Callable[[], Awaitable[None]], way: str) -> None:
    anyio.run(main, backend="trio" if way == "trio" else "asyncio")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", IN_SANDBOX)
def test_in_a_sandbox_that_lives_on(factory: Factory, name: str, way: str) -> None:
    """The command's tree is gone, the sandbox is as good as before, and nothing piles up."""

    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            await IN_SANDBOX[name](backend, sandbox)
            before = await steady()
            for count in range(1, MOST_AWAITS):
                reached = await WAYS[way](IN_SANDBOX[name](backend, sandbox), count)
                assert not processes_with(MARK), f"alive after await {count}"
                await still_good(sandbox, count)
                await nothing_left(before)
                if not reached:
                    assert count > 2
                    return
            raise AssertionError(f"more than {MOST_AWAITS} awaits")

    run_on_loop(main, way)


async def still_good(sandbox: Sandbox, count: int) -> None:
    result = await sandbox.exec("sh", ["-c", "echo good; exit 5"], timeout=SOON)
    assert (result.stdout, result.exit_code) == (b"good\n", 5), f"after await {count}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ON_BACKEND)
def test_of_a_backend(factory: Factory, name: str, way: str) -> None:
    """What was being made is gone, and another can be made."""

    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            await ON_BACKEND[name](backend, sandbox)
            before = await settled(backend)
            for count in range(1, MOST_AWAITS):
                reached = await WAYS[way](ON_BACKEND[name](backend, sandbox), count)
                assert (await backend.execute("true", timeout=SOON)).exit_code == 0
                assert not until_gone(processes_with(MARK)), f"alive after await {count}"
                await nothing_left(before)
                if not reached:
                    assert count > 2
                    return
            raise AssertionError(f"more than {MOST_AWAITS} awaits")

    run_on_loop(main, way)


async def settled(backend: Backend) -> Held:
    """Let a spare be there again, and all that goes on in the background be done."""
    assert (await backend.execute("true", timeout=SOON)).exit_code == 0
    return await steady()


@pytest.mark.parametrize("way", WAYS)
def test_of_closing(factory: Factory, way: str) -> None:
    """What is closed is closed, even if whoever closes it is cancelled."""

    async def main() -> None:
        async with factory() as backend:
            before = await settled(backend)
            for count in range(1, MOST_AWAITS):
                sandbox = await backend.create()
                await sandbox.start(shell(f"(setsid sleep {MARK} &) ; sleep {MARK}"))
                reached = await WAYS[way](sandbox.aclose(), count)
                assert not until_gone(processes_with(MARK), SOON if way == "task" else 0)
                await sandbox.aclose()
                await nothing_left(before)
                if not reached:
                    return
            raise AssertionError(f"more than {MOST_AWAITS} awaits")

    run_on_loop(main, way)
