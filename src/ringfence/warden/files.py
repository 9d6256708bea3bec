"""The files of a sandbox with a warden: operations that are built into that as programs."""

from __future__ import annotations

import errno
import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

import anyio
import anyio.lowlevel
import anyio.to_thread

from ..backend import NewFile, Sandbox
from ..errors import ProtocolError, SandboxError, SandboxLostError, WorkspaceError
from ..models import FileInfo, FileKind
from ..process import HOST_SLACK
from .answers import (
    MODE_UNSET,
    STATUS,
    WHOLE_HEAD,
    Entry,
    FirstEntries,
    decode_entries,
    decode_files,
    decode_statuses,
    encode_file,
)
from .connection import Channel, Connection
from .failures import file_error, no_process, raise_file_error
from .frames import (
    STDIN_WINDOW,
    Feature,
    FrameType,
    Operation,
    Outcome,
    StartFlag,
    credit_frame,
    frame,
    kill_frame,
    start_frame,
)

__all__ = ("WardenFiles",)

_STDIN = int(StartFlag.STDIN)
_STDIN_COMPLETE = int(StartFlag.STDIN_COMPLETE)
_WINDOW = 1 << 20
_FILE_TIMEOUT = 60.0
_FARTHEST = (1 << 62) - 1  # in a file, as the kernel counts
_FILE_HEAD = 8
_LITTLE = 4096  # more than any operation writes that returns no content
_SIGKILL = 9

_KINDS = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFLNK: FileKind.SYMLINK,
    stat.S_IFIFO: FileKind.FIFO,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFCHR: FileKind.CHARACTER_DEVICE,
    stat.S_IFBLK: FileKind.BLOCK_DEVICE,
}


class WardenFiles(Sandbox):
    """A sandbox whose files are a warden's."""

    connection: Connection

    @abstractmethod
    async def _connected(self) -> Connection:
        """Return the connection, taken up again if its stream has broken."""

    async def _operate(
        self,
        operation: Operation,
        paths: tuple[bytes, ...],
        numbers: tuple[int, int] = (0, 0),
        data: bytes | None = None,
        *,
        most: int = _LITTLE,
    ) -> bytes:
        """Run a file operation and return what it wrote, which can't be more than `most`."""
        parts: list[bytes] = []
        left = most

        def take(part: bytes) -> None:
            nonlocal left
            left -= len(part)
            if left < 0:
                raise ProtocolError("a file operation that wrote more than it can have to say")
            parts.append(part)

        await self._run_operation(operation, paths, numbers, data, take)
        return b"".join(parts)

    async def _run_operation(
        self,
        operation: Operation,
        paths: tuple[bytes, ...],
        numbers: tuple[int, int],
        data: bytes | None,
        take: Callable[[bytes], None],
    ) -> None:
        """Run a file operation and hand what it writes to `take`."""
        connection = await self._connected()
        first = (data or b"")[:STDIN_WINDOW]
        complete = data is None or len(first) == len(data)
        flags = 0
        if data:
            flags = _STDIN | (_STDIN_COMPLETE if complete else 0)
        channel = connection.open_channel(_WINDOW, STDIN_WINDOW - len(first))
        operating = _Operating(self.backend, connection, channel, take)
        try:
            with anyio.fail_after(_FILE_TIMEOUT):
                await connection.send(
                    start_frame(
                        channel.id,
                        paths,
                        operation=operation,
                        numbers=numbers,
                        flags=flags,
                        timeout=_FILE_TIMEOUT,
                        window=_WINDOW,
                        stdin=first,
                    )
                )
                if data and not complete:
                    await connection.send_stdin(channel, data[len(first) :])
                    await connection.send(frame(FrameType.STDIN_END, channel.id))
                await operating.finish(paths)
        except TimeoutError:
            await self._destroy("a file operation did not end")
            raise connection.lost or SandboxLostError("lost") from None
        except ProtocolError as error:
            raise connection.lose(error) from None
        finally:
            if channel.end is None and connection.lost is None:
                with anyio.move_on_after(HOST_SLACK, shield=True):
                    await _abandon(connection, channel, operation)

    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        numbers = (MODE_UNSET if mode is None else mode & 0o7777, int(append))
        await self._operate(Operation.WRITE, (path,), numbers, data)

    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        numbers = min(offset, _FARTHEST), min(max_bytes, _FARTHEST)
        most = _FILE_HEAD + numbers[1]
        found = await self._operate(Operation.READ, (path,), numbers, most=most)
        if len(found) < _FILE_HEAD:
            raise self.connection.lose(ProtocolError("a file operation that did not say a size"))
        content = bytes(memoryview(found)[_FILE_HEAD:])
        return content, int.from_bytes(found[:_FILE_HEAD], "little")

    async def _read_files(
        self, paths: Sequence[bytes], max_bytes: int
    ) -> list[bytes | WorkspaceError | None]:
        hello = (await self._connected()).hello
        if not paths or hello is None or Feature.READ_MANY not in hello.features:  # an older warden
            return await super()._read_files(paths, max_bytes)
        numbers = min(max_bytes, _FARTHEST), 0
        most = len(paths) * WHOLE_HEAD + numbers[0]
        data = await self._operate(Operation.READ_MANY, tuple(paths), numbers, most=most)
        try:
            found = decode_files(data, len(paths))
        except ProtocolError as error:
            raise self.connection.lose(error) from None
        return [
            one if isinstance(one, bytes) else _whole_error(one, path, self.backend)
            for path, one in zip(paths, found, strict=True)
        ]

    async def _write_files(self, files: Sequence[NewFile]) -> list[WorkspaceError | None]:
        hello = (await self._connected()).hello
        if not files or hello is None or Feature.WRITE_MANY not in hello.features:
            return await super()._write_files(files)  # an older warden
        paths = tuple(file.path for file in files)
        data = b"".join(part for file in files for part in encode_file(file.data, file.mode))
        most = len(files) * STATUS
        told = await self._operate(Operation.WRITE_MANY, paths, (0, 0), data, most=most)
        try:
            statuses = decode_statuses(told, len(files))
        except ProtocolError as error:
            raise self.connection.lose(error) from None
        return [
            file_error(status, path, self.backend) if status else None
            for path, status in zip(paths, statuses, strict=True)
        ]

    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        listing = FirstEntries(max_entries)
        await self._run_operation(Operation.LIST, (path,), (0, 0), None, listing.take)
        try:
            return await anyio.to_thread.run_sync(_file_infos, listing), listing.total
        except ProtocolError as error:
            raise self.connection.lose(error) from None

    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        paths = (path, target) if operation == "move" else (path,)
        found = await self._operate(Operation[operation.upper()], paths)
        if operation != "stat":
            return None
        try:
            (entry,) = decode_entries(found)
        except ValueError:
            error = ProtocolError("a file operation that described more or less than one file")
            raise self.connection.lose(error) from None
        except ProtocolError as error:
            raise self.connection.lose(error) from None
        return _file_info(entry)


