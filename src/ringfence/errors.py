"""The faults of a sandbox, as a tree of typed errors.

A program that fails is a result, never one of these. An error here says that the sandbox
could not do what it was asked::

    SandboxError
    ├── ConfigError (ValueError)            a setting that can't be right
    ├── CommandError (ValueError)           a command that can't be run anywhere: NUL, no argv
    ├── ToolError (ValueError)              arguments that an agent's tool can't take
    ├── LimitError (ValueError)             a limit above the plan, or one nobody can enforce
    ├── UnsupportedError                    this backend does not have what was asked for
    ├── BackendUnavailableError             the backend can't run on this machine
    │   ├── MissingDependencyError (ImportError)
    │   └── BackendUnreachableError (ConnectionError)
    │       └── BackendUntrustedError       we and the daemon don't trust one another
    ├── CreateError                         a sandbox could not be made
    │   └── CreateTimeoutError (TimeoutError)
    ├── ImageError                          an image could not be had or made
    ├── PoolError                           a pool could not do what it was asked
    │   ├── PoolClosedError                 it is not open
    │   └── PoolTimeoutError (TimeoutError) no sandbox came free in time
    ├── SandboxClosedError                  used after aclose()
    ├── CommandMissingError (LookupError)   a background command that is not there
    ├── ContextError                        a code context could not do what it was asked
    │   ├── KernelMissingError              the sandbox has no kernel to make one of
    │   ├── ContextMissingError (LookupError)
    │   └── ContextLostError                its kernel died; its variables are gone
    ├── SessionElsewhereError               another worker holds the execution's sandbox
    ├── LeaseStoreError                     who holds what can't be asked or written now
    ├── SandboxLostError                    it died; the workspace is gone with it
    │   └── ProtocolError                   what came out of it was not the protocol
    ├── StreamBrokenError                   the way to it broke; it lives, its commands do not
    ├── StoreError                          an artifact store could not do what it was asked
    │   ├── ObjectKeyError (ValueError)     a key that can't be used
    │   ├── ObjectMissingError (FileNotFoundError)
    │   ├── ObjectExistsError (FileExistsError)
    │   ├── StoreAccessError (PermissionError)
    │   └── StoreUnreachableError (ConnectionError)
    └── WorkspaceError                      a file operation failed
        ├── PathError (ValueError)          a path that leads outside, or is no path
        ├── FileMissingError (FileNotFoundError)
        ├── FileIsDirectoryError (IsADirectoryError)
        ├── FileNotDirectoryError (NotADirectoryError)
        ├── FilePermissionError (PermissionError)
        ├── FileKindError                   a FIFO, socket or device where a file is needed
        ├── FileTooLargeError
        ├── FileConflictError (FileExistsError)
        └── NoSpaceError                    a size or inode limit was reached

`models.CommandFailedError` is no part of it: a program's failure is a result, and only
`Result.check()` turns it into an exception.

Every `SandboxError` has a stable `code`, says whether trying again can help (`retryable`), which
`backend` it came from and, where we know one, the mend (`hint`).
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar

__all__ = (
    "BackendUnavailableError",
    "BackendUnreachableError",
    "BackendUntrustedError",
    "CommandError",
    "CommandMissingError",
    "ConfigError",
    "ContextError",
    "ContextLostError",
    "ContextMissingError",
    "CreateError",
    "CreateTimeoutError",
    "FileConflictError",
    "FileIsDirectoryError",
    "FileKindError",
    "FileMissingError",
    "FileNotDirectoryError",
    "FilePermissionError",
    "FileTooLargeError",
    "ImageError",
    "IsolationWarning",
    "KernelMissingError",
    "LeaseStoreError",
    "LimitError",
    "MissingDependencyError",
    "NoSpaceError",
    "ObjectExistsError",
    "ObjectKeyError",
    "ObjectMissingError",
    "PathError",
    "PoolClosedError",
    "PoolError",
    "PoolTimeoutError",
    "ProtocolError",
    "SandboxClosedError",
    "SandboxError",
    "SandboxLostError",
    "SessionElsewhereError",
    "StoreAccessError",
    "StoreError",
    "StoreUnreachableError",
    "StreamBrokenError",
    "ToolError",
    "UnsupportedError",
    "WorkspaceError",
)


class IsolationWarning(UserWarning):
    """Code is about to run with less isolation than its caller may think."""


class SandboxError(Exception):
    """The sandbox could not do what it was asked.

    Attributes:
        code: A stable lower-case name of the fault, for programs.
        retryable: Whether the same call can succeed if it is made again.
        backend: The backend's name, or None where none was chosen yet.
        hint: What to do about it, or None.
    """

    code: ClassVar[str] = "sandbox_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, backend: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.backend = backend
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # What comes by default calls the class with its message alone, which most leaves refuse.
        state = {**vars(self), "args": self.args}
        if isinstance(self, OSError):
            state["errno"] = self.errno
        return _blank, (type(self),), state


def _blank(kind: type[SandboxError]) -> SandboxError:
    return kind.__new__(kind)


class ConfigError(SandboxError, ValueError):
    """A setting is unknown, malformed or contradicts another."""

    code = "config"


class CommandError(SandboxError, ValueError):
    """A command that no backend can run: an empty argv, a NUL, a bad name or timeout."""

    code = "command"


class ToolError(SandboxError, ValueError):
    """A model has called a tool with arguments that it can't take; the text tells it what to do."""

    code = "tool"


