"""What file operations read and write: docs/protocol.md describes it.

It comes out of a sandbox, and is hostile input like the frames around it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest

from ..errors import ProtocolError

__all__ = (
    "MAX_WHOLE",
    "MODE_UNSET",
    "NOT_A_FILE",
    "STATUS",
    "WHOLE_HEAD",
    "Entry",
    "FirstEntries",
    "decode_entries",
    "decode_files",
    "decode_statuses",
    "encode_file",
)

MAX_NAME = 255
MAX_STATUS = 255
MODE_UNSET = 0xFFFFFFFF
NOT_A_FILE = 200
MAX_WHOLE = 512 << 10
WHOLE_HEAD = 8
STATUS = 4

_ENTRY = struct.Struct("<QqII")
_WHOLE = struct.Struct("<II")
_STATUS = struct.Struct("<I")
_SIFTED = 4096  # entries that are worth the sorting


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory, as a file operation writes it."""

    name: bytes
    size: int
    mtime_ns: int
    mode: int


def decode_entries(data: bytes) -> Iterator[Entry]:
    """Return the entries that a listing wrote.

    Raises:
        ProtocolError: They do not add up.
    """
    end = 0
    for entry, end in _whole_entries(data):  # noqa: B007  # `end` is looked at below
        yield entry
    if end != len(data):
        raise ProtocolError("a directory entry that is cut")


def decode_files(data: bytes | bytearray, count: int) -> list[bytes | int]:
    """Return the content or the errno of each of so many files that were read together.

    Raises:
        ProtocolError: They do not add up.
    """
    found: list[bytes | int] = []
    whole = memoryview(data)
    at = 0
    for _ in range(count):
        if len(data) - at < _WHOLE.size:
            raise ProtocolError("fewer files than were asked for")
        status, length = _WHOLE.unpack_from(data, at)
        start = at + _WHOLE.size
        at = start + length
        if status > MAX_STATUS or length > (0 if status else min(MAX_WHOLE, len(data) - start)):
            raise ProtocolError("a file that can't be as it was told")
        found.append(status or bytes(whole[start:at]))
    if at != len(data):
        raise ProtocolError("more files than were asked for")
    return found


def encode_file(data: bytes, mode: int | None) -> tuple[bytes, bytes]:
    """Return what goes before a file that is to be written together with others, and the file."""
    return _WHOLE.pack(MODE_UNSET if mode is None else mode & 0o7777, len(data)), data


def decode_statuses(data: bytes | bytearray, count: int) -> list[int]:
    """Return the errno, or 0, of each of so many files that were written together.

    Raises:
        ProtocolError: They do not add up.
    """
    if len(data) != count * STATUS:
        raise ProtocolError("more or fewer files than were to be written")
    statuses = [status for (status,) in _STATUS.iter_unpack(data)]
    if any(status > MAX_STATUS for status in statuses):
        raise ProtocolError("a file that can't have been written as it was told")
    return statuses


class FirstEntries:
    """The first entries of a listing by their names, sifted while it comes.

    Memory is bounded by how many are wanted, whatever the other side sends.

    Attributes:
        total: How many there have been.

    Raises:
        ProtocolError: From `take` and `finish`: they do not add up.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self._most = most
        self._rest = b""
        self._kept: list[Entry] = []

    def take(self, data: bytes) -> None:
        """Take what has come of the listing."""
        data = self._rest + data
        end = 0
        for entry, end in _whole_entries(data):  # noqa: B007  # `end` is looked at below
            self._kept.append(entry)
            self.total += 1
        self._rest = data[end:]
        if len(self._kept) > 2 * self._most + _SIFTED:
            self._sift()

    def finish(self) -> list[Entry]:
        """Return the first entries, sorted, when all has come."""
        if self._rest:
            raise ProtocolError("a directory entry that is cut")
        self._sift()
        return self._kept

    def _sift(self) -> None:
        self._kept = nsmallest(self._most, self._kept, key=lambda entry: entry.name)


def _whole_entries(data: bytes) -> Iterator[tuple[Entry, int]]:
    """Return the whole entries at the beginning, each with where it ends."""
    at = 0
    while len(data) - at >= _ENTRY.size:
        size, mtime_ns, mode, length = _ENTRY.unpack_from(data, at)
        start = at + _ENTRY.size
        at = start + length
        name = data[start:at]
        if not 0 < length <= MAX_NAME or b"/" in name or b"\0" in name:
            raise ProtocolError("a directory entry with a name that does not exist")
        if len(name) != length:
            return
        yield Entry(name, size, mtime_ns, mode), at
