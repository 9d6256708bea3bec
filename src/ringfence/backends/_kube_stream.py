"""The streams of a process in a pod: `pods/exec` over a WebSocket, as one stream of bytes.

Each message begins with a byte that says which stream it belongs to. Version 5 of the protocol
differs from version 4 in a message that closes a stream, which we never need: whoever is done
with a warden closes the whole connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket as sockets
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import aiohttp

from ..errors import ProtocolError
from ..warden.stream import ByteStream

__all__ = ("PROTOCOLS", "ExecStream")

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""What we speak, the one that we prefer first."""

_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = b"\0", 1, 2, 3, 255
_DATA = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)
_MAX_WORDS = 4096
_PART = 64 << 10
_IDLE, _INTERVAL, _COUNT = 20, 5, 3  # seconds, seconds, times: to notice a host that is gone


class ExecStream(ByteStream):
    """A process's stdin and stdout.

    Args:
        socket: The WebSocket, connected.
        on_end: Awaited when the other end is gone, before anybody is told.
        spawn: Has something done in the background.

    Attributes:
        words: The last of what came on stderr.
        status: What the server said of the process's end, or empty.
    """

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        on_end: Callable[[], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._socket = socket
        self._on_end = on_end
        self._spawn = spawn
        self._closed = False
        self._on_its_way = 0
        self._is_full = False
        self._idle = asyncio.Event()  # nobody reads
        self._idle.set()
        self._linger = 0.0
        self._ended = asyncio.Event()
        self.words = b""
        self.status = ""
        _keep_alive(socket)

    @property
    def protocol(self) -> str:
        """The version that was agreed on."""
        return self._socket.protocol or ""

    @property
    def why(self) -> str:
        """What there is to say of its end."""
        return self.words.decode("utf-8", "replace").strip() or self.status

    async def receive(self) -> bytes:
        if not self._idle.is_set():  # who waits for the end reads
            await self._ended.wait()
            return b""
        self._idle.clear()
        try:
            while not self._closed:
                message = await self._socket.receive()
                if message.type not in _DATA:  # closed, in good order or not
                    self._ended.set()
                    break
                text = message.type is aiohttp.WSMsgType.TEXT
                if found := self._take(message.data.encode() if text else message.data):
                    return found
            return b""
        finally:
            self._idle.set()

    async def until_end(self, seconds: float) -> bool:
        """Return whether the other end closes within that time; what comes is passed over."""
        try:
            async with asyncio.timeout(seconds):
                while not self._ended.is_set():
                    if not self._idle.is_set():
                        await self._ended.wait()
                    else:
                        await self.receive()
        except TimeoutError:
            return False
        return True

    def _take(self, data: bytes) -> bytes:
        if not data:
            return b""
        kind, rest = data[0], data[1:]
        if kind == _STDOUT:
            return rest
        if kind == _STDERR:
            self.words = (self.words + rest)[-_MAX_WORDS:]
        elif kind == _STATUS:
            self.status = _status(rest)
        elif kind != _CLOSE:
            raise ProtocolError("what came from the cluster is no stream of a process")
        return b""

    def send_now(self, data: bytes | bytearray) -> int:
        if self._on_its_way or self._is_full:
            return 0
        part = bytes(data[:_PART])
        sending = self._socket.send_bytes(_STDIN + part)
        try:
            sending.send(None)  # it seldom has to wait
        except StopIteration:
            return len(part)
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            raise ConnectionResetError(str(error)) from error
        self._is_full = True  # it is handed over; whoever sends more has to wait
        sending.close()
        return len(part)

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        if self._on_its_way:  # by an earlier call, that was cancelled when it only had to wait
            sent, self._on_its_way = self._on_its_way, 0
            return sent
        part = bytes(data[:_PART])
        self._is_full = False
        try:
            await self._socket.send_bytes(_STDIN + part)
        except asyncio.CancelledError:
            # The message was handed over as a whole before there was anything to wait for.
            self._on_its_way = len(part)
            raise
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:
            raise ConnectionResetError(str(error)) from error
        return len(part)

    async def explain(self) -> None:
        await self._on_end()

    def linger(self, seconds: float) -> None:
        """Let `close` wait that long for the other end: its end tells that the process is dead."""
        self._linger = seconds

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all with it
                self._spawn(self._close())

    async def _close(self) -> None:
        if self._linger:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._linger):
                    await self._drain()
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            await self._socket.close()

    async def _drain(self) -> None:
        """Pass over what comes, to the end."""
        await self._idle.wait()  # whoever reads now ends with the next message
        while not self._ended.is_set():
            if (await self._socket.receive()).type not in _DATA:
                self._ended.set()

    async def until_ended(self) -> None:
        """Return when the other end has closed."""
        await self._ended.wait()


def _status(data: bytes) -> str:
    """Return what the server's last words say, if that is a fault; they are bounded."""
    try:
        found = json.loads(data[: 64 << 10])
    except (ValueError, RecursionError):
        return data[:200].decode("utf-8", "replace")
    if not isinstance(found, dict) or found.get("status") == "Success":
        return ""
    return str(found.get("message") or found.get("reason") or "failed")[:1000]


def _keep_alive(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Let the kernel notice when the other end's machine is gone."""
    found = socket.get_extra_info("socket")
    if found is None:
        return
    with contextlib.suppress(OSError):
        found.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
        for name, value in (("IDLE", _IDLE), ("INTVL", _INTERVAL), ("CNT", _COUNT)):
            if (option := getattr(sockets, f"TCP_KEEP{name}", None)) is not None:
                found.setsockopt(sockets.IPPROTO_TCP, option, value)
