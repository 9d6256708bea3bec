"""A sandbox and its processes over a connection to a warden."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NoReturn

import anyio
import anyio.lowlevel
import anyio.to_thread

from ..backend import NewFile, Sandbox, command_cwd
from ..errors import (
    CommandError,
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
    ProtocolError,
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
    StreamBrokenError,
    UnsupportedError,
    WorkspaceError,
)
from ..execution import EXIT_TIMED_OUT
from ..models import (
    Capabilities,
    Chunk,
    Command,
    Exit,
    ExitReason,
    FileInfo,
    FileKind,
    Limits,
    SandboxSpec,
    TerminalSize,
    Usage,
)
from ..process import HOST_SLACK, DeadlineError, Launch, Process
from .connection import Channel, Connection
from .frames import (
    MAX_START,
    MAX_STRINGS,
    MODE_UNSET,
    NOT_A_FILE,
    STATUS,
    STDIN_WINDOW,
    WHOLE_HEAD,
    Entry,
    ExitFrame,
    Feature,
    FirstEntries,
    FrameType,
    Operation,
    Outcome,
    Stage,
    StartFlag,
    credit_frame,
    decode_entries,
    decode_files,
    decode_statuses,
    encode_file,
    frame,
    kill_frame,
    lifetime_frame,
    limit_frame,
    resize_frame,
    start_frame,
)

__all__ = ("Host", "WardenProcess", "WardenSandbox", "raise_file_error")

_KILL_LEFTOVERS = int(StartFlag.KILL_LEFTOVERS)
_STDIN = int(StartFlag.STDIN)
_STDIN_COMPLETE = int(StartFlag.STDIN_COMPLETE)
_TERMINAL = int(StartFlag.TERMINAL)
_TERM = b"xterm-256color"
_WINDOW = 1 << 20
_FILE_TIMEOUT = 60.0
_FARTHEST = (1 << 62) - 1  # in a file, as the kernel counts
_FILE_HEAD = 8
_LITTLE = 4096  # more than any operation writes that returns no content
_SIGKILL = 9
_OUT_OF_MEMORY = "out of memory"
_LAST_SIGNAL = 64

_KINDS = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFLNK: FileKind.SYMLINK,
    stat.S_IFIFO: FileKind.FIFO,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFCHR: FileKind.CHARACTER_DEVICE,
    stat.S_IFBLK: FileKind.BLOCK_DEVICE,
}

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


@dataclass(frozen=True)
class Host:
    """What a sandbox needs from whoever started its warden.

    Attributes:
        close: Ends the sandbox and frees all that it holds; called once.
        oom_kills: Reads the counter of processes that the memory limit has killed, or None
            where the warden's own count has to do.
        env: The variables that every command gets.
        resume: Returns a new connection to the warden after the stream has broken, or raises a
            `SandboxLostError`; or None where a broken stream is the end.
        dismiss: Ends it in the background, in the place of `close`, where nothing of what ran in
            it is left; or None.
    """

    close: Callable[[], Awaitable[None]]
    oom_kills: Callable[[], int] | None
    env: Mapping[bytes, bytes]
    dismiss: Callable[[], None] | None = None
    resume: Callable[[], Awaitable[Connection]] | None = None


class WardenSandbox(Sandbox):
    """A sandbox whose commands and files are a warden's.

    Args:
        connection: To the warden, greeted already.
        host: What is left to do outside of it.
    """

    def __init__(
        self,
        connection: Connection,
        host: Host,
        *,
        backend: str,
        sandbox_id: str,
        spec: SandboxSpec,
        limits: Limits,
        capabilities: Capabilities,
        workspace: str = "/workspace",
    ) -> None:
        self.backend = backend
        self.id = sandbox_id
        self.spec = spec
        self.limits = limits
        self.capabilities = capabilities
        self.workspace = workspace
        self.connection = connection
        self.host = host
        self._closed = False
        self._closing: anyio.Event | None = None
        self._resuming: anyio.Lock | None = None
        self._env = [name + b"=" + value for name, value in host.env.items()]
        self.keeps_deadlines = connection.keeps_deadlines

    def set_lifetime(self, seconds: float) -> None:
        """Let the sandbox end itself that many seconds after the start of its next command."""
        self.connection.queue(lifetime_frame(seconds))

    async def _connected(self) -> Connection:
        """Return the connection, taken up again if its stream has broken."""
        self._check_open()
        if self.connection.lost is None or self.host.resume is None:
            return self.connection
        self._resuming = self._resuming or anyio.Lock()
        async with self._resuming:
            if isinstance(self.connection.lost, StreamBrokenError):
                self.connection = await self.host.resume()
        return self.connection

    async def _start(self, launch: Launch) -> Process:
        connection = await self._connected()
        command = launch.command
        flags = _KILL_LEFTOVERS if command.leftovers == "kill" else 0
        if launch.stdin_open:
            flags |= _STDIN
        elif launch.stdin:
            flags |= _STDIN | _STDIN_COMPLETE
        window = _WINDOW if launch.output_bytes is None else min(launch.output_bytes, _WINDOW)
        terminal = command.terminal
        if terminal is not None:
            _check_terminals(connection, self.backend)
            flags |= _TERMINAL
        channel = connection.open_channel(window, STDIN_WINDOW - len(launch.stdin))
        process = WardenProcess(self, connection, channel, launch, window)
        if launch.timeout is not None and self.keeps_deadlines:
            connection.watch(channel, launch.timeout + launch.kill_grace + HOST_SLACK)
        start = start_frame(
            channel.id,
            command.argv_bytes,
            env=self._environment(command),
            cwd=command_cwd(command, self.workspace),
            fallback=os.fsencode(command.fallback or ""),
            flags=flags,
            numbers=(terminal.rows, terminal.columns) if terminal else (0, 0),
            timeout=launch.timeout,
            grace=launch.kill_grace,
            window=window,
            cap=launch.output_bytes,
            stdin=launch.stdin,
        )
        strings = max(len(command.argv), len(command.env) + len(self._env))
        if len(start) > MAX_START or strings > MAX_STRINGS:
            connection.forget(channel)
            raise _too_long(command)
        try:
            await connection.send(start)
        except BaseException:  # cancelled: it may be half on its way, and must not run on
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + HOST_SLACK):
                await process.kill()
            raise
        return process

    def _environment(self, command: Command) -> list[bytes]:
        own = dict(command.env_bytes)
        if command.terminal is not None:
            own = {b"TERM": _TERM, **own}
        if not own:
            return self._env
        return [name + b"=" + value for name, value in {**self.host.env, **own}.items()]

    async def _ping(self) -> None:
        await (await self._connected()).ping()

    async def _destroy(self, cause: str) -> None:
        self.connection.lose(SandboxLostError(f"it was destroyed: {cause}", cause=cause))
        await self._close_host()

    async def aclose(self) -> None:
        """End the sandbox; when this returns, nothing of it runs."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._close_host()

    async def dismiss(self) -> None:
        """End the sandbox, in which nothing runs any more; its host may do that later."""
        if self.host.dismiss is None or self._closing is not None:
            await self.aclose()
            return
        self._closed = True
        self._closing = anyio.Event()
        self._closing.set()
        self.host.dismiss()

    async def _close_host(self) -> None:
        if self._closing is not None:
            await self._closing.wait()
            return
        self._closing = anyio.Event()
        try:
            await self.host.close()
        finally:
            self._closing.set()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosedError(f"sandbox {self.id} is closed", backend=self.backend)

    # Files: programs that are built into the warden.

    async def _operate(
        self,
        operation: Operation,
        paths: tuple[bytes, ...],
        numbers: tuple[int, int] = (0, 0),
        data: bytes | None = None,
        *,
        most: int = _LITTLE,
    ) -> bytearray:
        """Run a file operation and return what it wrote, which can't be more than `most`."""
        written = bytearray()

        def take(part: bytes) -> None:
            if len(written) + len(part) > most:
                raise ProtocolError("a file operation that wrote more than it can have to say")
            written.extend(part)

        await self._run_operation(operation, paths, numbers, data, take)
        return written

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
        operating = _Operating(self, connection, channel, take)
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
            _file_error(status, path, self.backend) if status else None
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
            (entry,) = decode_entries(bytes(found))
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
        sandbox: WardenSandbox,
        connection: Connection,
        channel: Channel,
        take: Callable[[bytes], None],
    ) -> None:
        self._sandbox = sandbox
        self._connection = connection
        self._channel = channel
        self._take = take

    async def finish(self, paths: tuple[bytes, ...]) -> None:
        channel, connection = self._channel, self._connection
        wrote = False
        taken = 0  # since the last credit
        while channel.end is None or channel.chunks:
            await connection.wait(channel, lambda: bool(channel.chunks) or channel.end is not None)
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
            raise _no_process("the file operation", end.value, self._sandbox.backend)
        if end.outcome is not Outcome.EXITED:
            raise SandboxError(
                f"a file operation was ended from inside the sandbox ({end.outcome.name.lower()})",
                backend=self._sandbox.backend,
            )
        if end.value:  # what it wrote then says that the last path is the one to name
            raise_file_error(end.value, paths[-1 if wrote else 0], self._sandbox.backend)


