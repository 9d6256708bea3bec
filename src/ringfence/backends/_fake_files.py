"""A workspace in memory, with the errors that a real one has.

Links are not followed, also not those that stay inside. Everything is kept under its path, a
tuple of names; the workspace itself is the empty one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import (
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    NoSpaceError,
    PathError,
)
from ..models import FileInfo, FileKind

__all__ = ("MemoryFiles",)

_Parts = tuple[bytes, ...]


@dataclass
class _Node:
    kind: FileKind
    mode: int
    data: bytearray = field(default_factory=bytearray)
    mtime: float = field(default_factory=time.time)


class MemoryFiles:
    """One workspace.

    Args:
        max_bytes: Size of all files together, or None for no limit.
        max_files: Number of files and directories, or None for no limit.
    """

    def __init__(self, max_bytes: int | None, max_files: int | None) -> None:
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._nodes: dict[_Parts, _Node] = {(): _Node(FileKind.DIRECTORY, 0o755)}

    def plant(self, path: bytes, kind: FileKind, mode: int) -> None:
        """Put something there that no file operation makes: a link, a FIFO, a closed file."""
        parts = _parts(path)
        self._make_dirs(parts[:-1], path)
        self._add(parts, _Node(kind, mode), path)

    def write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        """Write a file, making the directories above it."""
        parts = _parts(path)
        node = self._nodes.get(parts)
        if node is None:
            self._make_dirs(parts[:-1], path)
            node = _Node(FileKind.FILE, 0o644)
            self._make_room(len(data), path)
            self._add(parts, node, path)
        else:
            node = self._regular(path, 0o222)
            self._make_room(len(data) - (0 if append else len(node.data)), path)
        node.data[len(node.data) if append else 0 :] = data
        node.mtime = time.time()
        if mode is not None:
            node.mode = mode & 0o7777

    def read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` from `offset`, and the whole size."""
        data = self._regular(path, 0o444).data
        return bytes(data[offset : offset + max_bytes]), len(data)

    def list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        """Return the first entries by the bytes of their names, and how many there are."""
        parts = _parts(path)
        self._directory(parts, path)
        names = sorted(key[-1] for key in self._below(parts) if len(key) == len(parts) + 1)
        found = [_info(name, self._nodes[*parts, name]) for name in names[:max_entries]]
        return found, len(names)

    def stat(self, path: bytes) -> FileInfo:
        """Describe a path; a link is described, not followed."""
        parts = _parts(path)
        return _info(parts[-1] if parts else b".", self._node(path))

    def make_dir(self, path: bytes) -> None:
        """Make a directory and those above it."""
        self._make_dirs(_parts(path), path)

    def remove(self, path: bytes) -> None:
        """Remove a file, or a directory with all that is in it."""
        parts = _parts(path)
        if not parts:
            raise PathError(_shown(path), "is the workspace itself and can't be removed")
        self._node(path)
        for key in [parts, *self._below(parts)]:
            del self._nodes[key]

    def move(self, path: bytes, target: bytes) -> None:
        """Rename, replacing a file that is at `target`."""
        source, goal = _parts(path), _parts(target)
        if not source or not goal:
            raise PathError(".", "is the workspace itself and can't be moved")
        node = self._node(path)
        self._directory(goal[:-1], target)
        there = self._nodes.get(goal)
        if goal == source:
            return
        if goal[: len(source)] == source:
            raise PathError(_shown(target), "is inside of what is to be moved")
        if there is not None and there.kind is FileKind.DIRECTORY:
            if node.kind is not FileKind.DIRECTORY:
                raise FileIsDirectoryError(_shown(target), "is a directory")
            if any(self._below(goal)):
                raise FileConflictError(_shown(target), "is a directory that is not empty")
        elif there is not None and node.kind is FileKind.DIRECTORY:
            raise FileNotDirectoryError(_shown(target), "is not a directory")
        for key in [source, *self._below(source)]:
            self._nodes[goal + key[len(source) :]] = self._nodes.pop(key)

    def _below(self, parts: _Parts) -> Iterator[_Parts]:
        """Yield the paths below a directory; safe while nodes are removed."""
        depth = len(parts)
        return (key for key in tuple(self._nodes) if len(key) > depth and key[:depth] == parts)

    def _node(self, path: bytes) -> _Node:
        parts = _parts(path)
        self._directory(parts[:-1], path)
        if parts not in self._nodes:
            raise FileMissingError(_shown(path), "does not exist")
        return self._nodes[parts]

    def _regular(self, path: bytes, permission: int) -> _Node:
        node, shown = self._node(path), _shown(path)
        if node.kind is FileKind.DIRECTORY:
            raise FileIsDirectoryError(shown, "is a directory")
        if node.kind is FileKind.SYMLINK:
            raise PathError(shown, "is a link", hint="links are not followed")
        if node.kind is not FileKind.FILE:
            raise FileKindError(shown, "is not a regular file")
        if not node.mode & permission:
            raise FilePermissionError(shown, "is closed to the sandbox's user")
        return node

    def _directory(self, parts: _Parts, path: bytes) -> None:
        for depth in range(len(parts) + 1):
            node = self._nodes.get(parts[:depth])
            if node is None:
                raise FileMissingError(_shown(path), "does not exist")
            if node.kind is FileKind.SYMLINK:
                raise PathError(_shown(path), "leads through a link")
            if node.kind is not FileKind.DIRECTORY:
                raise FileNotDirectoryError(_shown(path), "is not a directory")

    def _make_dirs(self, parts: _Parts, path: bytes) -> None:
        for depth in range(1, len(parts) + 1):
            if parts[:depth] not in self._nodes:
                self._add(parts[:depth], _Node(FileKind.DIRECTORY, 0o755), path)
        self._directory(parts, path)

    def _add(self, parts: _Parts, node: _Node, path: bytes) -> None:
        self._directory(parts[:-1], path)
        if self._max_files is not None and len(self._nodes) > self._max_files:
            raise NoSpaceError(_shown(path), f"the workspace holds {self._max_files} files")
        self._nodes[parts] = node

    def _make_room(self, more: int, path: bytes) -> None:
        used = sum(len(node.data) for node in self._nodes.values())
        if self._max_bytes is not None and used + more > self._max_bytes:
            raise NoSpaceError(_shown(path), f"the workspace holds {self._max_bytes} bytes")


def _parts(path: bytes) -> _Parts:
    return () if path == b"." else tuple(path.split(b"/"))


def _shown(path: bytes) -> str:
    return os.fsdecode(path)


def _info(name: bytes, node: _Node) -> FileInfo:
    return FileInfo(os.fsdecode(name), node.kind, len(node.data), node.mode, node.mtime)
