"""What is in a workspace."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = (
    "FileInfo",
    "FileKind",
    "Listing",
)


class FileKind(str, Enum):
    """What a path is, links not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER_DEVICE = "character_device"
    BLOCK_DEVICE = "block_device"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class FileInfo:
    """One entry of the workspace; links are described, never followed.

    Attributes:
        name: The last part of the path; bytes that are not UTF-8 as surrogate escapes, so that
            `os.fsencode(name)` gives the exact name back.
        kind: What it is.
        size: Bytes.
        mode: Permission bits.
        mtime: Seconds since the epoch.
    """

    name: str
    kind: FileKind
    size: int
    mode: int
    mtime: float


@dataclass(frozen=True)
class Listing:
    """A directory, sorted by the bytes of the names.

    Attributes:
        entries: At most as many as were asked for.
        total: How many there really are.
    """

    entries: tuple[FileInfo, ...]
    total: int

    @property
    def truncated(self) -> bool:
        """Whether there are more entries than these."""
        return self.total > len(self.entries)
