"""What a warden says has failed, as typed errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import NoReturn

from ..errors import (
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    FileTooLargeError,
    LimitError,
    NoSpaceError,
    PathError,
    SandboxError,
    UnsupportedError,
    WorkspaceError,
)
from .answers import NOT_A_FILE

__all__ = ("file_error", "no_process", "raise_file_error", "terminal_error")

_FILE_ERRORS: Mapping[int, tuple[type[WorkspaceError], str]] = {
    errno.ENOENT: (FileMissingError, "does not exist"),
    errno.EISDIR: (FileIsDirectoryError, "is a directory"),
    errno.ENOTDIR: (FileNotDirectoryError, "is not a directory, or a part above it is not"),
    errno.EACCES: (FilePermissionError, "is not permitted to the sandbox's user"),
    errno.EPERM: (FilePermissionError, "is not permitted to the sandbox's user"),
    errno.EROFS: (FilePermissionError, "is on a read-only file system"),
    NOT_A_FILE: (FileKindError, "is not a regular file"),
    errno.ENXIO: (FileKindError, "is not a regular file"),
    errno.EXDEV: (PathError, "leads outside of the workspace"),
    errno.ELOOP: (PathError, "leads through a link that can't be followed"),
    errno.ENAMETOOLONG: (PathError, "is too long"),
    errno.EINVAL: (PathError, "is not a path for this operation"),
    errno.EBUSY: (PathError, "is the workspace itself"),
    errno.EEXIST: (FileConflictError, "exists already"),
    errno.ENOTEMPTY: (FileConflictError, "is a directory that is not empty"),
    errno.ENOSPC: (NoSpaceError, "does not fit: the size or inode limit is reached"),
    errno.EDQUOT: (NoSpaceError, "does not fit: the quota is reached"),
    errno.EFBIG: (FileTooLargeError, "is too large"),
}

_SHORT_OF_TERMINALS = (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def terminal_error(code: int, backend: str) -> SandboxError:
    """Return the error for an errno with which no terminal could be opened."""
    text = f"no terminal could be opened for the command: {os.strerror(code)}"
    if code in _SHORT_OF_TERMINALS:
        hint = "programs hold so many that there is none left"
        return LimitError("terminals", text, backend=backend, hint=hint)
    return UnsupportedError(text, backend=backend, hint="it needs /dev/ptmx inside")


def no_process(what: str, code: int, backend: str) -> LimitError:
    """Return the error for an errno with which no process could be started for `what`."""
    return LimitError(
        "pids",
        f"no process could be started for {what}: {os.strerror(code)}",
        backend=backend,
        hint="the sandbox's processes have used its limit up",
    )


def raise_file_error(code: int, path: bytes, backend: str) -> NoReturn:
    """Raise the typed error for an errno that a file operation ended with."""
    raise file_error(code, path, backend)


def file_error(code: int, path: bytes, backend: str) -> WorkspaceError:
    """Return the typed error for an errno that a file operation had with a path."""
    shown = os.fsdecode(path)
    found = _FILE_ERRORS.get(code)
    if found is None:
        return WorkspaceError(shown, os.strerror(code), backend=backend)
    kind, text = found
    return kind(shown, text, backend=backend)
