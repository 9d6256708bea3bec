"""A run whose output is drained whether or not somebody takes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from io import StringIO
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from ..backend import as_command
from ..execution import Run
from ..models import Chunk, Command, Result, Stream, shell

__all__ = ("MAX_CHUNKS", "StreamedRun", "as_script")

MAX_CHUNKS = 1024
"""How many chunks wait for their reader before what follows is joined to them."""


class StreamedRun:
    """A command whose reader may be slow: it never waits for it.

    Use it with `async with`, and iterate over it for decoded chunks; after the last one there is
    `result`. What the reader has not taken is buffered, at most `output_bytes` of each stream,
    which is all that is ever kept. For a reader that is far behind, chunks come joined, and then
    the order within a stream is exact and the one between the two only roughly so. Leaving the
    block before the end kills the command's tree.
    """

    def __init__(self, run: Run, prepare: Callable[[], Awaitable[None]]) -> None:
        self._run = run
        self._prepare = prepare
        self._waiting: deque[_Piece] = deque()
        self._arrived = anyio.Event()
        self._drained = False
        self._error: Exception | None = None
        self._tasks: TaskGroup | None = None

    @property
    def result(self) -> Result:
        """What the program did; there is one after the last chunk.

        Raises:
            RuntimeError: The command has not ended yet.
        """
        return self._run.result

    async def finish(self) -> Result:
        """Wait for the end of the command and return its result; chunks can still be read."""
        while not self._drained:
            await self._arrived.wait()
        if self._error is not None:
            raise self._error
        return self._run.result

    async def __aenter__(self) -> Self:
        await self._prepare()  # before the command's clock starts
        await self._run.__aenter__()
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._drain)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._tasks is not None:
                self._tasks.cancel_scope.cancel()
                # Without this block's own exception, which would come back inside a group.
                await self._tasks.__aexit__(None, None, None)
        finally:
            await self._run.__aexit__(exc_type, exc, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        while not self._waiting:
            if self._drained:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            await self._arrived.wait()
        return self._waiting.popleft().chunk()

    async def _drain(self) -> None:
        try:
            async for chunk in self._run:
                self._add(chunk)
                self._wake()
        except Exception as error:  # it is the reader's, who may come later  # noqa: BLE001
            self._error = error
        finally:
            self._drained = True
            self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        if not self._drained:
            self._arrived = anyio.Event()

    def _add(self, chunk: Chunk) -> None:
        if len(self._waiting) >= MAX_CHUNKS:
            for piece in (self._waiting[-1], self._waiting[-2]):
                if piece.stream == chunk.stream:
                    piece.add(chunk)
                    return
        self._waiting.append(_Piece(chunk))


class _Piece:
    """One chunk, or several of one stream that a slow reader gets as one."""

    __slots__ = ("_data", "_first", "_text", "stream")

    def __init__(self, chunk: Chunk) -> None:
        self.stream: Stream = chunk.stream
        self._first = chunk
        self._data: bytearray | None = None
        self._text = StringIO()

    def add(self, chunk: Chunk) -> None:
        if self._data is None:
            self._data = bytearray(self._first.data)
            self._text.write(self._first.text)
        self._data += chunk.data
        self._text.write(chunk.text)

    def chunk(self) -> Chunk:
        if self._data is None:
            return self._first
        return Chunk(self.stream, bytes(self._data), self._text.getvalue())


def as_script(command: Command | str, timeout: float | None) -> Command:
    """Return a `Command` of one, or of a script for a shell."""
    if isinstance(command, str):
        return shell(command, timeout=timeout)
    return as_command(command, (), timeout)
