"""What a connection keeps of a command's output until somebody takes it."""

from __future__ import annotations

import anyio
from hypothesis import example, given
from hypothesis import strategies as st

from ringfence.models import Stream
from ringfence.warden.connection import Channel, Connection
from ringfence.warden.frames import HELLO, FrameType, frame
from ringfence.warden.stream import ByteStream

WINDOW = 1 << 20
KINDS: dict[Stream, FrameType] = {"stdout": FrameType.STDOUT, "stderr": FrameType.STDERR}


class AllAtOnce(ByteStream):
    """A stream on which everything has arrived."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive(self) -> bytes:
        data, self._data = self._data, b""
        return data

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        return len(data)

    def close(self) -> None:
        return


def kept(parts: list[tuple[Stream, bytes]]) -> Channel:
    """Return the channel of a command that wrote so, while nobody took it."""
    hello = frame(FrameType.HELLO, 0, HELLO.pack(3, 1, 0, 65534, bytes(16)))
    frames = b"".join(frame(KINDS[stream], 1, data) for stream, data in parts)
    expected = sum(len(data) for _, data in parts)

    async def main() -> Channel:
        connection = Connection(AllAtOnce(frames), lambda error: error)
        assert connection.take_early(hello)
        channel = connection.open_channel(WINDOW, 0)
        await connection.wait(
            channel, lambda: sum(len(chunk.data) for chunk in channel.chunks) == expected
        )
        return channel

    return anyio.run(main)


def numbered(sizes: list[tuple[Stream, int]]) -> list[tuple[Stream, bytes]]:
    """Return pieces of such sizes, no two of which are alike."""
    return [(stream, n.to_bytes(4, "big") * size) for n, (stream, size) in enumerate(sizes)]


piece = st.tuples(st.sampled_from(["stdout", "stderr"]), st.sampled_from([1, 2, 100, 300, 2000]))


@given(st.lists(piece, max_size=40))
@example([("stdout", 2000), ("stdout", 1)])
@example([("stdout", 2000), ("stderr", 1), ("stdout", 1)])
def test_many_small_pieces_are_joined_in_order(rest: list[tuple[Stream, int]]) -> None:
    """Catches a piece that is added to an older one than the last of its stream."""
    many: list[tuple[Stream, int]] = [("stdout", 1)] * 1100
    parts = numbered([*many, *rest])
    channel = kept(parts)
    for wanted in KINDS:
        whole = b"".join(data for stream, data in parts if stream == wanted)
        assert b"".join(c.data for c in channel.chunks if c.stream == wanted) == whole
    assert len(channel.chunks) <= 1024 + len(rest)
