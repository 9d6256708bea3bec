"""Files on their way: written under a name that nobody looks at, then put in their place at once.

A draft is locked by the process that writes it, so whoever comes next can tell one that a dead
process left from one that is being written. All but `place_file` block.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from secrets import token_hex

import anyio
import anyio.to_thread

from .. import host_paths
from ..errors import FileMissingError, WorkspaceError
from ..host_paths import at, below, directory
from .keys import DRAFT_PREFIX
from .root import Root
from .store import Content, head_of

if sys.platform != "win32":
    import fcntl

__all__ = ("Draft", "is_draft", "place_file", "place_whole", "sweep")

_NAME = re.compile(re.escape(DRAFT_PREFIX.encode()) + rb"[0-9a-f]{16}")
_TRIES = 5
_SMALL = 512 << 10  # is written by one call in one thread
_NEW = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class Draft:
    """One file that is being written below `root`, which stays open until it is done.

    Args:
        root: The directory.
        mode: Of the file when it is in its place; until then it is 0600.

    Raises:
        WorkspaceError: From all methods; one of its children says why.
    """

    def __init__(self, root: Root, *, mode: int) -> None:
        self._root = root
        self._mode = mode
        self._hash = hashlib.sha256()
        self.size = 0
        self._fd: int | None = None
        self._name = b""
        while self._fd is None:
            self._create()

    @property
    def sha256(self) -> str:
        """Of what has been written, in hexadecimal."""
        return self._hash.hexdigest()

    def _create(self) -> None:
        self._name = f"{DRAFT_PREFIX}{token_hex(8)}".encode()
        place = self._root.place
        with host_paths.translated(self._name):
            fd = os.open(below(place, self._name), _NEW, 0o600, **at(place))
        if _lock(fd):
            self._fd = fd
        else:  # somebody swept it in the instant before it was locked
            os.close(fd)

    def write(self, data: bytes) -> None:
        """Add to it."""
        assert self._fd is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise WorkspaceError(os.fsdecode(self._name), error.strerror or "not written") from None
        self._hash.update(data)
        self.size += len(data)

    def commit(self, path: bytes, *, replace: bool = True) -> None:
        """Put it in its place, replacing a file or link that is there unless told not to."""
        assert self._fd is not None
        if sys.platform != "win32":
            os.fchmod(self._fd, self._mode)
        self._close_on_windows()
        for again in range(_TRIES):
            try:
                self._place(path, replace)
                break
            except FileMissingError:  # a directory that was removed as soon as it was there
                if again == _TRIES - 1:
                    raise
                self._root.forget()
        self._close()

    def _place(self, path: bytes, replace: bool) -> None:
        source = self._root.place
        target, name = self._root.above(path)
        draft, name = below(source, self._name), below(target, name)
        with host_paths.translated(path):
            if replace and sys.platform == "win32":
                os.replace(draft, name)
                return
            put = os.rename if replace else os.link
            put(draft, name, src_dir_fd=at(source)["dir_fd"], dst_dir_fd=at(target)["dir_fd"])
        if not replace:
            self._unlink()

    def discard(self) -> None:
        """Let nothing of it be left. Safe after the end."""
        if self._fd is not None:
            self._close_on_windows()
            self._unlink()
            self._close()

    def _unlink(self) -> None:
        place = self._root.place
        with suppress(OSError):
            os.unlink(below(place, self._name), **at(place))

    def _close(self) -> None:
        if self._fd is not None and self._fd >= 0:
            os.close(self._fd)
        self._fd = None

    def _close_on_windows(self) -> None:
        """Close what Windows would not rename or remove while it is open."""
        if sys.platform == "win32" and self._fd is not None and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def place_whole(
    root: Root, path: bytes, data: bytes, *, mode: int, replace: bool = True
) -> tuple[int, str]:
    """Do what `place_file` does with a content that is there, in this thread."""
    draft = Draft(root, mode=mode)
    try:
        draft.write(data)
        draft.commit(path, replace=replace)
    except BaseException:
        draft.discard()
        raise
    return draft.size, draft.sha256


async def place_file(
    root: str,
    path: bytes,
    content: Content,
    *,
    mode: int,
    made_mode: int,
    replace: bool = True,
    translated: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[int, str]:
    """Write a file below `root` and return its size and SHA-256; it is whole or not there.

    Args:
        root: The directory; links below it are not followed.
        path: Of the file.
        content: What it is to hold; an exception from it passes through as it is.
        mode: Of the file.
        made_mode: Of directories that have to be made.
        replace: Whether a file that is there is replaced.
        translated: Turns a `WorkspaceError` of the writing into another error.
    """
    first, is_all = b"", True
    if isinstance(content, bytes):
        first = content
    else:
        rest = aiter(content)
        first, is_all = await head_of(rest, _SMALL)

    def at_once() -> tuple[int, str]:
        with translated(), Root(root, made_mode=made_mode) as opened:
            return place_whole(opened, path, first, mode=mode, replace=replace)

    if is_all:
        return await anyio.to_thread.run_sync(at_once)
    ending = ExitStack()

    def begin() -> Draft:
        with translated(), ExitStack() as undo:
            draft = Draft(undo.enter_context(Root(root, made_mode=made_mode)), mode=mode)
            undo.callback(draft.discard)
            draft.write(first)
            ending.enter_context(undo.pop_all())
            return draft

    def go_on(part: bytes) -> None:
        with translated():
            draft.write(part)

    def end() -> None:
        with translated():
            draft.commit(path, replace=replace)

    draft = await anyio.to_thread.run_sync(begin)
    try:
        async for part in rest:
            await anyio.to_thread.run_sync(go_on, part)
        await anyio.to_thread.run_sync(end)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(ending.close)
    return draft.size, draft.sha256


def is_draft(name: bytes) -> bool:
    """Say whether a name is one that only drafts have."""
    return _NAME.fullmatch(name) is not None


def sweep(root: str) -> int:
    """Remove the drafts of dead processes, and return how many."""
    if sys.platform == "win32":  # a draft that is being written can't be told there
        return 0
    removed = 0
    with directory(root, b".") as place, os.scandir(place) as entries:
        for name in [os.fsencode(entry.name) for entry in entries]:
            if is_draft(name) and _is_abandoned(place, name):
                with suppress(FileNotFoundError):
                    os.unlink(below(place, name), **at(place))
                    removed += 1
    return removed


def _is_abandoned(place: int | str, name: bytes) -> bool:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(below(place, name), flags, **at(place))
    except OSError:
        return False  # not a draft of ours, or gone by now
    try:
        return _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    """Lock an open file until it is closed; False if another has it, or has removed it."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink > 0