class LimitError(SandboxError, ValueError):
    """A limit was asked for that is above what is allowed or that can't be enforced here.

    Attributes:
        limit: The name of the limit: a field of `Limits`, or of a plan.
        plan: The plan that sets it, or None where no plan does.
    """

    code = "limit"

    def __init__(
        self,
        limit: str,
        message: str,
        *,
        plan: str | None = None,
        backend: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, hint=hint)
        self.limit = limit
        self.plan = plan


class UnsupportedError(SandboxError):
    """The backend does not have what was asked for; its `capabilities` say so too."""

    code = "unsupported"


class BackendUnavailableError(SandboxError):
    """The backend can't run on this machine; the message says what blocks it."""

    code = "backend_unavailable"


class MissingDependencyError(BackendUnavailableError, ImportError):
    """A package that the backend needs is not installed; the hint names the extra."""

    code = "missing_dependency"


class BackendUnreachableError(BackendUnavailableError, ConnectionError):
    """The daemon or service behind the backend does not answer."""

    code = "backend_unreachable"
    retryable = True


class BackendUntrustedError(BackendUnreachableError):
    """The daemon behind the backend is there, and its certificate or ours is not taken."""

    code = "backend_untrusted"
    retryable = False


class CreateError(SandboxError):
    """A sandbox could not be made; whatever was begun has been undone."""

    code = "create"


class CreateTimeoutError(CreateError, TimeoutError):
    """A sandbox was not ready within its start-up deadline; it has been destroyed."""

    code = "create_timeout"
    retryable = True


class ImageError(SandboxError):
    """An image could not be fetched, built or imported; the message has what was said last."""

    code = "image"


class PoolError(SandboxError):
    """A pool of sandboxes could not do what it was asked."""

    code = "pool"


class PoolClosedError(PoolError):
    """The pool is closed, or has not been opened."""

    code = "pool_closed"


class PoolTimeoutError(PoolError, TimeoutError):
    """No sandbox of the pool came free in time; all may be in use, or be slow to make."""

    code = "pool_timeout"
    retryable = True


class SandboxClosedError(SandboxError):
    """The sandbox or the backend was used after it was closed."""

    code = "sandbox_closed"


class CommandMissingError(SandboxError, LookupError):
    """There is no background command of this id in the session, or it ended too long ago."""

    code = "command_missing"


class ContextError(SandboxError):
    """A code context could not do what it was asked."""

    code = "context"


class KernelMissingError(ContextError):
    """The sandbox has no Jupyter kernel that a context could be made of; the hint says how to."""

    code = "kernel_missing"


class ContextMissingError(ContextError, LookupError):
    """There is no code context of this name in the sandbox, or it has been closed."""

    code = "context_missing"


class ContextLostError(ContextError):
    """The kernel of a code context died, and its variables with it; the sandbox lives.

    Attributes:
        cause: How it died, in words.
        result: What the code had done until then, a `CodeResult`, or None where none ran.
    """

    code = "context_lost"

    def __init__(
        self,
        message: str,
        *,
        cause: str = "unknown",
        result: Any = None,
        backend: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, hint=hint)
        self.cause = cause
        self.result = result


class SessionElsewhereError(SandboxError):
    """Another live worker holds the sandbox of this execution; send the call there.

    It can be had here once that worker has destroyed it, or is dead.

    Attributes:
        owner: The name under which the other worker holds it, or None.
    """

    code = "session_elsewhere"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        owner: str | None = None,
        backend: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, hint=hint)
        self.owner = owner


