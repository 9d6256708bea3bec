"""Sessions of the OpenAI Agents SDK: their files; see `openai_agents`."""

from __future__ import annotations

import io
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar, cast

from agents.sandbox.errors import (
    ExecNonZeroError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.types import ExecResult, Permissions, User

from ..errors import FileMissingError, SandboxError
from ..models import FileInfo, FileKind
from ._posix import listed, make_dir, remove
from ._tar import archived, unpacked
from .openai_agents_life import PinnedSession, about, check_user

__all__ = ("WorkspaceSession",)

_PIECE_BYTES = 8 * 1024 * 1024  # of a file that is written at a time
_TAR_BYTES = 64 * 1024
_OWNER = "sandbox"  # the one user that everything belongs to
_KINDS = {
    FileKind.FILE: EntryKind.FILE,
    FileKind.DIRECTORY: EntryKind.DIRECTORY,
    FileKind.SYMLINK: EntryKind.SYMLINK,
}
_Value = TypeVar("_Value")
_Fault = TypeVar("_Fault", WorkspaceArchiveReadError, WorkspaceArchiveWriteError)


class WorkspaceSession(PinnedSession):
    """A session with its files."""

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Return a file's content, at most 64 MiB.

        Raises:
            WorkspaceReadNotFoundError: There is nothing.
            WorkspaceArchiveReadError: It can't be read; `cause` says why.
        """
        check_user(user)
        return io.BytesIO(await self._read(path, None))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        return await self._read(path, max_bytes)

    async def _read(self, path: Path, most: int | None) -> bytes:
        name = str(await self._validate_path_access(path))
        try:
            return await self._do(self._box.read_file, name, max_bytes=most)
        except FileMissingError as error:
            raise WorkspaceReadNotFoundError(path=Path(path), cause=error) from error
        except SandboxError as error:
            raise _not_read(Path(path), error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file, making the directories above it.

        Raises:
            WorkspaceArchiveWriteError: It can't be written; `cause` says why.
        """
        check_user(user)
        name = str(await self._validate_path_access(path, for_write=True))
        stream = coerce_write_payload(path=Path(path), data=data).stream
        piece, append = stream.read(_PIECE_BYTES), False
        try:
            while piece or not append:
                await self._do(self._box.write_file, name, piece, append=append)
                piece, append = stream.read(_PIECE_BYTES), True
        except SandboxError as error:
            raise _not_written(Path(path), error) from error

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        """Return what is in a directory, or a file by itself.

        Raises:
            ExecNonZeroError: It can't be listed, or has more than 10,000 entries.
        """
        check_user(user)
        name = str(await self._validate_path_access(path))
        found = await self._filed(("ls", name), listed(self._box, name))
        return [_entry(path, info) for path, info in found]

    async def rm(
        self, path: Path | str, *, recursive: bool = False, user: str | User | None = None
    ) -> None:
        """Remove a file, or with `recursive` also a directory; then one that is gone is fine.

        Raises:
            ExecNonZeroError: It can't be removed.
        """
        check_user(user)
        name = str(await self._validate_path_access(path, for_write=True))
        await self._filed(("rm", name), remove(self._box, name, recursive))

    async def mkdir(
        self, path: Path | str, *, parents: bool = False, user: str | User | None = None
    ) -> None:
        """Make a directory; with `parents` also those above, and one that exists is fine.

        Raises:
            ExecNonZeroError: It can't be made.
        """
        check_user(user)
        name = str(await self._validate_path_access(path, for_write=True))
        await self._filed(("mkdir", name), make_dir(self._box, name, parents))

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar stream, without what the manifest calls ephemeral.

        Raises:
            WorkspaceArchiveReadError: It can't be made, or has more than 2 GiB.
        """
        left_out = sorted(path.as_posix() for path in self._persist_workspace_skip_relpaths())
        try:
            found = await self._do(archived, self._box, left_out=left_out)
        except SandboxError as error:
            raise _not_read(Path(self._box.workspace), error) from error
        if found.seek(0, io.SEEK_END) > _PIECE_BYTES:
            found.seek(0)
            return cast("io.IOBase", found)
        with found:  # not everybody closes what they have read
            found.seek(0)
            return io.BytesIO(found.read())

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack an uncompressed tar stream into the workspace.

        Raises:
            WorkspaceArchiveWriteError: It is no such stream, or there is no room for it.
        """
        root = Path(self._box.workspace)
        stream = coerce_write_payload(path=root, data=data).stream
        try:
            await self._do(unpacked, self._box, iter(lambda: stream.read(_TAR_BYTES), b""))
        except SandboxError as error:
            raise _not_written(root, error) from error

    async def provision_manifest_accounts(self) -> None:
        """Do nothing: a manifest with accounts is refused before."""

    async def _filed(self, command: tuple[str, ...], doing: Coroutine[Any, Any, _Value]) -> _Value:
        async def done() -> _Value:
            return await doing

        try:
            return await self._do(done)
        except SandboxError as error:
            doing.close()  # it may not have begun
            said = ExecResult(stdout=b"", stderr=str(error).encode(), exit_code=1)
            raise ExecNonZeroError(said, command=command, cause=error) from error


def _entry(path: str, info: FileInfo) -> FileEntry:
    permissions = Permissions.from_mode(info.mode)
    permissions.directory = info.kind is FileKind.DIRECTORY
    return FileEntry(
        path=path,
        permissions=permissions,
        owner=_OWNER,
        group=_OWNER,
        size=info.size,
        kind=_KINDS.get(info.kind, EntryKind.OTHER),
    )


def _not_read(path: Path, error: SandboxError) -> WorkspaceArchiveReadError:
    return _told(
        WorkspaceArchiveReadError(
            path=path, context=about(error), cause=error, retryable=error.retryable
        ),
        error,
    )


def _not_written(path: Path, error: SandboxError) -> WorkspaceArchiveWriteError:
    return _told(
        WorkspaceArchiveWriteError(
            path=path, context=about(error), cause=error, retryable=error.retryable
        ),
        error,
    )


def _told(made: _Fault, error: SandboxError) -> _Fault:
    """Let an error of the SDK say what ours does, which is for a model to read."""
    made.message = str(error)
    made.args = (made.message,)
    return made
