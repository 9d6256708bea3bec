"""Environments of Harbor: their files; see `harbor`."""

from __future__ import annotations

import tarfile
import tempfile
from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

from anyio import to_thread
from harbor.environments.base import BaseEnvironment
from harbor.environments.tar_transfer import extract_dir, pack_dir

from ..backend import Sandbox
from ..errors import (
    FileIsDirectoryError,
    FileKindError,
    FileNotDirectoryError,
    SandboxClosedError,
    WorkspaceError,
)
from ._commands import absolute, command_in
from ._files import Files
from ._tar import collected, saved, unpacked

__all__ = ("FilesEnvironment",)

_PIECE_BYTES = 1024 * 1024


class FilesEnvironment(BaseEnvironment, ABC):
    """An environment with the files of its sandbox."""

    _sandbox: Sandbox | None = None

    def _open(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxClosedError("the environment has not been started, or has been stopped")
        return self._sandbox

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file in, its permissions with it, making the directories above it.

        Raises:
            FileNotFoundError: There is no such file.
            WorkspaceError: It can't be written there.
        """
        source = Path(source_path)
        data, mode = await to_thread.run_sync(lambda: (source.read_bytes(), source.stat().st_mode))
        sandbox = self._open()
        await Files(sandbox).write(target_path, data)
        argv = ("chmod", f"{mode & 0o777:o}", absolute(sandbox, target_path))
        (await sandbox.exec(command_in(sandbox, argv))).check()

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy what is in a directory in, with permissions and links.

        Raises:
            FileNotFoundError: There is no such directory.
            WorkspaceError: It can't be written there.
        """
        sandbox = self._open()
        await Files(sandbox).make_dir(target_dir)
        with await to_thread.run_sync(_packed, Path(source_dir)) as file:
            pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
            await unpacked(sandbox, pieces, absolute(sandbox, target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out, of at most 2 GiB.

        Raises:
            FileNotFoundError: There is no such file.
            WorkspaceError: It can't be read, or is none.
        """
        sandbox = self._open()
        entry = await Files(sandbox).stat(source_path)
        if entry.is_dir:
            raise FileIsDirectoryError(source_path, "is a directory")
        if entry.size is None:
            raise FileKindError(source_path, "is not a regular file, or can't be read")
        argv = ("cat", "--", absolute(sandbox, source_path))
        with await collected(sandbox, argv, source_path) as found:
            await to_thread.run_sync(saved, found, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy what is in a directory out, of at most 2 GiB; what leads outside is left out.

        Raises:
            FileNotFoundError: There is no such directory.
            WorkspaceError: It can't be read, or is none.
        """
        await self._download(source_dir, target_dir, ())

    async def download_dir_with_exclusions(
        self, *, source_dir: str, target_dir: Path | str, exclude: list[str]
    ) -> None:
        """Copy what is in a directory out, without what matches one of tar's patterns."""
        await self._download(source_dir, target_dir, exclude)

    async def _download(self, source: str, target: Path | str, exclude: Sequence[str]) -> None:
        sandbox = self._open()
        if not (await Files(sandbox).stat(source)).is_dir:
            raise FileNotDirectoryError(source, "is no directory")
        patterns = (f"--exclude={pattern}" for pattern in exclude)
        argv = ("tar", "-cf", "-", *patterns, "-C", absolute(sandbox, source), ".")
        with await collected(sandbox, argv, source) as found:
            try:
                refused = await to_thread.run_sync(extract_dir, cast("BinaryIO", found), target)
            except tarfile.TarError as error:  # others in the sandbox can write to its output, too
                raise WorkspaceError(source, f"what has come is no archive: {error}") from error
        if refused:
            self.logger.warning("left out of %s: %d entries", source, len(refused))


def _packed(source: Path) -> IO[bytes]:
    """Return a directory of this machine as a tar stream in a temporary file."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller's
    try:
        pack_dir(source, cast("BinaryIO", file), compress=False, include_root=False)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return file
