"""Reaching names below one workspace directory of the host through no link.

On POSIX every part of a path is opened from the directory before it, so that a program that
renames and links in the same instant leads nowhere else. Windows has no such opens; there the
resolved path must lie in the workspace, which such a program can get around.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import stat as stats
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypedDict

from .errors import (
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    FileTooLargeError,
    NoSpaceError,
    PathError,
    WorkspaceError,
)

__all__ = ("At", "at", "below", "closing", "directory", "empty", "parent", "translated")

_DIRECTORY = (
    os.O_RDONLY
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)

_REMOVE_SECONDS = 60.0
"""How long removing may take against a program that goes on making files."""

_ERRORS: dict[int, type[WorkspaceError]] = {
    errno.ENOENT: FileMissingError,
    errno.EISDIR: FileIsDirectoryError,
    errno.ENOTDIR: FileNotDirectoryError,
    errno.EACCES: FilePermissionError,
    errno.EPERM: FilePermissionError,
    errno.EROFS: FilePermissionError,
    errno.ENXIO: FileKindError,
    errno.EFBIG: FileTooLargeError,
    errno.EEXIST: FileConflictError,
    errno.ENOTEMPTY: FileConflictError,
    errno.ENOSPC: NoSpaceError,
    errno.EDQUOT: NoSpaceError,
    errno.ELOOP: PathError,
    errno.EXDEV: PathError,
    errno.ENAMETOOLONG: PathError,
    errno.EINVAL: PathError,
}


class At(TypedDict):
    """What to give a call of `os` so that it works below an open directory."""

    dir_fd: int | None


def empty(place: int | str) -> None:
    """Remove all that is in a directory, however deep, with two open descriptors at most.

    A directory's own subdirectories are renamed up to the top one first, so that neither the
    stack nor the number of open files grows with a depth that the sandbox chose.
    """
    deadline = time.monotonic() + _REMOVE_SECONDS
    while names := _batch(place):
        if time.monotonic() > deadline:
            raise FileConflictError(".", "is filled as fast as it is emptied")
        for name, is_dir in names:
            if not is_dir:
                os.unlink(below(place, name), **at(place))
                continue
            with _child_directory(place, name) as child:
                while inner := _batch(child):
                    for inner_name, inner_is_dir in inner:
                        if inner_is_dir:
                            _lift(child, inner_name, place)
                        else:
                            os.unlink(below(child, inner_name), **at(child))
            os.rmdir(below(place, name), **at(place))


def _batch(place: int | str) -> list[tuple[bytes, bool]]:
    """Return some of the entries of a directory, and which of them are directories."""
    with os.scandir(place) as entries:
        return [
            (os.fsencode(entry.name), entry.is_dir(follow_symlinks=False))
            for entry in itertools.islice(entries, 10_000)
        ]


def _lift(child: int | str, name: bytes, place: int | str) -> None:
    """Move a directory up to the top one under a name that nothing has."""
    new_name = f".removed-{secrets.token_hex(8)}".encode()
    if not isinstance(child, int) or not isinstance(place, int):
        os.rename(below(child, name), below(place, new_name))
        return
    try:
        os.rename(name, new_name, src_dir_fd=child, dst_dir_fd=place)
    except PermissionError:  # a directory that changes its parent must be writable itself
        os.chmod(name, 0o700, dir_fd=child)
        os.rename(name, new_name, src_dir_fd=child, dst_dir_fd=place)


@contextmanager
def _child_directory(place: int | str, name: bytes) -> Iterator[int | str]:
    """Open a directory for emptying it, also one that its owner has closed to himself."""
    if not isinstance(place, int):
        yield os.fsdecode(below(place, name))
        return
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=place)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=place)
        fd = os.open(name, _DIRECTORY, dir_fd=place)
    with closing(fd):
        if not os.fstat(fd).st_mode & stats.S_IWUSR:
            os.chmod(fd, 0o700)
        yield fd


def at(place: int | str) -> At:
    """Return the arguments that make a call work below an open directory."""
    return {"dir_fd": place if isinstance(place, int) else None}


def below(place: int | str, name: bytes) -> bytes:
    """Return what to call an entry there: its bare name below an open directory."""
    if isinstance(place, int):
        return name
    return os.path.join(os.fsencode(place), name)


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def translated(path: bytes) -> Iterator[None]:
    """Turn the system's errors into ours, with the path that was asked for."""
    try:
        yield
    except WorkspaceError:
        raise
    except OSError as error:
        kind = _ERRORS.get(error.errno or 0, WorkspaceError)
        raise kind(os.fsdecode(path), os.strerror(error.errno or 0)) from error


@contextmanager
def directory(
    root: int | str, path: bytes, *, make: bool = False, made_mode: int = 0o755
) -> Iterator[int | str]:
    """Open a directory below the workspace: its descriptor, or its path on Windows.

    The workspace is named by its path, or by what this has yielded for it.
    """
    with translated(path), _opened(root, path, made_mode if make else None) as place:
        yield place


@contextmanager
def parent(
    root: str, path: bytes, *, make: bool = False, made_mode: int = 0o755
) -> Iterator[tuple[At, bytes]]:
    """Open the directory above a path; yields how to reach the last part, and its name."""
    above, _, name = path.rpartition(b"/")
    with translated(path), _opened(root, above or b".", made_mode if make else None) as place:
        yield at(place), below(place, name)


@contextmanager
def _opened(root: int | str, path: bytes, make: int | None) -> Iterator[int | str]:
    """Open a directory; with `make`, make what is missing of it with that mode."""
    parts = [] if path == b"." else path.split(b"/")
    if sys.platform == "win32":
        yield _resolved(str(root), parts, make)
    else:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fd = os.dup(root) if isinstance(root, int) else os.open(root, flags)
        try:
            for part in parts:
                inner = _open_part(fd, part, path, make)
                os.close(fd)
                fd = inner
            yield fd
        finally:
            os.close(fd)


def _open_part(fd: int, part: bytes, path: bytes, make: int | None) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        if make is None:
            raise
    except OSError as error:
        # Linux says "not a directory" of a link too; the caller should know which it is.
        maybe_link = error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK)
        if maybe_link and stats.S_ISLNK(os.lstat(part, dir_fd=fd).st_mode):
            raise PathError(os.fsdecode(path), "leads through a link") from None
        raise
    with suppress(FileExistsError):
        os.mkdir(part, make, dir_fd=fd)
    return os.open(part, _DIRECTORY, dir_fd=fd)


def _resolved(root: str, parts: list[bytes], make: int | None) -> str:
    """Return a directory's real path where there are no opens below a directory."""
    base = os.path.realpath(root)
    target = os.path.realpath(os.path.join(base, *(os.fsdecode(part) for part in parts)))
    if os.path.commonpath([base, target]) != base:
        raise PathError(os.fsdecode(b"/".join(parts)), "leads outside of the workspace")
    if make is not None:
        try:
            os.makedirs(target, make, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    return target
