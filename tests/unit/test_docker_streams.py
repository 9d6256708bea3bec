"""A container's stream with the engine's framing taken off, and how it is asked for."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

pytest.importorskip("aiodocker")

from ringfence.backends._docker_attach import (
    ContainerStream,
    Demultiplexer,
    HijackRefusedError,
    hijack,
    hijack_request,
)
from ringfence.backends._docker_endpoint import Endpoint
from ringfence.errors import ProtocolError
from ringfence.warden.stream import ByteStream


def framed(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", kind, len(data)) + data


def test_frames_may_be_split_anywhere() -> None:
    """Catches a header that comes in two reads, and one that comes with another's end."""
    sent = framed(1, b"hello") + framed(2, b"oh") + framed(1, b"") + framed(1, b" world" * 100)
    whole = b"hello" + b" world" * 100
    rng = random.Random(1)
    for _ in range(200):
        frames, got, at = Demultiplexer(), b"", 0
        while at < len(sent):
            step = rng.choice((1, 2, 7, 8, 9, 50, 1000))
            got += frames.feed(sent[at : at + step])
            at += step
        assert (got, frames.words) == (whole, b"oh")


def test_only_the_last_words_of_stderr_are_kept() -> None:
    frames = Demultiplexer()
    for _ in range(100):
        assert frames.feed(framed(2, b"x" * 1000)) == b""
    assert frames.words == b"x" * 4096


@pytest.mark.parametrize("head", [b"\4\0\0\0\0\0\0\1", b"\1\1\0\0\0\0\0\1", b"HTTP/1.1"])
def test_what_is_no_framing_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        Demultiplexer().feed(head)


def test_a_length_that_is_merely_stated_takes_no_memory() -> None:
    frames = Demultiplexer()
    assert frames.feed(b"\1\0\0\0\xff\xff\xff\xff" + b"abc") == b"abc"
    assert frames.feed(b"def") == b"def"


class Replay(ByteStream):
    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    async def receive(self) -> bytes:
        return self.parts.pop(0) if self.parts else b""

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        return len(data)

    def close(self) -> None:
        pass


def test_what_came_with_the_answers_head_is_first_and_the_end_can_be_explained() -> None:
    ends = []

    async def on_end() -> None:
        ends.append("told")

    async def run() -> list[bytes]:
        stream = ContainerStream(
            Replay(framed(2, b"why"), framed(1, b"b")), framed(1, b"a"), on_end
        )
        got = [await stream.receive(), await stream.receive()]
        assert ends == []
        got.append(await stream.receive())
        await stream.explain()
        assert stream.words == "why"
        return got

    assert anyio.run(run) == [b"a", b"b", b""]
    assert ends == ["told"]


def test_the_request_asks_for_the_connection_itself() -> None:
    assert hijack_request("/v1.41/containers/x/attach?stream=1") == (
        b"POST /v1.41/containers/x/attach?stream=1 HTTP/1.1\r\n"
        b"Host: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        b"Content-Type: application/json\r\nContent-Length: 0\r\n\r\n"
    )


async def nothing() -> None:
    pass


def hijacked(directory: Path, *parts: bytes) -> bytes:
    """Return what a stream gives that an engine answers with these."""
    path = str(directory / "engine.sock")

    async def serve(client: SocketStream) -> None:
        async with client:
            await client.receive()
            for part in parts:
                await client.send(part)
                await anyio.sleep(0.01)

    async def run(address: str) -> bytes:
        stream = await hijack(Endpoint(socket=address), "/x", nothing)
        got = b""
        while data := await stream.receive():
            got += data
        stream.close()
        return got

    found: list[bytes | Exception] = []

    async def both() -> None:
        listener = await anyio.create_unix_listener(path)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, serve)
            try:
                found.append(await run(path))
            except (OSError, HijackRefusedError) as error:
                found.append(error)
            group.cancel_scope.cancel()

    anyio.run(both)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 101 UPGRADED\r\nA: b\r\n\r\n", framed(1, b"payload")),
        (b"HTTP/1.1 200 OK\r\n\r\n" + framed(1, b"payload"),),
        (b"HTTP/1.1 101 U", b"PGRADED\r\n\r", b"\n\1\0\0", b"\0\0\0\0\7pay", b"load"),
    ],
)
def test_payload_may_follow_the_head_in_the_same_read(
    parts: tuple[bytes, ...], tmp_path: Path
) -> None:
    assert hijacked(tmp_path, *parts) == b"payload"


def test_a_refusal_is_told_with_its_text(tmp_path: Path) -> None:
    body = b'{"message":"No such container: x"}'
    with pytest.raises(HijackRefusedError) as caught:
        hijacked(tmp_path, b"HTTP/1.1 404 Not Found\r\n\r\n", body)
    assert (caught.value.status, caught.value.body) == (404, body)


@pytest.mark.parametrize("head", [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"x" * 20_000])
def test_what_speaks_no_http_is_a_broken_connection(head: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        hijacked(tmp_path, head)
