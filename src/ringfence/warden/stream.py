"""The byte stream below the frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod

import anyio

__all__ = ("ByteStream", "SocketStream", "asyncio_loop")

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
    """One end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._loop = asyncio_loop()
        self._registered = False
        self._idle_calls = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    async def receive(self) -> bytes:
        while True:
            # Whoever asks has just sent something, as a rule, and the answer is yet to come.
            await self._wait_readable()
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

    async def _wait_readable(self) -> None:
        if self.socket.fileno() < 0:
            return
        if self._loop is None:
            with contextlib.suppress(anyio.ClosedResourceError):
                await anyio.wait_readable(self.socket)
            return
        if not self._registered:
            # An earlier socket with this number may have been closed by another thread.
            self._loop.remove_reader(self.socket.fileno())
            self._loop.add_reader(self.socket.fileno(), self._on_readable)
            self._registered = True
        self._idle_calls = 0
        self._reader = waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._reader = None

    def _on_readable(self) -> None:
        """Wake who waits. The registration is kept for the next wait: making one costs more.

        Called once when the waiter has not come to read yet; called twice for nobody, there is
        something that nobody wants now, and asking on would keep the loop busy.
        """
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
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


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