class _Operating:
    """The output of one file operation, taken as it comes."""

    def __init__(
        self,
        backend: str,
        connection: Connection,
        channel: Channel,
        take: Callable[[bytes], None],
    ) -> None:
        self._backend = backend
        self._connection = connection
        self._channel = channel
        self._take = take

    async def finish(self, paths: tuple[bytes, ...]) -> None:
        channel, connection = self._channel, self._connection
        wrote = False
        taken = 0  # since the last credit
        while channel.end is None or channel.chunks:
            await connection.wait(channel, channel.has_news)
            while channel.chunks:
                chunk = channel.chunks.popleft()
                if chunk.stream != "stdout":
                    raise ProtocolError("a file operation that wrote to stderr")
                self._take(chunk.data)
                taken += len(chunk.data)
                wrote = True
                if channel.chunks:  # a long listing: others have their turn
                    await anyio.lowlevel.checkpoint()
            if taken * 2 >= _WINDOW and channel.end is None:
                channel.credit["stdout"] += taken
                await connection.send(credit_frame(channel.id, taken, 0))
                taken = 0
        end = channel.end
        if end.outcome is Outcome.NOT_STARTED:
            raise no_process("the file operation", end.value, self._backend)
        if end.outcome is not Outcome.EXITED:
            raise SandboxError(
                f"a file operation was ended from inside the sandbox ({end.outcome.name.lower()})",
                backend=self._backend,
            )
        if end.value:  # what it wrote then says that the last path is the one to name
            raise_file_error(end.value, paths[-1 if wrote else 0], self._backend)


async def _abandon(connection: Connection, channel: Channel, operation: Operation) -> None:
    """End a file operation for which nobody waits any more."""
    if operation is not Operation.WRITE_MANY:
        await connection.send(kill_frame(channel.id, _SIGKILL))
        return
    with suppress(SandboxError):  # it removes what has not come whole, and ends
        await connection.send(frame(FrameType.STDIN_END, channel.id))
        await connection.wait(channel, lambda: channel.end is not None)


def _whole_error(code: int, path: bytes, backend: str) -> WorkspaceError | None:
    return None if code == errno.EFBIG else file_error(code, path, backend)


def _file_infos(listing: FirstEntries) -> list[FileInfo]:
    return [_file_info(entry) for entry in listing.finish()]


def _file_info(entry: Entry) -> FileInfo:
    return FileInfo(
        name=os.fsdecode(entry.name),
        kind=_KINDS.get(stat.S_IFMT(entry.mode), FileKind.UNKNOWN),
        size=entry.size,
        mode=stat.S_IMODE(entry.mode),
        mtime=entry.mtime_ns / 1e9,
    )
