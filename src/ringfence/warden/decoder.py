"""Cuts what comes from a warden into frames."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ProtocolError
from .frames import EXIT, HEADER, HELLO, MAX_DATA, FrameType

__all__ = ("Decoder",)

_HEAD = HEADER.size

# The sizes that a payload from the warden may have.
_SIZES: dict[int, tuple[int, int, FrameType]] = {
    kind.value: (least, most, kind)
    for kind, least, most in (
        (FrameType.HELLO, HELLO.size, HELLO.size),
        (FrameType.STARTED, 4, 4),
        (FrameType.STDOUT, 1, MAX_DATA),
        (FrameType.STDERR, 1, MAX_DATA),
        (FrameType.STDIN_ACK, 4, 4),
        (FrameType.EXIT, EXIT.size, EXIT.size),
        (FrameType.PONG, 0, 64),
        (FrameType.FAULT, 4, 256),
    )
}
_UNKNOWN = (1, 0, FrameType.FAULT)


class Decoder:
    """Cuts a byte stream into frames.

    Raises:
        ProtocolError: From `feed`, at the first frame that a warden can't have sent.
    """

    def __init__(self) -> None:
        self._part = bytearray()  # of the one frame that came cut

    def feed(self, data: bytes) -> Iterator[tuple[FrameType, int, bytes]]:
        """Add what arrived; return type, channel and payload of each frame that is complete."""
        at, size = 0, len(data)
        if self._part:
            at = self._lengthen(data)
            if (whole := self._whole()) is not None:
                yield whole
        while size - at >= _HEAD:
            length, channel, kind, flags, zero = HEADER.unpack_from(data, at)
            least, most, known = _SIZES.get(kind, _UNKNOWN)
            if not least <= length <= most or flags or zero:
                raise _malformed(kind, length)
            end = at + _HEAD + length
            if end > size:
                break
            yield known, channel, data[at + _HEAD : end]
            at = end
        if at < size:
            self._part += data[at:]

    def _lengthen(self, data: bytes) -> int:
        """Add to the part what its frame lacks, and return how much that was.

        Only that: whole frames are not copied twice.
        """
        part, at = self._part, 0
        if len(part) < _HEAD:
            at = min(_HEAD - len(part), len(data))
            part += data[:at]
        if len(part) >= _HEAD:
            more = min(self._told()[2] - len(part), len(data) - at)
            part += data[at : at + more]
            at += more
        return at

    def _whole(self) -> tuple[FrameType, int, bytes] | None:
        """Return the frame of which there was a part, once it is complete."""
        part = self._part
        if len(part) < _HEAD:
            return None
        known, channel, size = self._told()
        if len(part) < size:
            return None
        payload = bytes(memoryview(part)[_HEAD:])
        part.clear()
        return known, channel, payload

    def _told(self) -> tuple[FrameType, int, int]:
        """Return type, channel and size of the frame of which there is the header."""
        length, channel, kind, flags, zero = HEADER.unpack_from(self._part)
        least, most, known = _SIZES.get(kind, _UNKNOWN)
        if not least <= length <= most or flags or zero:
            raise _malformed(kind, length)
        return known, channel, _HEAD + length


def _malformed(kind: int, length: int) -> ProtocolError:
    return ProtocolError(f"a frame of type {kind:#x} with {length} bytes")
