"""What comes over a container's stream ends in bytes or in a typed error, soon and in bounds."""

from __future__ import annotations

import json
import struct
import tracemalloc

import anyio
import anyio.lowlevel
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("aiodocker")

from ringfence.backends._docker_attach import (
    ContainerStream,
    Demultiplexer,
    HijackRefusedError,
    _accepted,
)
from ringfence.errors import ProtocolError, SandboxLostError
from ringfence.warden.connection import Connection
from ringfence.warden.stream import ByteStream

HEADER = 8
MOST_WORDS = 4096

frames = st.tuples(st.integers(0, 3), st.binary(max_size=300))
cuts = st.lists(st.integers(1, 400), max_size=30)


def framed(kind: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", kind, len(data)) + data


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """Cut a text into pieces of these sizes, and what is left."""
    found = []
    for size in sizes:
        found.append(data[:size])
        data = data[size:]
    return [piece for piece in (*found, data) if piece]


class Replay(ByteStream):
    """A stream on which pieces arrive, and then the end."""

    def __init__(self, arriving: list[bytes]) -> None:
        self.arriving = arriving
        self.closed = False

    async def receive(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        return self.arriving.pop(0) if self.arriving else b""

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        return len(data)

    def close(self) -> None:
        self.closed = True


@given(st.lists(frames, max_size=12), cuts)
def test_how_a_stream_is_cut_does_not_matter(
    row: list[tuple[int, bytes]], sizes: list[int]
) -> None:
    mux = Demultiplexer()
    got = b"".join(map(mux.feed, pieces(b"".join(framed(*item) for item in row), sizes)))
    assert got == b"".join(data for kind, data in row if kind == 1)
    words = b"".join(data for kind, data in row if kind != 1)
    assert mux.words == words[-MOST_WORDS:]


@given(st.binary(max_size=400), cuts)
@example(b"\1\0\0\0\xff\xff\xff\xff" + b"x" * 50, [1] * 8)
def test_any_bytes_are_framing_or_refused(data: bytes, sizes: list[int]) -> None:
    """Nothing comes out that did not come in, whatever length is stated."""
    mux, got = Demultiplexer(), b""
    try:
        for piece in pieces(data, sizes):
            got += mux.feed(piece)
    except ProtocolError:
        pass
    assert len(got) + len(mux.words) <= max(0, len(data) - HEADER)
    assert got in data or len(data) > 2 * HEADER


def test_a_lying_length_costs_nothing() -> None:
    """Catches a buffer that is made as large as a header says."""
    mux = Demultiplexer()
    tracemalloc.start()
    try:
        for _ in range(100):
            assert mux.feed(b"\2\0\0\0" + (100_000).to_bytes(4, "big")) == b""
            mux.feed(b"x" * 100_000)
        mux.feed(b"\1\0\0\0\xff\xff\xff\xff")
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


HEAD = b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n"


def accepted(arriving: list[bytes]) -> bytes:
    return anyio.run(_accepted, Replay(arriving))


@given(st.binary(max_size=2000), cuts)
@example(b"x" * 60_000, [])
def test_an_answer_s_head_may_be_split_anywhere(payload: bytes, sizes: list[int]) -> None:
    """What of the stream comes with the head is no part of it, however long it is."""
    arriving = pieces(HEAD + payload, sizes)
    early = accepted(arriving)
    assert early + b"".join(arriving) == payload


status_lines = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda status: b"HTTP/1.1 " + status + b" X", st.binary(max_size=8)),
    st.builds(lambda n: b"HTTP/1.1 %d" % n, st.integers(-(10**9), 10**9)),
)


@settings(deadline=None)
@given(status_lines, st.binary(max_size=300), cuts)
@example(b"HTTP/1.1 " + b"1" * 5000, b"", [])
@example(b"HTTP/1.1 " + "\u0661\u0660\u0661".encode(), b"", [])
def test_any_answer_is_a_stream_or_a_typed_refusal(
    line: bytes, rest: bytes, sizes: list[int]
) -> None:
    arriving = pieces(line + b"\r\n\r\n" + rest + b"}", sizes)
    try:
        accepted(arriving)
    except (HijackRefusedError, ConnectionError) as error:
        status = getattr(error, "status", 999)
    else:
        status = 101
    assert 0 <= status <= 999


@pytest.mark.parametrize("part", [b"x", b"X-Header: y\r\n" * 100])
def test_a_head_without_an_end_is_given_up(part: bytes) -> None:
    """An endless head is read no further than a head can be long."""

    class Endless(Replay):
        read = 0

        async def receive(self) -> bytes:
            await anyio.lowlevel.checkpoint()
            Endless.read += len(part)
            return part

    with pytest.raises(ConnectionError):
        anyio.run(_accepted, Endless([]))
    assert Endless.read <= (16 << 10) + len(part)


DEEP = b'{"message":' + b"[" * 60_000


@given(
    st.one_of(
        st.binary(max_size=300),
        st.recursive(
            st.none() | st.text(max_size=9) | st.integers(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
@example(DEEP + b"]" * 60_000 + b"}")
@example(DEEP + b"}")
def test_any_error_s_text_is_text(body: bytes) -> None:
    assert len(HijackRefusedError(400, body).message) <= 1000


async def nothing() -> None:
    pass


async def greeted(arriving: list[bytes]) -> bool:
    """Return whether a connection was greeted; one that was not is closed, and says so once."""
    lost: list[SandboxLostError] = []
    inner = Replay(arriving)

    def on_lost(error: SandboxLostError) -> SandboxLostError:
        lost.append(error)
        return error

    connection = Connection(ContainerStream(inner, b"", nothing), on_lost)
    try:
        with anyio.fail_after(5):
            await connection.greet()
    except SandboxLostError:
        assert len(lost) == 1
        assert inner.closed
        return False
    connection.close()
    return True


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=120)), max_size=5), cuts)
def test_a_connection_survives_garbage(row: list[tuple[int, bytes]], sizes: list[int]) -> None:
    """Every stream that is no warden's is an end or a protocol error, and never hangs."""
    data = b"".join(framed(*item) for item in row)
    assert not anyio.run(greeted, pieces(data, sizes))