class WardenProcess(Process):
    """A command in a sandbox with a warden."""

    def __init__(
        self,
        sandbox: WardenSandbox,
        connection: Connection,
        channel: Channel,
        launch: Launch,
        window: int,
    ) -> None:
        self._sandbox = sandbox
        self._connection = connection
        self._channel = channel
        self._launch = launch
        self._window = window
        self._taken = {"stdout": 0, "stderr": 0}
        self._granted = {"stdout": window, "stderr": window}
        self._killed = False
        self._stdin_closed = not launch.stdin_open
        self._exit: Exit | None = None
        self._oom_before = sandbox.host.oom_kills() if sandbox.host.oom_kills else 0

    @property
    def ended(self) -> bool:
        """Whether its end is known."""
        return self._channel.end is not None or self._exit is not None

    @property
    def pid(self) -> int | None:  # type: ignore[override]  # known only once it has started
        return self._channel.pid

    async def receive(self) -> Chunk | None:
        channel = self._channel
        if not channel.chunks:
            if channel.end is None:
                await self._more()
            if not channel.chunks:
                return None
        chunk = channel.chunks.popleft()
        await self._give_credit(chunk)
        return chunk

    async def _more(self) -> None:
        """Wait for output or the end."""
        channel, connection = self._channel, self._connection
        try:
            await connection.wait(channel, lambda: bool(channel.chunks) or channel.end is not None)
        except SandboxLostError as error:
            if connection.silent and channel.deadline <= time.monotonic():
                raise DeadlineError from None
            if not self._died_of_memory(error):
                raise
            self._exit = Exit(128 + _SIGKILL, ExitReason.OUT_OF_MEMORY)

    def _died_of_memory(self, error: SandboxLostError) -> bool:
        """Whether the memory limit has ended all of the sandbox at once, this command with it.

        That is how the command ended, as whoever runs the sandbox says; that the sandbox is lost
        is told to the next call.
        """
        counter = self._sandbox.host.oom_kills
        counted = counter is None or counter() > self._oom_before
        return error.cause == _OUT_OF_MEMORY and counted and not self._killed

    async def _give_credit(self, chunk: Chunk) -> None:
        """Let the program write on, once half of its window has been consumed."""
        cap = self._launch.output_bytes
        if cap is not None and cap <= self._window:
            return  # it had credit for all of it from the start
        self._taken[chunk.stream] += len(chunk.data)
        taken = self._taken[chunk.stream]
        if taken * 2 < self._window or self._channel.end is not None:
            return
        self._taken[chunk.stream] = 0
        if cap is not None:  # a warden that sends more than that is lying
            taken = min(taken, cap - self._granted[chunk.stream])
            if not taken:
                return
        self._granted[chunk.stream] += taken
        self._channel.credit[chunk.stream] += taken
        out, err = (taken, 0) if chunk.stream == "stdout" else (0, taken)
        await self._connection.send(credit_frame(self._channel.id, out, err))

    async def wait(self) -> Exit:
        while await self.receive() is not None:
            pass
        if self._exit is None:
            assert self._channel.end is not None
            self._exit = await self._understand(self._channel.end)
        return self._exit

    async def kill(self, signal: int | None = None) -> None:
        if signal is not None and not 1 <= signal <= _LAST_SIGNAL:
            raise CommandError(f"there is no signal {signal}")
        if self.ended:
            return
        self._killed = self._killed or signal in (None, _SIGKILL)
        await self._connection.send(kill_frame(self._channel.id, signal))

    async def write_stdin(self, data: bytes) -> None:
        if not self._stdin_closed and not self.ended:
            await self._connection.send_stdin(self._channel, data)

    async def close_stdin(self) -> None:
        if not self._stdin_closed and not self.ended:
            self._stdin_closed = True
            await self._connection.send(frame(FrameType.STDIN_END, self._channel.id))

    async def _is_waiting(self) -> bool:
        hello = self._connection.hello
        if hello is None or Feature.LIMIT not in hello.features:  # an older warden
            await super()._is_waiting()
        if not self._connection.look():
            await self._connection.ping()
        return not self.ended and not self._stdin_closed

    async def _hand_over(self, stdin: bytes, seconds: float, more: bool) -> None:
        connection, channel = self._connection, self._channel
        if self._sandbox.keeps_deadlines:
            connection.watch(channel, seconds + self._launch.kill_grace + HOST_SLACK)
        connection.queue(limit_frame(channel.id, seconds))
        if not more:
            self._stdin_closed = True
        channel.stdin_free -= len(stdin)
        given = frame(FrameType.STDIN, channel.id, stdin) if stdin else b""
        end = b"" if more else frame(FrameType.STDIN_END, channel.id)
        await connection.send(given + end)

    async def resize(self, rows: int, columns: int) -> None:
        if self._launch.command.terminal is None:
            await super().resize(rows, columns)
        size = TerminalSize(rows, columns)
        if not self.ended:
            await self._connection.send(resize_frame(self._channel.id, size.rows, size.columns))

    async def _understand(self, end: ExitFrame) -> Exit:
        usage = Usage(end.cpu_us / 1e6, end.max_rss_kb * 1024)
        totals = end.stdout_total, end.stderr_total
        if end.kill_incomplete:
            await self._sandbox._destroy("a command's processes could not all be killed")
        if end.outcome is Outcome.NOT_STARTED:
            return self._not_started(end, totals)
        if end.timed_out:
            return Exit(EXIT_TIMED_OUT, ExitReason.TIMED_OUT, *totals, usage)
        if end.outcome is Outcome.UNKNOWN:
            await self._sandbox._destroy("how a command ended could not be told")
            self._connection.check()
        if end.outcome is Outcome.EXITED:
            return Exit(end.value, ExitReason.EXITED, *totals, usage)
        reason = ExitReason.SIGNALED
        ours = self._killed or end.value != _SIGKILL
        if not ours and self._memory_killed(end):
            reason = ExitReason.OUT_OF_MEMORY
        return Exit(128 + end.value, reason, *totals, usage)

    def _memory_killed(self, end: ExitFrame) -> bool:
        """Whether a memory limit has killed something since it began, as the nearest count says."""
        counter = self._sandbox.host.oom_kills
        if counter is None:
            return bool(end.oom_kills)
        return counter() > self._oom_before

    def _not_started(self, end: ExitFrame, totals: tuple[int, int]) -> Exit:
        command = self._launch.command
        if end.stage is Stage.CWD:
            raise_file_error(
                end.value, command_cwd(command, self._sandbox.workspace), self._sandbox.backend
            )
        if end.stage is Stage.TERMINAL:
            raise _terminal_error(end.value, self._sandbox.backend)
        if end.stage is not Stage.EXEC:
            raise _no_process("the command", end.value, self._sandbox.backend)
        name = os.fsdecode(command.argv_bytes[0])
        if end.value == errno.E2BIG:
            raise _too_long(command)
        if end.value in (errno.ENOENT, errno.ENOTDIR):
            return Exit(
                127, ExitReason.EXITED, *totals, message=f"{_shown(name)}: command not found\n"
            )
        text = f"{_shown(name)}: cannot be executed: {os.strerror(end.value)}\n"
        return Exit(126, ExitReason.EXITED, *totals, message=text)