class LeaseStoreError(SandboxError):
    """The store of leases does not answer, so that nobody can say who holds what."""

    code = "lease_store"
    retryable = True


class SandboxLostError(SandboxError):
    """The sandbox died and its workspace is gone; a new one has to be made.

    Attributes:
        cause: How it died, in words: `killed`, `out of memory`, `kill incomplete`, ...
    """

    code = "sandbox_lost"

    def __init__(
        self,
        message: str,
        *,
        cause: str = "unknown",
        backend: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, hint=hint)
        self.cause = cause


class ProtocolError(SandboxLostError):
    """What came out of the sandbox was not the warden's protocol; the sandbox was destroyed."""

    code = "protocol"

    def __init__(self, message: str, *, backend: str | None = None) -> None:
        super().__init__(message, cause="protocol violation", backend=backend)


class StoreError(SandboxError, OSError):
    """An artifact store could not do what it was asked.

    Attributes:
        key: The object that it was about, or empty.
    """

    code = "store"
    default_errno: ClassVar[int] = errno.EIO

    def __init__(
        self, message: str, *, key: str = "", backend: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{key!r}: {message}" if key else message, backend=backend, hint=hint)
        self.key = key
        self.errno = self.default_errno


class ObjectKeyError(StoreError, ValueError):
    """A key that no store can use, or that this one can't use now."""

    code = "object_key"
    default_errno = errno.EINVAL


class ObjectMissingError(StoreError, FileNotFoundError):
    """There is no object under the key."""

    code = "object_missing"
    default_errno = errno.ENOENT


class ObjectExistsError(StoreError, FileExistsError):
    """There is an object under the key, and it was not to be replaced."""

    code = "object_exists"
    default_errno = errno.EEXIST


class StoreAccessError(StoreError, PermissionError):
    """The store refuses these credentials, or what they ask for."""

    code = "store_access"
    default_errno = errno.EACCES


class StoreUnreachableError(StoreError, ConnectionError):
    """The store does not answer, or answers with a fault of its own."""

    code = "store_unreachable"
    retryable = True
    default_errno = errno.ECONNREFUSED


class StreamBrokenError(SandboxError):
    """The way to a live sandbox broke while a command ran.

    The sandbox and its files live on, and the next call takes the way up again; the commands that
    ran were killed, and what they had not said yet is lost.
    """

    code = "stream_broken"
    retryable = True


class WorkspaceError(SandboxError, OSError):
    """A file operation failed.

    Attributes:
        path: The path that was asked for.
        written: From `import_files` alone: the files that were written before, and stay.
    """

    code = "workspace"
    default_errno: ClassVar[int] = errno.EIO

    def __init__(
        self, path: str, message: str, *, backend: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{path!r}: {message}", backend=backend, hint=hint)
        self.path = path
        self.written: tuple[str, ...] = ()
        self.errno = self.default_errno


class PathError(WorkspaceError, ValueError):
    """The path leads outside of the workspace, or is not a path."""

    code = "path"
    default_errno = errno.EXDEV


class FileMissingError(WorkspaceError, FileNotFoundError):
    """There is nothing at the path."""

    code = "file_missing"
    default_errno = errno.ENOENT


class FileIsDirectoryError(WorkspaceError, IsADirectoryError):
    """The path is a directory."""

    code = "file_is_directory"
    default_errno = errno.EISDIR


class FileNotDirectoryError(WorkspaceError, NotADirectoryError):
    """The path, or a part of it, is not a directory."""

    code = "file_not_directory"
    default_errno = errno.ENOTDIR


class FilePermissionError(WorkspaceError, PermissionError):
    """The sandbox's user may not do this to the path."""

    code = "file_permission"
    default_errno = errno.EACCES


class FileKindError(WorkspaceError):
    """The path is not a regular file: a FIFO, a socket, a device or a link to one."""

    code = "file_kind"
    default_errno = errno.EINVAL


class FileTooLargeError(WorkspaceError):
    """The file is larger than the limit of the call."""

    code = "file_too_large"
    default_errno = errno.EFBIG


class FileConflictError(WorkspaceError, FileExistsError):
    """Something is in the way: an existing path, or a directory that is not empty."""

    code = "file_conflict"
    default_errno = errno.EEXIST


class NoSpaceError(WorkspaceError):
    """The workspace's size or inode limit is reached."""

    code = "no_space"
    default_errno = errno.ENOSPC
