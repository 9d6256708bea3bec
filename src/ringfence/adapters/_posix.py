"""File operations as the usual programs do them, where a sandbox's own ones do more or less."""

from __future__ import annotations

from ..backend import Sandbox
from ..errors import (
    FileConflictError,
    FileIsDirectoryError,
    FileMissingError,
    FileNotDirectoryError,
    FileTooLargeError,
)
from ..models import FileInfo, FileKind

__all__ = ("listed", "make_dir", "remove")


async def listed(sandbox: Sandbox, path: str) -> list[tuple[str, FileInfo]]:
    """Return what is in a directory, or a path that is none by itself, each with its path.

    Raises:
        FileTooLargeError: The directory has more than 10,000 entries.
        WorkspaceError: Another of its children says why.
    """
    try:
        found = await sandbox.list_files(path)
    except FileNotDirectoryError:
        return [(path, await sandbox.stat(path))]
    if found.truncated:
        raise FileTooLargeError(
            path,
            f"has {found.total} entries, more than one call lists",
            hint="list it with a command, in parts",
        )
    return [(f"{path.rstrip('/')}/{entry.name}", entry) for entry in found.entries]


async def remove(sandbox: Sandbox, path: str, recursive: bool) -> None:
    """Remove a file or a link; with `recursive` also a directory, or nothing.

    Raises:
        FileIsDirectoryError: It is a directory.
        WorkspaceError: Another of its children says why.
    """
    if not recursive and (await sandbox.stat(path)).kind is FileKind.DIRECTORY:
        raise FileIsDirectoryError(path, "is a directory", backend=sandbox.backend)
    try:
        await sandbox.remove(path)
    except FileMissingError:
        if not recursive:
            raise


async def make_dir(sandbox: Sandbox, path: str, parents: bool) -> None:
    """Make a directory; with `parents` also those above, and one that exists is fine.

    Raises:
        FileConflictError: It exists.
        FileMissingError: The directory above does not.
        WorkspaceError: Another of its children says why.
    """
    if not parents:
        if await _kind(sandbox, path) is not None:
            raise FileConflictError(path, "exists", backend=sandbox.backend)
        if await _kind(sandbox, path.rpartition("/")[0] or ".") is None:
            raise FileMissingError(path, "the directory above it does not exist")
    await sandbox.make_dir(path)


async def _kind(sandbox: Sandbox, path: str) -> FileKind | None:
    try:
        return (await sandbox.stat(path)).kind
    except FileMissingError:
        return None
