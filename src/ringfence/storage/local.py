"""Objects as files below one directory of this machine.

The directory is the owner's alone: 0700 and 0600. An object is written as a draft and renamed, so
a reader sees the old one or the new one, and nothing below the directory is reached by a link. What
a killed process left half written is removed by the next one that opens the store.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import anyio
import anyio.to_thread

from .. import host_files, host_paths
from ..errors import (
    ConfigError,
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    ObjectExistsError,
    ObjectKeyError,
    ObjectMissingError,
    PathError,
    StoreAccessError,
    StoreError,
    WorkspaceError,
)
from .drafts import place_file, place_whole, sweep
from .keys import check_key
from .root import Root
from .store import ArtifactStore, Content, StoredObject, Whole

__all__ = ("LocalStore",)

_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_PART_BYTES = 1 << 20

# What is wrong with a key on this file system, and no fault of the store as a whole.
_IN_THE_WAY = (
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileNotDirectoryError,
    PathError,
)


class LocalStore(ArtifactStore):
    """A store in a directory, made if need be.

    Args:
        directory: It belongs to the store: only what is below it under keys is looked at.

    Raises:
        ConfigError: It can't be made, or is no directory.
    """

    _together = 32

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(directory)
        self.name = f"directory {self._root}"
        try:
            os.makedirs(self._root, _DIRECTORY_MODE, exist_ok=True)
            sweep(self._root)
        except (OSError, WorkspaceError) as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"{self._root!r} is no directory for a store: {reason}") from None

    async def _put(
        self, key: str, content: Content, media_type: str, if_missing: bool
    ) -> StoredObject:
        try:
            size, sha256 = await place_file(
                self._root,
                key.encode(),
                content,
                mode=_FILE_MODE,
                made_mode=_DIRECTORY_MODE,
                replace=not if_missing,
                translated=partial(_translated, key),
            )
        except ObjectKeyError:
            if if_missing and await anyio.to_thread.run_sync(self._is_there, key):
                raise ObjectExistsError("exists already", key=key) from None
            raise
        return StoredObject(key, size, time.time(), sha256)

    async def _put_many(self, objects: Sequence[Whole]) -> list[StoredObject | StoreError]:
        return await anyio.to_thread.run_sync(self._place_all, objects)

    def _place_all(self, objects: Sequence[Whole]) -> list[StoredObject | StoreError]:
        with _translated(""), Root(self._root, made_mode=_DIRECTORY_MODE) as root:
            return [_place(root, one) for one in objects]

    def _is_there(self, key: str) -> bool:
        try:
            with _translated(key):
                host_files.read_file(self._root, key.encode(), 0, 0)
        except StoreError:
            return False
        return True

    async def _get(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        fd = await anyio.to_thread.run_sync(self._open, key)
        try:
            left = length
            while left is None or left > 0:
                wanted = _PART_BYTES if left is None else min(left, _PART_BYTES)
                data = await anyio.to_thread.run_sync(_read_at, fd, wanted, offset)
                if not data:
                    return
                yield data
                offset += len(data)
                left = None if left is None else left - len(data)
        finally:
            os.close(fd)

    def _open(self, key: str) -> int:
        """Open an object: what was opened stays the same if it is replaced."""
        with _translated(key):
            return host_files.open_file(self._root, key.encode())

    async def _head(self, key: str) -> StoredObject:
        return await anyio.to_thread.run_sync(self._describe, key)

    def _describe(self, key: str) -> StoredObject:
        fd = self._open(key)
        with host_paths.closing(fd):
            found = hashlib.sha256()
            while data := os.read(fd, _PART_BYTES):
                found.update(data)
            info = os.fstat(fd)
            return StoredObject(key, info.st_size, info.st_mtime, found.hexdigest())

    async def _list(self, prefix: str) -> AsyncGenerator[StoredObject, None]:
        waiting = [prefix]
        while waiting:
            files, inner = await anyio.to_thread.run_sync(self._look, waiting.pop())
            waiting += inner
            for found in files:
                yield found

    def _look(self, place: str) -> tuple[list[StoredObject], list[str]]:
        """Return the objects of one directory, and the directories in it."""
        files: list[StoredObject] = []
        inner: list[str] = []
        above = f"{place}/" if place else ""
        try:
            with (
                _translated(place),
                host_paths.directory(self._root, place.encode() or b".") as opened,
                os.scandir(opened) as entries,
            ):
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    if not _is_key(above + entry.name):  # a draft, or none of ours
                        continue
                    if stat.S_ISDIR(info.st_mode):
                        inner.append(above + entry.name)
                    elif stat.S_ISREG(info.st_mode):
                        files.append(StoredObject(above + entry.name, info.st_size, info.st_mtime))
        except (ObjectMissingError, ObjectKeyError):
            return [], []  # none, removed meanwhile, or an object itself
        return files, inner

    async def _delete(self, key: str) -> None:
        await anyio.to_thread.run_sync(self._remove, key)

    def _remove(self, key: str) -> None:
        """Remove an object, and the directories that it leaves empty."""
        try:
            with _translated(key):
                path = key.encode()
                with host_paths.parent(self._root, path) as (where, name):
                    if not stat.S_ISREG(os.lstat(name, **where).st_mode):
                        return
                    os.unlink(name, **where)
                while path := path.rpartition(b"/")[0]:
                    with host_paths.parent(self._root, path) as (where, name):
                        os.rmdir(name, **where)
        except (ObjectMissingError, ObjectKeyError):
            return  # there was none, or a directory has more in it


def _place(root: Root, one: Whole) -> StoredObject | StoreError:
    try:
        with _translated(one.key):
            size, sha256 = place_whole(root, one.key.encode(), one.content, mode=_FILE_MODE)
    except StoreError as error:
        return error
    return StoredObject(one.key, size, time.time(), sha256)


def _read_at(fd: int, wanted: int, offset: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, wanted)


def _is_key(text: str) -> bool:
    try:
        check_key(text)
    except ObjectKeyError:
        return False
    return True


@contextmanager
def _translated(key: str) -> Iterator[None]:
    """Turn the errors of files into those of stores."""
    try:
        yield
    except FileMissingError:
        raise ObjectMissingError("does not exist", key=key) from None
    except FilePermissionError as error:
        raise StoreAccessError(_reason(error), key=key) from None
    except _IN_THE_WAY as error:
        raise ObjectKeyError(_reason(error), key=key) from None
    except WorkspaceError as error:
        raise StoreError(_reason(error), key=key) from None


def _reason(error: WorkspaceError) -> str:
    return error.message.removeprefix(f"{error.path!r}: ")