def _check_terminals(connection: Connection, backend: str) -> None:
    """Refuse a terminal where the warden, an older one, would give the command pipes."""
    if connection.hello is None or Feature.TERMINAL not in connection.hello.features:
        raise UnsupportedError("the warden of this sandbox knows no terminals", backend=backend)


_SHORT_OF_TERMINALS = (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def _terminal_error(code: int, backend: str) -> SandboxError:
    text = f"no terminal could be opened for the command: {os.strerror(code)}"
    if code in _SHORT_OF_TERMINALS:
        hint = "programs hold so many that there is none left"
        return LimitError("terminals", text, backend=backend, hint=hint)
    return UnsupportedError(text, backend=backend, hint="it needs /dev/ptmx inside")


async def _abandon(connection: Connection, channel: Channel, operation: Operation) -> None:
    """End a file operation for which nobody waits any more."""
    if operation is not Operation.WRITE_MANY:
        await connection.send(kill_frame(channel.id, _SIGKILL))
        return
    with suppress(SandboxError):  # it removes what has not come whole, and ends
        await connection.send(frame(FrameType.STDIN_END, channel.id))
        await connection.wait(channel, lambda: channel.end is not None)


def _no_process(what: str, code: int, backend: str) -> LimitError:
    return LimitError(
        "pids",
        f"no process could be started for {what}: {os.strerror(code)}",
        backend=backend,
        hint="the sandbox's processes have used its limit up",
    )


def _too_long(command: Command) -> CommandError:
    name = os.fsdecode(command.argv_bytes[0])
    return CommandError(f"{name!r}: the arguments and variables are too long together")


def _shown(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _whole_error(code: int, path: bytes, backend: str) -> WorkspaceError | None:
    return None if code == errno.EFBIG else _file_error(code, path, backend)


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


def raise_file_error(code: int, path: bytes, backend: str) -> NoReturn:
    """Raise the typed error for an errno that a file operation ended with."""
    raise _file_error(code, path, backend)


def _file_error(code: int, path: bytes, backend: str) -> WorkspaceError:
    shown = os.fsdecode(path)
    found = _FILE_ERRORS.get(code)
    if found is None:
        return WorkspaceError(shown, os.strerror(code), backend=backend)
    kind, text = found
    return kind(shown, text, backend=backend)
