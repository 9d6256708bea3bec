"""The byte stream below the frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

import anyio

__all__ = ("ByteStream", "SocketStream", "Turn", "asyncio_loop")

_RECEIVE_BYTES = 256 << 10


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop if it is asyncio's, for what anyio does at a higher cost."""
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        return asyncio.get_running_loop()
    return None


class ByteStream(ABC):
    """A stream to a warden. One task receives at a time, and one task sends."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Return what has arrived, at least one byte, or nothing at the end of the stream."""

    def receive_now(self) -> bytes | None:
        """Return what has arrived, without waiting; None where that can't be told."""
        return None

    @abstractmethod
    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        """Send the beginning of `data` and return how many bytes that was.

        Cancelled before it returns, it has sent nothing.

        Raises:
            OSError: The other end is gone.
        """

    def send_now(self, data: bytes | bytearray) -> int:
        """Send what can be sent without waiting, and return how many bytes that was.

        Raises:
            OSError: The other end is gone.
        """
        return 0

    async def explain(self) -> None:
        """Find out why the other end is gone, and tell the connection, before it tells others."""
        return

    @abstractmethod
    def close(self) -> None:
        """Close this end. Safe to call again."""


class SocketStream(ByteStream):
    """One end of a socket pair.

    Args:
        sock: It belongs to the stream from now on.
        loop: asyncio's event loop, for who makes one outside of a task.
    """

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop | None = None) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._loop = loop or asyncio_loop()
        self._registered = False
        self._idle_calls = 0
        self._reader: Turn | None = None
        self._writer: asyncio.Future[None] | None = None

    async def receive(self) -> bytes:
        while True:
            # Whoever asks has just sent something, as a rule, and the answer is yet to come.
            if self.socket.fileno() < 0:
                return b""
            if self._loop is None:
                with contextlib.suppress(anyio.ClosedResourceError):
                    await anyio.wait_readable(self.socket)
            else:
                waiter = self._expect(self._loop)
                try:
                    await waiter
                finally:
                    self._reader = None
            try:
                return self.socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # closed by us, or reset by the other end's death: it has ended
                return b""

    def receive_now(self) -> bytes:
        try:
            return self.socket.recv(_RECEIVE_BYTES)
        except OSError:
            return b""

    def send_now(self, data: bytes | bytearray) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        while True:
            try:
                return self.socket.send(data)
            except BlockingIOError:
                await self._wait_writable()

    # On asyncio a wait costs a third of what anyio's own does, and every command comes by here.

    def _expect(self, loop: asyncio.AbstractEventLoop) -> Turn:
        """Return what is done when there is something to read."""
        if not self._registered:
            # An earlier socket with this number may have been closed by another thread.
            loop.remove_reader(self.socket.fileno())
            loop.add_reader(self.socket.fileno(), self._on_readable)
            self._registered = True
        self._idle_calls = 0
        self._reader = waiter = Turn(loop=loop)
        return waiter

    def _on_readable(self) -> None:
        """Wake who waits. The registration is kept for the next wait: making one costs more.

        Called once when the waiter has not come to read yet; called twice for nobody, there is
        something that nobody wants now, and asking on would keep the loop busy.
        """
        if self._reader is not None and not self._reader.done():
            self._reader.begin()
            return
        self._idle_calls += 1
        if self._idle_calls > 1 and self._loop is not None:
            self._loop.remove_reader(self.socket.fileno())
            self._registered = False

    async def _wait_writable(self) -> None:
        if self._loop is None:
            with contextlib.suppress(anyio.ClosedResourceError):
                await anyio.wait_writable(self.socket)
            return
        self._writer = waiter = self._loop.create_future()
        self._loop.add_writer(self.socket.fileno(), _wake, waiter)
        try:
            await waiter
        finally:
            self._writer = None
            if (number := self.socket.fileno()) >= 0:
                self._loop.remove_writer(number)

    def close(self) -> None:
        if self.socket.fileno() < 0:
            return
        if self._loop is None:
            anyio.notify_closing(self.socket)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self.socket.fileno())
            self._loop.remove_writer(self.socket.fileno())
            _wake(self._reader)
            _wake(self._writer)
        self.socket.close()


class Turn(asyncio.Future[None]):
    """A future whose one waiter can be let go on at once, and not with the loop's next turn.

    Every command comes by here, and a turn is a third of what the loop costs it.
    """

    _waiter: tuple[Callable[[Any], object], Context] | None = None

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        self._waiter = fn, context or copy_context()

    def begin(self) -> None:
        """Let the waiter go on now: for what the loop calls, where no task runs."""
        if self.done():  # cancelled, or begun already
            return
        super().set_result(None)
        if self._waiter is not None:
            go_on, context = self._waiter
            context.run(go_on, self)

    def set_result(self, result: None, /) -> None:
        super().set_result(result)
        self._begin_soon()

    def cancel(self, msg: object | None = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled:
            self._begin_soon()
        return cancelled

    def _begin_soon(self) -> None:
        if self._waiter is not None:
            go_on, context = self._waiter
            self.get_loop().call_soon(go_on, self, context=context)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
