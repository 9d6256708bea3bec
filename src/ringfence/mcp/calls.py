"""One call of a tool: what it has, and how a command runs in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from ..contexts import Output, StreamOutput
from ..models import Command, Result
from ..sessions import Session
from .contexts import ClientContexts
from .new_images import NewImages
from .options import McpOptions

__all__ = ("Call", "Progress")

Report = Callable[[float, float | None, str], Awaitable[None]]

_FIRST_REPORT = 0.5
_NEXT_REPORT = 1.0


class Progress:
    """Tells a client every second how a command is doing.

    What is told as progress is the time, which a quiet command has too; how much was written is in
    the message. A client that does not read is waited for by nobody.

    Args:
        report: Sends one message: seconds so far, seconds at most, and a text.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lines = 0
        self._bytes = 0

    async def run(self, session: Session, command: Command, timeout: float | None) -> Result:
        """Run a command to its end."""
        await session.ensure()
        async with (
            self.told(command.timeout or timeout or session.limits.timeout),
            session.stream(command, timeout=timeout) as run,
        ):
            async for chunk in run:
                self._lines += chunk.data.count(b"\n")
                self._bytes += len(chunk.data)
            return run.result

    def heard(self, output: Output) -> None:
        """Count what code in a context has given: of streams the text, of all else that it came."""
        if isinstance(output, StreamOutput):
            self._lines += output.text.count("\n")
            self._bytes += len(output.text.encode("utf-8", "replace"))

    @asynccontextmanager
    async def told(self, at_most: float | None) -> AsyncIterator[None]:
        """Tell the client while the block lasts.

        Args:
            at_most: Seconds that it may take, or None if that is not known.
        """
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell, at_most)
                yield
                tasks.cancel_scope.cancel()
        except ExceptionGroup as group:  # of one, as a task group makes it
            raise _only(group) from None

    async def _tell(self, at_most: float | None) -> None:
        began = anyio.current_time()
        pause = _FIRST_REPORT
        while True:
            await anyio.sleep(pause)
            pause = _NEXT_REPORT
            seconds = anyio.current_time() - began
            text = f"{seconds:.1f} s, {self._lines} lines, {self._bytes} bytes of output"
            await self._report(round(seconds, 3), at_most, text)


@dataclass(frozen=True)
class Call:
    """What a tool's handler works with.

    Attributes:
        session: The client's session.
        options: The server's.
        contexts: The client's code contexts.
        new_images: The images of its workspace that it has not had yet.
        report: Sends progress to the client, or None if it did not ask for any.
    """

    session: Session
    options: McpOptions
    contexts: ClientContexts
    new_images: NewImages
    report: Report | None = None

    async def run(self, command: Command, timeout: float | None) -> Result:
        """Run a command in the session, and tell the client how it is doing.

        Raises:
            CommandError: It can't be run anywhere.
            SandboxError: The sandbox could not run it.
        """
        if self.report is None:
            return await self.session.exec(command, timeout=timeout)
        return await Progress(self.report).run(self.session, command, timeout)

    @asynccontextmanager
    async def progress(self, at_most: float | None) -> AsyncIterator[Progress | None]:
        """Tell the client how something is doing while a block runs, if it asked for that."""
        if self.report is None:
            yield None
            return
        progress = Progress(self.report)
        async with progress.told(at_most):
            yield progress


def _only(group: ExceptionGroup) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
