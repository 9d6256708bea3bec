"""A container's streams, hijacked from an HTTP request and read straight from the socket.

The client library can do that too, at ten times the cost for each message, and every command of
every sandbox passes here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Awaitable, Callable

from ..errors import ProtocolError
from ..warden.stream import ByteStream, SocketStream
from ._docker_endpoint import Endpoint

__all__ = ("ContainerStream", "Demultiplexer", "HijackRefusedError", "hijack", "hijack_request")

_MAX_HEAD = 16 << 10
_MAX_BODY = 64 << 10
_MAX_WORDS = 4096
_MAX_MESSAGE = 1000
_HEADER = 8
_STDOUT = 1
_KINDS = (0, 1, 2, 3)  # stdin, stdout, stderr, and what the engine itself has to say
_TLS_BYTES = 64 << 10
_STATUS = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})(?![0-9])")


class HijackRefusedError(Exception):
    """The engine answered with an error instead of a stream.

    Attributes:
        status: The HTTP status.
        body: What it said.
    """

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.body = body

    @property
    def message(self) -> str:
        """What the body says to people."""
        start = self.body.find(b"{")
        try:
            found = json.loads(self.body[start : self.body.rfind(b"}") + 1])["message"]
        except (ValueError, KeyError, TypeError, RecursionError):
            found = self.body.decode("utf-8", "replace").strip()
        return str(found)[:_MAX_MESSAGE]


class Demultiplexer:
    """Takes the engine's framing off: 8 bytes, of which the first names the stream.

    Frames may be split anywhere and are handed out as they come, so no length that is merely
    stated is ever stored.

    Attributes:
        words: The last of what came on other streams than stdout.
    """

    def __init__(self) -> None:
        self.words = b""
        self._head = b""
        self._left = 0
        self._kind = _STDOUT

    def feed(self, data: bytes) -> bytes:
        """Return what of stdout is in `data`.

        Raises:
            ProtocolError: It is not the engine's framing.
        """
        found = []
        whole = memoryview(data)
        at = 0
        while at < len(data):
            if not self._left:
                head = self._head + data[at : at + _HEADER - len(self._head)]
                at += len(head) - len(self._head)
                self._head = head
                if len(head) < _HEADER:
                    break
                self._begin(head)
                continue
            part = whole[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            if self._kind == _STDOUT:
                found.append(part)
            else:
                self.words = (self.words + bytes(part))[-_MAX_WORDS:]
        return b"".join(found)

    def _begin(self, head: bytes) -> None:
        self._kind = head[0]
        if self._kind not in _KINDS or head[1:4] != b"\0\0\0":
            raise ProtocolError("what came from the engine is no stream of a container")
        self._left = int.from_bytes(head[4:], "big")
        self._head = b""


class ContainerStream(ByteStream):
    """A container's stdin and stdout as one stream of bytes.

    Args:
        inner: The hijacked connection.
        early: What of the stream came along with the answer's head.
        on_end: Awaited when the other end is gone, before anybody is told.
    """

    def __init__(
        self, inner: ByteStream, early: bytes, on_end: Callable[[], Awaitable[None]]
    ) -> None:
        self._inner = inner
        self._early = early
        self._on_end = on_end
        self._frames = Demultiplexer()

    @property
    def words(self) -> str:
        """What came on stderr: why the warden did not start, for one."""
        return self._frames.words.decode("utf-8", "replace").strip()

    async def wait(self) -> None:
        """Wait until something has come, which stays there for `receive`, or the end has."""
        if not self._early:
            self._early = await self._inner.receive()

    async def receive(self) -> bytes:
        while True:
            data, self._early = self._early, b""
            if not data and not (data := await self._inner.receive()):
                return b""
            if found := self._frames.feed(data):
                return found

    def receive_now(self) -> bytes | None:
        more = self._inner.receive_now()
        if more is None and not self._early:
            return None
        data, self._early = self._early + (more or b""), b""
        return self._frames.feed(data)

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        return await self._inner.send_some(data)

    def send_now(self, data: bytes | bytearray) -> int:
        return self._inner.send_now(data)

    async def explain(self) -> None:
        await self._on_end()

    def close(self) -> None:
        self._inner.close()


class _TlsStream(ByteStream):
    """A connection that asyncio encrypts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> bytes:
        try:
            return await self._reader.read(_TLS_BYTES)
        except OSError:  # ssl.SSLError too: the other end is gone, and did not say goodbye
            return b""

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        await self._writer.drain()  # first, since what is written once can't be taken back
        part = bytes(data[:_TLS_BYTES])
        self._writer.write(part)
        return len(part)

    def close(self) -> None:
        # What was written is with the kernel. To part politely would take the other end's answer,
        # and an event loop that is there to hear it.
        self._writer.transport.abort()


async def _connect(endpoint: Endpoint) -> ByteStream:
    if endpoint.tls is not None:
        return _TlsStream(
            *await asyncio.open_connection(*endpoint.address, ssl=endpoint.tls.context)
        )
    loop = asyncio.get_running_loop()
    if endpoint.socket:
        family, address = socket.AF_UNIX, (endpoint.socket,)
    else:
        found = await loop.getaddrinfo(*endpoint.address, type=socket.SOCK_STREAM)
        family, address = found[0][0], found[0][4:5]  # type: ignore[assignment]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if not endpoint.socket:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, address[0])
    except BaseException:
        sock.close()
        raise
    return SocketStream(sock)


def hijack_request(path: str, body: bytes = b"") -> bytes:
    """Return the request that turns its own connection into a stream."""
    head = (
        f"POST {path} HTTP/1.1",
        "Host: engine",
        "Connection: Upgrade",
        "Upgrade: tcp",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*head, "", "")).encode("ascii") + body


async def hijack(
    endpoint: Endpoint, path: str, on_end: Callable[[], Awaitable[None]], body: bytes = b""
) -> ContainerStream:
    """Send a request and return its connection as a stream.

    Raises:
        HijackRefusedError: The engine refused.
        OSError: It can't be reached, or hung up.
    """
    inner = await _connect(endpoint)
    try:
        unsent = memoryview(hijack_request(path, body))
        while unsent:
            unsent = unsent[await inner.send_some(unsent) :]
        early = await _accepted(inner)
    except BaseException:
        inner.close()
        raise
    return ContainerStream(inner, early, on_end)


async def _accepted(inner: ByteStream) -> bytes:
    """Return what of the stream came with the answer's head, if the answer is one."""
    status, early = await _read_head(inner)
    if status not in (101, 200):
        raise HijackRefusedError(status, await _read_body(inner, early))
    return early


async def _read_head(inner: ByteStream) -> tuple[int, bytes]:
    """Return the status of the answer, and what of the stream came with its head."""
    got = b""
    while b"\r\n\r\n" not in got:
        data = await inner.receive() if len(got) <= _MAX_HEAD else b""
        if not data:
            raise ConnectionResetError("the engine hung up instead of answering")
        got += data
    head, _, early = got.partition(b"\r\n\r\n")
    if not (status := _STATUS.match(head)):
        raise ConnectionResetError("what answered speaks no HTTP")
    return int(status[1]), early


async def _read_body(inner: ByteStream, got: bytes) -> bytes:
    """Return what comes of an error's text; it is short, and nobody waits for its end."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            while not got.rstrip().endswith(b"}") and len(got) < _MAX_BODY:
                if not (data := await inner.receive()):
                    break
                got += data
    return got
