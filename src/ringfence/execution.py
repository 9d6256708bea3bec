"""Drains a process into a result: deadline, caps, decoding, classification.

The deadline is held inside the sandbox first, by whatever kills the command's tree there. Behind
it stands the host's own, a little later, so that a sandbox that has gone silent can't hang its
caller: when that one passes, the whole sandbox is destroyed.
"""

from __future__ import annotations

import codecs
import contextlib
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
)
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import NoReturn, Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from .errors import CommandError, SandboxLostError, StreamBrokenError
from .models import Chunk, Enforced, Exit, ExitReason, Result, Stream
from .process import HOST_SLACK, DeadlineError, Launch, Process

__all__ = ("EXIT_TIMED_OUT", "Run", "feed")

_GONE = (SandboxLostError, StreamBrokenError)
"""What says that a command does not run any more, for there is nothing that it could run in."""

EXIT_TIMED_OUT = 124
"""The exit code of a command that our clock ended, as coreutils' `timeout` gives it."""


class Run:
    """One command on its way from start to result.

    Use it with `async with`; iterate over it for decoded chunks, or `await run.finish()`. Leaving
    the block before the end kills the command's tree, also when the caller is cancelled.
    """

    # What there is later, or never: a command is quicker if it has less to set up.
    _feeding: TaskGroup | None = None
    _feed_error: Exception | None = None
    _process: Process | None = None
    _deadline = float("inf")
    _decoders: dict[Stream, codecs.IncrementalDecoder] | None = None
    _message: Chunk | None = None
    _last_text: list[Chunk]
    _result: Result | None = None

    def __init__(
        self,
        start: Callable[[Launch], Awaitable[Process]],
        destroy: Callable[[str], Awaitable[None]],
        launch: Launch,
        rest: bytes | AsyncIterable[bytes] | None,
        enforced: Enforced,
        keeps_deadlines: bool = False,
    ) -> None:
        self._keeps_deadlines = keeps_deadlines
        self._start = start
        self._destroy = destroy
        self._launch = launch
        self._rest = rest
        self._enforced = enforced
        self._began = 0.0
        self._kept: dict[Stream, bytearray] = {}
        self._seen: dict[Stream, int] = {}

    @property
    def result(self) -> Result:
        """What the program did; there is one after the last chunk.

        Raises:
            RuntimeError: The command has not ended yet.
        """
        if self._result is None:
            raise RuntimeError("the command has not ended: iterate to the end first")
        return self._result

    def _begin(self) -> None:
        self._began = time.monotonic()
        timeout = self._launch.timeout
        if timeout is not None and not self._keeps_deadlines:
            wait = timeout + self._launch.kill_grace + HOST_SLACK
            self._deadline = anyio.current_time() + wait

    async def __aenter__(self) -> Self:
        self._begin()
        with anyio.CancelScope(deadline=self._deadline):
            self._process = await self._start(self._launch)
        if self._process is None:
            await self._give_up_starting()
        elif self._rest is not None:
            self._feeding = await anyio.create_task_group().__aenter__()
            self._feeding.start_soon(self._feed, self._process, self._rest)
        return self

    async def _give_up_starting(self) -> NoReturn:
        cause = "it did not start a command before its time was up"
        with anyio.CancelScope(shield=True):
            await self._destroy(cause)
        raise SandboxLostError(f"the sandbox was destroyed: {cause}", cause=cause)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._result is None and self._process is not None:
                await self._stop(self._process)
        finally:
            if self._feeding is not None:
                self._feeding.cancel_scope.cancel()
                # Without this block's own exception, which would come back inside a group.
                await self._feeding.__aexit__(None, None, None)

    async def _stop(self, process: Process) -> None:
        """Kill a command that is left before its end, whatever happens to the caller."""
        grace = self._launch.kill_grace + HOST_SLACK
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + grace) as scope:
            try:
                await process.kill()
                await process.wait()
            except _GONE:
                return
        if scope.cancelled_caught:
            with anyio.CancelScope(shield=True):
                await self._destroy("a command could not be killed")

    async def _feed(self, process: Process, rest: bytes | AsyncIterable[bytes]) -> None:
        """Send the rest of stdin while the output is drained."""
        try:
            if isinstance(rest, bytes):
                await process.write_stdin(rest)
            else:
                async for part in rest:
                    await process.write_stdin(part)
            await process.close_stdin()
        except _GONE:
            return  # whoever drains the output is told so too
        except Exception as error:  # noqa: BLE001  # the caller is told what its iterator raised
            self._feed_error = error
            with suppress(*_GONE):
                await process.kill()
        finally:
            if isinstance(rest, AsyncGenerator):  # nobody else can, and trio warns of one left open
                await rest.aclose()

    async def finish(self) -> Result:
        """Drain the command to its end and return its result."""
        while self._result is None:
            await self._receive()
        return self._result

    async def complete(self) -> Result:
        """Start the command, drain it and return its result, outside of any `async with`.

        It does what entering, `finish` and leaving do, with one cancel scope or none: scopes cost
        more than all else that the host does for a command.
        """
        if self._rest is not None:
            async with self:
                return await self.finish()
        self._begin()
        end: Exit | None = None
        try:
            if self._keeps_deadlines:
                end = await self._start_and_drain()
            else:
                with anyio.CancelScope(deadline=self._deadline):
                    end = await self._start_and_drain()
            if self._process is None:
                await self._give_up_starting()
            return await self._conclude(end)
        finally:
            if self._result is None and self._process is not None:
                await self._stop(self._process)

    async def _start_and_drain(self) -> Exit | None:
        """Return how it ended, or None after the host's own deadline."""
        self._process = process = await self._start(self._launch)
        try:
            while (chunk := await process.receive()) is not None:
                self._keep(chunk)
            return await process.wait()
        except DeadlineError:
            return None

    def __aiter__(self) -> Run:
        self._last_text = []
        self._decoders = {
            "stdout": codecs.getincrementaldecoder("utf-8")("replace"),
            "stderr": codecs.getincrementaldecoder("utf-8")("replace"),
        }
        return self

    async def __anext__(self) -> Chunk:
        assert self._decoders is not None
        while self._result is None:
            chunk = await self._receive()
            if chunk is not None:
                text = self._decoders[chunk.stream].decode(chunk.data)
                return replace(chunk, text=text)
            if self._message:
                text = self._decoders["stderr"].decode(self._message.data)
                self._last_text.append(replace(self._message, text=text))
            # A character that the program never finished is text too, of a chunk without bytes.
            for stream, decoder in self._decoders.items():
                if rest := decoder.decode(b"", True):
                    self._last_text.append(Chunk(stream, b"", rest))
        if self._last_text:
            return self._last_text.pop(0)
        raise StopAsyncIteration

    async def _receive(self) -> Chunk | None:
        """Return the next output within the cap, or None when there is a result."""
        assert self._process is not None
        end: Exit | None = None
        with anyio.CancelScope(deadline=self._deadline), contextlib.suppress(DeadlineError):
            while (chunk := await self._process.receive()) is not None:
                if kept := self._keep(chunk):
                    return kept
            end = await self._process.wait()
        if self._feed_error is not None:
            raise self._feed_error
        await self._conclude(end)
        return None

    async def _conclude(self, end: Exit | None) -> Result:
        """Make the result; without an end, the host's own deadline has passed."""
        if end is None:
            with anyio.CancelScope(shield=True):
                await self._destroy("it did not answer when its command's time was up")
            end = Exit(EXIT_TIMED_OUT, ExitReason.TIMED_OUT)
        if end.message:
            end = replace(end, stderr_bytes=end.stderr_bytes + len(end.message.encode()))
            self._message = self._keep(Chunk("stderr", end.message.encode()))
        self._result = result = Result(
            stdout=bytes(self._kept.get("stdout", b"")),
            stderr=bytes(self._kept.get("stderr", b"")),
            exit_code=end.code,
            exit_reason=end.reason,
            stdout_bytes=max(end.stdout_bytes, self._seen.get("stdout", 0)),
            stderr_bytes=max(end.stderr_bytes, self._seen.get("stderr", 0)),
            duration_s=time.monotonic() - self._began,
            timeout=self._launch.timeout,
            usage=end.usage,
            enforced=self._enforced,
            workspace_is_new=end.workspace_is_new,
        )
        return result

    def _keep(self, chunk: Chunk) -> Chunk | None:
        """Keep a chunk up to the cap; the sandbox is not trusted to have cut it."""
        kept = self._kept.setdefault(chunk.stream, bytearray())
        self._seen[chunk.stream] = self._seen.get(chunk.stream, 0) + len(chunk.data)
        cap = self._launch.output_bytes
        data = chunk.data if cap is None else chunk.data[: cap - len(kept)]
        if not data:
            return None
        kept += data
        return chunk if len(data) == len(chunk.data) else Chunk(chunk.stream, data)


async def feed(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Make a command's stdin of a plain iterable of bytes, such as a file opened for reading.

    Each piece is fetched in a thread, so that one which takes its time blocks nobody.

    Raises:
        CommandError: A piece is not bytes.
    """
    pieces = iter(source)
    while True:
        # A thread that is still reading when the command ends is left to itself.
        piece = await anyio.to_thread.run_sync(next, pieces, None, abandon_on_cancel=True)
        if piece is None:
            return
        if not isinstance(piece, bytes):
            raise CommandError(f"stdin is fed with bytes, not {type(piece).__name__}")
        yield piece
