"""A command of a session: its backend's, with an eye on what becomes of it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from ..backend import Sandbox
from ..errors import SandboxClosedError, SandboxError, SandboxLostError
from ..events import Events, Operation, Value
from ..models import Chunk, Exit
from ..process import HOST_SLACK, DeadlineError, Launch, Process

__all__ = ("SessionProcess", "begin_told", "exit_facts", "host_deadline", "start_within")


class SessionProcess(Process):
    """Passes everything on, and tells its session of the end of the command or its sandbox.

    Args:
        inner: The backend's process.
        lost: Is told when its sandbox has died, and whether somebody hears of it; raises another
            error if it knows more.
        ended: Is told once when the command has ended, with an error if its end is not known.
        deadline: When the host gives the sandbox up, or None where the sandbox itself does that.
        is_new: Whether it is the first command in its workspace.
    """

    is_heard = True
    """Whether somebody waits for it, who is told when its sandbox has died."""

    def __init__(
        self,
        inner: Process,
        lost: Callable[[SandboxLostError | SandboxClosedError, bool], Awaitable[None]],
        ended: Callable[[SessionProcess, Exit | None, BaseException | None], None],
        deadline: float | None,
        is_new: bool,
    ) -> None:
        self.pid = inner.pid
        self._inner = inner
        self._lost = lost
        self._ended = ended
        self._deadline = deadline
        self._is_new = is_new

    async def receive(self) -> Chunk | None:
        try:
            if self._deadline is None:
                return await self._inner.receive()
            with anyio.CancelScope(deadline=self._deadline):
                return await self._inner.receive()
        except SandboxError as error:
            await self._failed(error)
            raise
        raise DeadlineError

    async def wait(self) -> Exit:
        try:
            end = await self._wait()
        except SandboxError as error:
            await self._failed(error)
            raise
        self._ended(self, end, None)
        return replace(end, workspace_is_new=True) if self._is_new else end

    async def _wait(self) -> Exit:
        if self._deadline is None:
            return await self._inner.wait()
        with anyio.CancelScope(deadline=self._deadline):
            return await self._inner.wait()
        raise DeadlineError

    async def _failed(self, error: SandboxError) -> None:
        self._ended(self, None, error)
        if isinstance(error, (SandboxLostError, SandboxClosedError)):
            await self._lost(error, self.is_heard)

    async def kill(self, signal: int | None = None) -> None:
        await self._inner.kill(signal)

    async def write_stdin(self, data: bytes) -> None:
        await self._inner.write_stdin(data)

    async def close_stdin(self) -> None:
        await self._inner.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        await self._inner.resize(rows, columns)


def host_deadline(launch: Launch, kept_by_sandbox: bool) -> float | None:
    """Return when the host gives up a sandbox that has not ended a command in time."""
    if launch.timeout is None or kept_by_sandbox:
        return None
    return anyio.current_time() + launch.timeout + launch.kill_grace + HOST_SLACK


async def start_within(
    deadline: float | None, box: Sandbox, start: Callable[[], Awaitable[Process]]
) -> Process:
    """Start a command, or destroy a sandbox that has not done that by the deadline.

    Raises:
        SandboxLostError: It was destroyed.
    """
    if deadline is None:
        return await start()
    with anyio.CancelScope(deadline=deadline):
        return await start()
    cause = "it did not start a command before its time was up"
    with anyio.CancelScope(shield=True):
        await box._destroy(cause)
    raise SandboxLostError(f"the sandbox was destroyed: {cause}", cause=cause)


def begin_told(
    events: Events, launch: Launch, about: Callable[[], dict[str, Value]]
) -> Operation | None:
    """Tell of the start of a command, by its program's name alone; None if nobody listens."""
    if not events.are_told:
        return None
    program = os.path.basename(os.fsdecode(launch.command.argv_bytes[0]))
    return events.begin("sandbox.exec", about() | {"program": ascii(program)[1:-1][:64]})


def exit_facts(end: Exit) -> dict[str, Value]:
    """Return what is told of the end of a command."""
    return {
        "exit_code": end.code,
        "exit_reason": end.reason.value,
        "stdout_bytes": end.stdout_bytes,
        "stderr_bytes": end.stderr_bytes,
    }
