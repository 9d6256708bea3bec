"""The tools for files."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..backend import Sandbox
from ..errors import ToolError
from ..export import readable, unreadable
from ..models import FileInfo, FileKind
from .text import MAX_TEXT, whole_characters

__all__ = (
    "DEFAULT_ENTRIES",
    "MAX_ENTRIES",
    "MAX_READ",
    "FilePart",
    "Listing",
    "list_files",
    "listing",
    "read_file",
    "read_part",
    "write_file",
)

MAX_READ = 100_000
"""Bytes of a file that one call returns at most."""

DEFAULT_ENTRIES = 100
MAX_ENTRIES = 1000

_MAX_DIRECTORIES = 200  # that one listing looks into


async def write_file(sandbox: Sandbox, path: str, content: str, append: bool = False) -> str:
    """Write a text file in the workspace, making the directories above it.

    Args:
        sandbox: Where.
        path: Relative to the workspace, or absolute below `/workspace`; in the form in which
            `list_files` shows it.
        content: The whole content, or what to add.
        append: Add to the end instead of replacing what is there.

    Raises:
        ToolError: The content can't be encoded as UTF-8.
        WorkspaceError: One of its children says why.
    """
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolError(
            "the content has half of a surrogate pair; write whole characters"
        ) from None
    await sandbox.write_file(unreadable(path), data, append=append)
    return f"[{len(data)} bytes {'added to' if append else 'written to'} {path}]"


async def read_file(sandbox: Sandbox, path: str, offset: int = 0, limit: int = MAX_TEXT) -> str:
    """Return a part of a text file.

    Args:
        sandbox: Where.
        path: In the workspace.
        offset: The byte to begin with.
        limit: The most bytes to return, at most 100,000.

    Raises:
        ToolError: It is no text.
        WorkspaceError: One of its children says why.
    """
    return (await read_part(sandbox, path, offset, limit)).told()


@dataclass(frozen=True)
class FilePart:
    """A part of a text file.

    Attributes:
        text: Its characters.
        offset: The byte that it begins with.
        end: The byte after its last.
        size: Bytes of the whole file; None if it is no regular file.
        is_last: Whether there is nothing after it.
    """

    text: str
    offset: int
    end: int
    size: int | None
    is_last: bool

    def told(self) -> str:
        """Return it for a model, with what it is a part of."""
        size = "" if self.size is None else f" of {self.size}"
        if not self.is_last:
            note = f"[bytes {self.offset} to {self.end}{size}; read on with offset={self.end}]"
        elif self.offset and not self.text:
            note = f"[nothing at byte {self.offset}{size}]"
        else:
            note = f"[end of file, {self.end} bytes]"
        return f"{self.text}{'' if self.text.endswith(chr(10)) or not self.text else chr(10)}{note}"


async def read_part(
    sandbox: Sandbox, path: str, offset: int = 0, limit: int = MAX_TEXT
) -> FilePart:
    """Read a part of a text file; see `read_file`."""
    name, most = unreadable(path), min(limit, MAX_READ)
    data = await sandbox.read_file(name, offset=offset, max_bytes=most + 1)
    if b"\0" in data:
        raise ToolError(
            f"{path} is no text; look at it with the terminal, such as `od -c` or `file`"
        )
    found = await sandbox.stat(name)
    is_last = len(data) <= most
    if not is_last:
        data = whole_characters(data[:most])
    return FilePart(
        data.decode("utf-8", "replace"),
        offset,
        offset + len(data),
        found.size if found.kind is FileKind.FILE else None,
        is_last,
    )


async def list_files(
    sandbox: Sandbox, path: str = ".", recursive: bool = True, limit: int = DEFAULT_ENTRIES
) -> str:
    """Return the names below a directory, those near the top first.

    Args:
        sandbox: Where.
        path: The directory.
        recursive: Look into directories too.
        limit: The most names to return, at most 1,000.

    Raises:
        WorkspaceError: One of its children says why.
    """
    return (await listing(sandbox, path, recursive, limit)).told()


@dataclass(frozen=True)
class Listing:
    """The names below a directory.

    Attributes:
        entries: Each with its path below that directory, in a form that `unreadable` turns back.
        left_out: How many more there are in the directories that were looked into.
        unseen: How many directories were not looked into.
    """

    entries: list[tuple[str, FileInfo]]
    left_out: int
    unseen: int

    def told(self) -> str:
        """Return it for a model."""
        lines = [_line(path, entry) for path, entry in self.entries]
        return "\n".join([*lines, _listed(len(lines), self.left_out, self.unseen)])


async def listing(
    sandbox: Sandbox, path: str = ".", recursive: bool = True, limit: int = DEFAULT_ENTRIES
) -> Listing:
    """List the names below a directory; see `list_files`."""
    most = min(limit, MAX_ENTRIES)
    entries: list[tuple[str, FileInfo]] = []
    left_out = looked = 0
    waiting = deque([(unreadable(path), "")])
    while waiting and looked < _MAX_DIRECTORIES:
        directory, above = waiting.popleft()
        found = await sandbox.list_files(directory, max_entries=most - len(entries))
        looked += 1
        left_out += found.total - len(found.entries)
        entries += [(above + readable(entry.name), entry) for entry in found.entries]
        if len(entries) >= most:
            break
        if recursive:
            waiting.extend(
                (f"{directory}/{entry.name}", f"{above}{readable(entry.name)}/")
                for entry in found.entries
                if entry.kind is FileKind.DIRECTORY
            )
    return Listing(entries, left_out, len(waiting))


def _line(name: str, entry: FileInfo) -> str:
    if entry.kind is FileKind.DIRECTORY:
        return f"{name}/"
    if entry.kind is FileKind.FILE:
        return f"{name}  {entry.size} bytes"
    return f"{name}  ({entry.kind.value.replace('_', ' ')})"


def _listed(shown: int, left_out: int, unseen: int) -> str:
    if not left_out and not unseen:
        return f"[{shown} entries]"
    told = []
    if left_out:
        told.append(f"{left_out} more were left out")
    if unseen:
        told.append(f"{unseen} directories were not looked into")
    return (
        f"[{shown} entries shown, {' and '.join(told)}; "
        "give a higher limit, or the path of one directory]"
    )
