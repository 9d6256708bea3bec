"""The three standard streams, without ever holding up a signal or this program's end.

A read of a pipe that nobody writes to, or a write to one that nobody empties, blocks; in the event
loop it would block Ctrl-C too, and in a thread that Python waits for, the exit. So each direction
has a daemon thread of its own, which is left behind in its call when all else is done.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeVar

from ..errors import CommandError

__all__ = ("Writer", "fill_missing_streams", "read_stdin")

T = TypeVar("T")

_READ_BYTES = 65536


class _Thread:
    """Does one blocking call after another, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._started = False

    async def run(self, call: Callable[[], T]) -> T:
        if not self._started:
            self._started = True
            threading.Thread(target=self._serve, daemon=True).start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(error: OSError | None, value: T | None) -> None:
            if future.done():
                return  # nobody waits any more
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)  # type: ignore[arg-type]  # a T where there is no error

        def perform() -> None:
            error, value = None, None
            try:
                value = call()
            except OSError as raised:
                error = raised
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, error, value)

        self._calls.put(perform)
        return await future

    def _serve(self) -> None:
        while True:
            self._calls.get()()


class Writer:
    """Writes bytes as they are to stdout and stderr, each call after the one before."""

    def __init__(self) -> None:
        self._thread = _Thread()
        self._shared = os.isatty(1) and os.isatty(2)  # then stdout's lines are stderr's too
        self._is_line_open = False

    def line_break(self) -> str:
        """Return what has to stand before a line of our own on stderr: a line break or nothing."""
        was_open, self._is_line_open = self._is_line_open, False
        return "\n" if was_open else ""

    async def write(self, descriptor: int, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: Nobody reads it any more.
            OSError: It can't be written.
        """
        await self._thread.run(lambda: _write_all(descriptor, data))
        if descriptor == 2 or self._shared:
            self._is_line_open = not data.endswith(b"\n")


async def read_stdin() -> AsyncGenerator[bytes, None]:
    """Yield stdin as it comes.

    Raises:
        CommandError: It can't be read.
    """
    thread = _Thread()
    try:
        while data := await thread.run(_read):
            yield data
    except OSError as error:
        raise CommandError(f"stdin can't be read: {error.strerror}") from error


def _read() -> bytes:
    while True:
        try:
            return os.read(0, _READ_BYTES)
        except BlockingIOError:  # whoever gave it to us has made it so
            select.select([0], [], [])


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


def fill_missing_streams() -> None:
    """Put the null device where a standard stream was closed.

    Else the next file or socket that is opened would get its number, and the program's output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free
