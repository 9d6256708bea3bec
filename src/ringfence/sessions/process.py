"""A command of a session: its backend's, with an eye on what becomes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from ..errors import SandboxClosedError, SandboxError, SandboxLostError
from ..models import Chunk, Exit
from ..process import HOST_SLACK, DeadlineError, Launch, Process

__all__ = ("SessionProcess", "host_deadline")


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
