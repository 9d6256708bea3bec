"""The files of a sandbox's workspace: what a backend must implement, and what users call."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, final

import anyio

from ..errors import (
    CommandError,
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    FileTooLargeError,
    PathError,
    SandboxError,
    WorkspaceError,
)
from ..models import FileInfo, Listing
from .commands import workspace_path

__all__ = (
    "DEFAULT_LIST_ENTRIES",
    "NOT_BEGUN",
    "UNDO_SECONDS",
    "NewFile",
    "SandboxFiles",
)

DEFAULT_LIST_ENTRIES = 10_000
DEFAULT_READ_BYTES = 64 * 1024 * 1024


NOT_BEGUN = (
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    PathError,
)
"""What says of a writing that it has changed nothing: what is there under the name is another's."""

UNDO_SECONDS = 5.0
"""Until the removal of a file that could not be written whole is given up."""


@dataclass(frozen=True)
class NewFile:
    """A small file that is to be written together with others.

    Attributes:
        path: Relative, without `..`.
        data: The whole content.
        mode: Permission bits; None for 0644, or those of the file that it replaces.
    """

    path: bytes
    data: bytes
    mode: int | None = None


class SandboxFiles(ABC):
    """What of a sandbox is about its files."""

    backend: str
    """The name of the backend that made it."""
    workspace: str = "/workspace"
    """The directory that is its workspace, as its programs see it."""

    # What a backend must implement.

    @abstractmethod
    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        """Write a file below the workspace; `path` is relative and has no `..`."""

    @abstractmethod
    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` from `offset`, and the file's whole size."""

    @abstractmethod
    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        """Return the first entries by the bytes of their names, and how many there are."""

    @abstractmethod
    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        """Run one of the small operations; `target` matters to `move` alone."""

    async def _read_files(
        self, paths: Sequence[bytes], max_bytes: int
    ) -> list[bytes | WorkspaceError | None]:
        """Read many small files at once, if there is a quicker way than one after the other.

        Some hundreds of paths always fit into one call.

        Args:
            paths: Relative, without `..`.
            max_bytes: Of all together.

        Returns:
            For each path its whole content, or the error that it alone has, or None: it is to be
            read by itself, as too large for this call or because there is no quicker way.
        """
        return [None] * len(paths)

    async def _write_files(self, files: Sequence[NewFile]) -> list[WorkspaceError | None]:
        """Write small files, each as `write_file` does; a backend may have a way for all at once.

        Some hundreds of files always fit into one call, of some MiB together. Of one that fails,
        or during which this is cancelled, nothing is left unless it was not begun; what was
        written before stays.

        Returns:
            For each file None if it was written, or the error that it alone has.
        """
        return [await self._write_whole(file) for file in files]

    async def _write_whole(self, file: NewFile) -> WorkspaceError | None:
        try:
            await self._write_file(file.path, file.data, file.mode, append=False)
        except BaseException as error:
            if not isinstance(error, NOT_BEGUN):
                with anyio.move_on_after(UNDO_SECONDS, shield=True), suppress(SandboxError):
                    await self._file_operation("remove", file.path, b"")
            if isinstance(error, WorkspaceError):
                return error
            raise
        return None

    # What users call.

    @final
    async def write_file(
        self, path: str | bytes, data: bytes | str, *, mode: int | None = None, append: bool = False
    ) -> None:
        """Write a file, making the directories above it.

        Args:
            path: In the workspace: relative to it, or absolute below `/workspace`.
            data: The whole content; text is encoded as UTF-8.
            mode: Permission bits; default 0644 for a new file, unchanged for an existing one.
            append: Add to the end instead of replacing the content.

        Raises:
            WorkspaceError: One of its children says why.
        """
        raw = data.encode() if isinstance(data, str) else bytes(data)
        await self._write_file(workspace_path(path, self.workspace), raw, mode, append)

    @final
    async def read_file(
        self, path: str | bytes, *, offset: int = 0, max_bytes: int | None = None
    ) -> bytes:
        """Return a file's content.

        Args:
            path: In the workspace.
            offset: Where to begin.
            max_bytes: Return at most this much. Without it the whole rest is returned, and a rest
                of more than 64 MiB is refused.

        Raises:
            FileTooLargeError: No `max_bytes` was given and the rest is over 64 MiB.
            WorkspaceError: One of its children says why.
        """
        if offset < 0 or (max_bytes is not None and max_bytes < 0):
            raise CommandError("offset and max_bytes must be 0 or more")
        name = workspace_path(path, self.workspace)
        limit = DEFAULT_READ_BYTES if max_bytes is None else max_bytes
        data, size = await self._read_file(name, offset, limit)
        if max_bytes is None and size - offset > limit:
            raise FileTooLargeError(
                os.fsdecode(name),
                f"has {size} bytes, over the limit of {limit} for one call",
                backend=self.backend,
                hint="give offset and max_bytes to read it in parts",
            )
        return data

    @final
    async def list_files(
        self, path: str | bytes = ".", *, max_entries: int = DEFAULT_LIST_ENTRIES
    ) -> Listing:
        """Return a directory's entries, sorted, with the number that there really are."""
        if max_entries < 0:
            raise CommandError("max_entries must be 0 or more")
        entries, total = await self._list_files(workspace_path(path, self.workspace), max_entries)
        return Listing(tuple(entries), total)

    @final
    async def stat(self, path: str | bytes) -> FileInfo:
        """Describe a path; a link is described, not followed."""
        info = await self._file_operation("stat", workspace_path(path, self.workspace), b"")
        assert info is not None
        return info

    @final
    async def make_dir(self, path: str | bytes) -> None:
        """Make a directory and those above it; one that exists is fine."""
        await self._file_operation("make_dir", workspace_path(path, self.workspace), b"")

    @final
    async def remove(self, path: str | bytes) -> None:
        """Remove a file, a link, or a directory with all that is in it."""
        await self._file_operation("remove", workspace_path(path, self.workspace), b"")

    @final
    async def move(self, path: str | bytes, target: str | bytes) -> None:
        """Rename within the workspace, replacing a file that is at `target`."""
        await self._file_operation(
            "move", workspace_path(path, self.workspace), workspace_path(target, self.workspace)
        )
