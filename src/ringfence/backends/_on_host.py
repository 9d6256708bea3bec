"""What sandboxes share whose files are the host's own: file operations, and how they end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import anyio.to_thread

from .. import host_files
from ..backend import Sandbox
from ..errors import SandboxClosedError, SandboxError, SandboxLostError, WorkspaceError
from ..models import FileInfo

__all__ = ("SandboxOnHost",)

_T = TypeVar("_T")


class SandboxOnHost(Sandbox):
    """A sandbox whose workspace is a directory of the host, and whose end this process decides.

    Attributes:
        _closed: Whether it was closed.
        _cause: Why it was ended, if it was.
    """

    _closed: bool
    _cause: str | None

    @property
    @abstractmethod
    def _root(self) -> str:
        """The directory of the host that its workspace is."""

    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        await self._files(host_files.write_file, path, data, mode, append)

    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        return await self._files(host_files.read_file, path, offset, max_bytes)

    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        return await self._files(host_files.list_files, path, max_entries)

    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        if operation == "stat":
            return await self._files(host_files.stat, path)
        if operation == "move":
            await self._files(host_files.move, path, target)
        elif operation == "make_dir":
            await self._files(host_files.make_dir, path)
        else:
            await self._files(host_files.remove, path)
        return None

    async def _files(self, work: Callable[..., _T], *args: Any) -> _T:
        self._require_open()
        try:
            return await self._in_thread(work, self._root, *args)
        except WorkspaceError as error:
            error.backend = self.backend
            raise

    async def _in_thread(self, work: Callable[..., _T], *args: Any) -> _T:
        return await anyio.to_thread.run_sync(work, *args)

    def _require_open(self) -> None:
        if self._closed or self._cause is not None:
            raise self._ended()

    def _ended(self) -> SandboxError:
        if self._closed or self._cause is None:
            return SandboxClosedError(f"sandbox {self.id} is closed", backend=self.backend)
        return SandboxLostError(
            f"sandbox {self.id} was ended: {self._cause}",
            cause=self._cause,
            backend=self.backend,
            hint="make a new one",
        )
