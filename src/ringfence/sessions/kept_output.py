"""The last part of a long output, read by offsets."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("KeptOutput", "OutputPart")


@dataclass(frozen=True)
class OutputPart:
    """A part of a background command's output.

    Attributes:
        data: The bytes, stdout and stderr in the order in which they arrived.
        offset: Where they begin, counted from the command's first byte.
        dropped: Bytes between what was asked for and `offset` that are not kept any more.
        total: All bytes that have arrived so far.
        ended: Whether the command has ended, so that there will be no more than `total`.
    """

    data: bytes
    offset: int
    dropped: int
    total: int
    ended: bool

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.offset + len(self.data)

    @property
    def text(self) -> str:
        """The bytes as text; what is not UTF-8 appears as U+FFFD."""
        return self.data.decode("utf-8", "replace")


class KeptOutput:
    """A buffer that forgets its beginning.

    Args:
        most: Bytes that it keeps.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self._most = most
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """Add bytes to the end."""
        self.total += len(data)
        self._kept += data
        del self._kept[: -self._most]

    def part(self, offset: int, most: int, ended: bool) -> OutputPart:
        """Return at most so many bytes from an offset, or from the first that is kept after it.

        Args:
            offset: Where to begin; below 0, so many bytes before the end.
            most: Bytes to return.
            ended: Whether the command has.
        """
        first = self.total - len(self._kept)
        wanted = max(self.total + offset, 0) if offset < 0 else min(offset, self.total)
        begin = max(wanted, first)
        data = bytes(self._kept[begin - first : begin - first + most])
        return OutputPart(data, begin, begin - wanted, self.total, ended)
