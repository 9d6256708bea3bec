"""A sandbox whose warden is gone, stopped or mute is a typed error soon, and the next one works."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.errors import CreateError, SandboxClosedError, SandboxLostError
from ringfence.models import Command
from ringfence.warden.sandbox import WardenSandbox

from ..machine import (
    SOON,
    children_of,
    new_mark,
    nothing_left,
    processes_with,
    steady,
    until,
    until_gone,
)
from .conftest import BACKENDS, Factory

pytestmark = pytest.mark.timeout(240)

MARK = new_mark()


def warden_of(sandbox: Sandbox) -> int:
    """Return the pid of a sandbox's warden on the host."""
    assert isinstance(sandbox, WardenSandbox)
    boot = sandbox.host.close.__self__  # type: ignore[attr-defined]
    outer: int = boot.pid
    return outer if sandbox.backend == "process" else children_of(outer)[0]


async def write_on(sandbox: Sandbox) -> None:
    while True:
        await sandbox.write_file("x", b"x" * 10_000_000)


USES: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
    "exec": lambda box: box.exec("sleep", [MARK], timeout=200),
    "write": write_on,
    "stream": lambda box: box.exec("sh", ["-c", "yes"], timeout=200),
}


@pytest.mark.parametrize("use", USES)
def test_a_warden_that_is_killed(factory: Factory, use: str) -> None:
    async def main() -> None:
        async with factory() as backend:
            await backend.execute("true")
            before = await steady()
            async with await backend.create() as sandbox:
                with anyio.fail_after(SOON), pytest.raises(SandboxLostError) as caught:
                    await while_killing(warden_of(sandbox), USES[use](sandbox))
                assert caught.value.cause in ("died", "out of memory")
                with pytest.raises(SandboxLostError):
                    await sandbox.exec("true")
                with pytest.raises(SandboxLostError):
                    await sandbox.read_file("x")
            with pytest.raises(SandboxClosedError):
                await sandbox.exec("true")
            assert not until_gone(processes_with(MARK))
            assert (await backend.execute("true")).exit_code == 0
            await nothing_left(before)

    anyio.run(main)


async def while_killing(pid: int, work: Awaitable[object]) -> None:
    """Kill a process while some work goes on, and raise what that raises."""
    timer = threading.Timer(0.1, os.kill, (pid, signal.SIGKILL))
    timer.start()
    try:
        await work
    finally:
        timer.join()


def test_a_program_that_kills_its_warden() -> None:
    """It can, without a PID namespace; the sandbox is lost and no result is made up.

    What it has started itself would live on, as the backend's notes say.
    """
    script = 'read -r _ _ _ parent _ </proc/$PPID/stat; kill -9 "$parent"; exec sleep 300'

    async def main() -> None:
        async with BACKENDS["process"]() as backend:
            async with await backend.create() as sandbox:
                with anyio.fail_after(SOON), pytest.raises(SandboxLostError):
                    await sandbox.exec("sh", ["-c", script], timeout=200)
            assert (await backend.execute("true")).exit_code == 0

    anyio.run(main)


def test_a_warden_that_is_stopped(factory: Factory) -> None:
    """It holds no deadline any more; the host's own does."""

    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            os.kill(warden_of(sandbox), signal.SIGSTOP)
            with anyio.fail_after(60):
                result = await sandbox.exec("sleep", [MARK], timeout=0.2)
            assert result.timed_out
            with pytest.raises(SandboxLostError):
                await sandbox.exec("true")
        assert not until_gone(processes_with(MARK))

    anyio.run(main)


def test_a_sandbox_that_reaches_its_age(factory: Factory) -> None:
    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            assert isinstance(sandbox, WardenSandbox)
            await sandbox.start(Command(("sh", "-c", f"(setsid sleep {MARK} &) ; sleep {MARK}")))
            await until(lambda: len(processes_with(MARK)) >= 2, what="its commands are there")
            sandbox.set_lifetime(0.5)
            await sandbox.start(Command(("sleep", MARK)))  # from which on it counts
            await until(lambda: not processes_with(MARK), what="its commands are gone")
            with pytest.raises(SandboxLostError, match="age"):
                await sandbox.exec("true")

    anyio.run(main)


def test_no_descriptors_left(factory: Factory) -> None:
    """Then no sandbox can be made, and that is all that happens."""

    async def main() -> None:
        async with factory() as backend:
            before = await steady()
            taken = []
            try:
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                for _ in range(3):
                    os.close(taken.pop())
            try:
                for _ in range(3):
                    with pytest.raises(CreateError):
                        await backend.create()
            finally:
                for descriptor in taken:
                    os.close(descriptor)
            assert (await backend.execute("true")).exit_code == 0
            await nothing_left(before)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        anyio.run(main)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
