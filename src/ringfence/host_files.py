"""File operations done by the host itself, below one workspace directory.

For backends without a warden inside. Whatever runs in the sandbox may rename, link and replace
things while we look, so nothing is trusted by its name: on POSIX every part of a path is opened
from the directory before it and no link is followed, also not one that stays inside. A file is
opened without blocking and used only if what was opened is a regular file. Windows has no such
opens; there the resolved path must lie in the workspace, which a program that swaps links in the
same instant can get around.

All functions block; callers run them in a thread.
"""

from __future__ import annotations

import heapq
import os
import stat as stats
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import FileIsDirectoryError, FileKindError, PathError
from .host_paths import At, at, below, closing, directory, empty, parent
from .models import FileInfo, FileKind

__all__ = (
    "held_directory",
    "list_files",
    "make_dir",
    "move",
    "open_file",
    "read_file",
    "remove",
    "remove_tree",
    "stat",
    "write_file",
)

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_REGULAR = (
    _NOFOLLOW
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO without a partner would block the open for ever
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_CHUNK = 1024 * 1024

_KINDS = {
    stats.S_IFREG: FileKind.FILE,
    stats.S_IFDIR: FileKind.DIRECTORY,
    stats.S_IFLNK: FileKind.SYMLINK,
    stats.S_IFIFO: FileKind.FIFO,
    stats.S_IFSOCK: FileKind.SOCKET,
    stats.S_IFCHR: FileKind.CHARACTER_DEVICE,
    stats.S_IFBLK: FileKind.BLOCK_DEVICE,
}


def write_file(root: str, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
    """Write a file, making the directories above it; `mode` None is 0644 for a new one."""
    with parent(root, path, make=True) as (where, name):
        _refuse_special(where, name, path, missing_ok=True)
        try:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _REGULAR, 0o600, **where)
            mode = 0o644 if mode is None else mode
        except FileExistsError:
            fd = os.open(name, os.O_WRONLY | _REGULAR, **where)
        with closing(fd):
            _require_regular(fd, path)
            if append:
                os.lseek(fd, 0, os.SEEK_END)
            else:
                os.ftruncate(fd, 0)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view[:_CHUNK]) :]
            if mode is not None and sys.platform != "win32":
                os.fchmod(fd, mode & 0o7777)


def read_file(root: str, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
    """Return at most `max_bytes` from `offset`, and the whole size in bytes."""
    with parent(root, path) as (where, name):
        _refuse_special(where, name, path)
        with closing(os.open(name, os.O_RDONLY | _REGULAR, **where)) as fd:
            size = _require_regular(fd, path)
            os.lseek(fd, offset, os.SEEK_SET)
            parts, left = [], min(max_bytes, max(0, size - offset))
            while left and (part := os.read(fd, min(left, _CHUNK))):
                parts.append(part)
                left -= len(part)
            return b"".join(parts), size


def open_file(root: str, path: bytes) -> int:
    """Open a regular file for reading and return its descriptor, which the caller closes."""
    with parent(root, path) as (where, name):
        _refuse_special(where, name, path)
        fd = os.open(name, os.O_RDONLY | _REGULAR, **where)
        try:
            _require_regular(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return fd


def list_files(root: str, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
    """Return the first entries by the bytes of their names, and how many there are."""
    with directory(root, path) as place:
        total = 0

        def names() -> Iterator[bytes]:
            nonlocal total
            with os.scandir(place) as entries:
                for entry in entries:
                    total += 1
                    yield os.fsencode(entry.name)

        first = heapq.nsmallest(max_entries, names())
        if max_entries == 0:
            total = sum(1 for _ in names())  # nsmallest(0) does not look at a single one
        found = []
        for name in first:
            try:
                found.append(_file_info(name, os.lstat(below(place, name), **at(place))))
            except FileNotFoundError:
                total -= 1  # removed since; it would be wrong to show it
        return found, total


def stat(root: str, path: bytes) -> FileInfo:
    """Describe a path; a link is described, not followed."""
    with parent(root, path) as (where, name):
        return _file_info(path.rsplit(b"/", 1)[-1], os.lstat(name, **where))


def make_dir(root: str, path: bytes) -> None:
    """Make a directory and those above it."""
    with directory(root, path, make=True):
        pass


def move(root: str, path: bytes, target: bytes) -> None:
    """Rename within the workspace, replacing a file that is at `target`."""
    if b"." in (path, target):
        raise PathError(".", "is the workspace itself and can't be moved")
    with parent(root, path) as (source_dir, source):
        os.lstat(source, **source_dir)  # what is missing is named as the source, not the target
        with parent(root, target) as (target_dir, name):
            if sys.platform == "win32":
                os.replace(source, name)
            else:
                os.rename(
                    source, name, src_dir_fd=source_dir["dir_fd"], dst_dir_fd=target_dir["dir_fd"]
                )


def remove(root: str, path: bytes) -> None:
    """Remove a file, a link, or a directory with all that is in it."""
    if path == b".":
        raise PathError(".", "is the workspace itself and can't be removed")
    with parent(root, path) as (where, name):
        if not stats.S_ISDIR(os.lstat(name, **where).st_mode):
            os.unlink(name, **where)
            return
        with directory(root, path) as place:
            empty(place)
        os.rmdir(name, **where)


def remove_tree(root: str) -> None:
    """Remove a whole workspace from the host, also one that its owner has closed to himself."""
    os.chmod(root, 0o700)
    with directory(root, b".") as place:
        empty(place)
    os.rmdir(root)


@contextmanager
def held_directory(root: str, path: bytes) -> Iterator[str]:
    """Yield a name for a directory, as the cwd of a child, that is reached through no link.

    On Linux the name means the directory that was looked at, whatever its path leads to by then.
    """
    with directory(root, path) as place:
        if sys.platform == "linux":
            yield f"/proc/self/fd/{place}"
        else:
            yield root if path == b"." else os.path.join(root, os.fsdecode(path))


def _require_regular(fd: int, path: bytes) -> int:
    """Refuse an open file that is not a regular one; returns its size."""
    info = os.fstat(fd)
    if not stats.S_ISREG(info.st_mode):
        raise FileKindError(os.fsdecode(path), "is not a regular file")
    return info.st_size


def _refuse_special(where: At, name: bytes, path: bytes, missing_ok: bool = False) -> None:
    """Refuse what is not a regular file without opening it: an open can have effects."""
    try:
        mode = os.lstat(name, **where).st_mode
    except FileNotFoundError:
        if missing_ok:
            return
        raise
    shown = os.fsdecode(path)
    if stats.S_ISDIR(mode):
        raise FileIsDirectoryError(shown, "is a directory")
    if stats.S_ISLNK(mode):
        raise PathError(shown, "is a link", hint="links are not followed")
    if not stats.S_ISREG(mode):
        raise FileKindError(shown, "is not a regular file")


def _file_info(name: bytes, info: os.stat_result) -> FileInfo:
    return FileInfo(
        name=os.fsdecode(name),
        kind=_KINDS.get(stats.S_IFMT(info.st_mode), FileKind.UNKNOWN),
        size=info.st_size,
        mode=stats.S_IMODE(info.st_mode),
        mtime=info.st_mtime,
    )
