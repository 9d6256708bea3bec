"""The contract of a backend, its sandboxes and their processes, as abstract classes.

Three kinds of method are kept apart. What a backend must implement is abstract and starts with an
underscore (`_create`, `_start`, ...). What follows from it is written once, here and in
`execution`. What users call has no underscore and is final.

A backend makes sandboxes; a sandbox runs commands and holds one workspace; a process is one
running command. A program that fails is a `Result`; a sandbox that can't run it is a
`SandboxError`.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, final

import anyio

from . import execution
from .errors import (
    CommandError,
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    FileTooLargeError,
    LimitError,
    PathError,
    SandboxError,
    SandboxLostError,
    UnsupportedError,
    WorkspaceError,
)
from .models import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT,
    MAX_TIMEOUT,
    Capabilities,
    Chunk,
    Command,
    FileInfo,
    Limits,
    Listing,
    Probe,
    Result,
    SandboxSpec,
    new_sandbox_id,
    without_leftovers,
)
from .process import FIRST_STDIN_BYTES, Launch, Process

__all__ = (
    "BASE_LIMITS",
    "DEFAULT_LIST_ENTRIES",
    "NOT_BEGUN",
    "UNDO_SECONDS",
    "Backend",
    "Launch",
    "NewFile",
    "Process",
    "Sandbox",
    "as_command",
    "command_cwd",
    "one_shot_command",
    "workspace_path",
)

BASE_LIMITS = Limits(
    output_bytes=DEFAULT_OUTPUT_BYTES,
    timeout=DEFAULT_TIMEOUT,
    max_timeout=MAX_TIMEOUT,
    kill_grace=0.5,  # enough for a handler that flushes a file, short for a person who waits
    start_timeout=10.0,
    max_age=3600.0,
)
"""The limits that our own clock holds, the same on every backend."""

DEFAULT_LIST_ENTRIES = 10_000
DEFAULT_READ_BYTES = 64 * 1024 * 1024


NOT_BEGUN = (
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    PathError,
)
"""What says of a writing that it has changed nothing: what is there under the name is another's."""

UNDO_SECONDS = 5.0
"""Until the removal of a file that could not be written whole is given up."""


@dataclass(frozen=True)
class NewFile:
    """A small file that is to be written together with others.

    Attributes:
        path: Relative, without `..`.
        data: The whole content.
        mode: Permission bits; None for 0644, or those of the file that it replaces.
    """

    path: bytes
    data: bytes
    mode: int | None = None


class _AsyncCloseable(ABC):
    """Anything with an `aclose` that can be used with `async with`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Free everything that is held. Safe to call again."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class Sandbox(_AsyncCloseable):
    """One isolated environment with one writable workspace.

    Made by `Backend.create`. Commands may run in it at the same time; each is a process tree of
    its own. It lives until `aclose`, its maximum age, or its death.
    """

    backend: str
    """The name of the backend that made it."""
    id: str
    """Its own name, unique on this machine."""
    spec: SandboxSpec
    """What was asked for."""
    limits: Limits
    """The limits in force, every default filled in."""
    capabilities: Capabilities
    """What its backend can promise."""
    workspace: str = "/workspace"
    """The directory that is its workspace, as its programs see it."""

    keeps_deadlines: bool = False
    """Whether its processes raise `DeadlineError` by themselves, `HOST_SLACK` after the end of a
    command's time and grace, so that nothing above has to watch the clock."""

    # What a backend must implement.

    @abstractmethod
    async def _start(self, launch: Launch) -> Process:
        """Start a command.

        Raises:
            SandboxLostError: The sandbox is dead.
        """

    @abstractmethod
    async def _destroy(self, cause: str) -> None:
        """End the sandbox at once because it can't be trusted any more.

        Every later call gets a `SandboxLostError` with this cause.
        """

    @abstractmethod
    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        """Write a file below the workspace; `path` is relative and has no `..`."""

    @abstractmethod
    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return at most `max_bytes` from `offset`, and the file's whole size."""

    @abstractmethod
    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        """Return the first entries by the bytes of their names, and how many there are."""

    @abstractmethod
    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        """Run one of the small operations; `target` matters to `move` alone."""

    async def _read_files(
        self, paths: Sequence[bytes], max_bytes: int
    ) -> list[bytes | WorkspaceError | None]:
        """Read many small files at once, if there is a quicker way than one after the other.

        Some hundreds of paths always fit into one call.

        Args:
            paths: Relative, without `..`.
            max_bytes: Of all together.

        Returns:
            For each path its whole content, or the error that it alone has, or None: it is to be
            read by itself, as too large for this call or because there is no quicker way.
        """
        return [None] * len(paths)

    async def _write_files(self, files: Sequence[NewFile]) -> list[WorkspaceError | None]:
        """Write small files, each as `write_file` does; a backend may have a way for all at once.

        Some hundreds of files always fit into one call, of some MiB together. Of one that fails,
        or during which this is cancelled, nothing is left unless it was not begun; what was
        written before stays.

        Returns:
            For each file None if it was written, or the error that it alone has.
        """
        return [await self._write_whole(file) for file in files]

    async def _write_whole(self, file: NewFile) -> WorkspaceError | None:
        try:
            await self._write_file(file.path, file.data, file.mode, append=False)
        except BaseException as error:
            if not isinstance(error, NOT_BEGUN):
                with anyio.move_on_after(UNDO_SECONDS, shield=True), suppress(SandboxError):
                    await self._file_operation("remove", file.path, b"")
            if isinstance(error, WorkspaceError):
                return error
            raise
        return None

    async def _ping(self) -> None:
        """Return if the sandbox is alive, at the least cost that its backend knows.

        Raises:
            SandboxLostError: The sandbox is dead.
        """
        if self.capabilities.files:
            await self._file_operation("stat", b".", b"")

    # What users call.

    @final
    async def __aenter__(self) -> Self:
        return self

    @final
    async def ping(self, *, timeout: float = 2.0) -> None:
        """Find out whether the sandbox is alive and answers, without starting a command.

        Args:
            timeout: Seconds in which it must answer.

        Raises:
            SandboxLostError: It is dead, or has not answered in time.
            SandboxClosedError: It has been closed.
        """
        with anyio.move_on_after(timeout) as waiting:
            await self._ping()
        if waiting.cancelled_caught:
            raise SandboxLostError(
                f"sandbox {self.id} has not answered within {timeout:g} s",
                cause="silent",
                backend=self.backend,
            )

    @final
    async def start(self, command: Command, *, stdin_open: bool = False) -> Process:
        """Start a command and return it running.

        Without a timeout in the command, only the sandbox's maximum age bounds it.

        Args:
            command: What to run.
            stdin_open: Keep its stdin open for `write_stdin` until `close_stdin`.

        Raises:
            CommandError: The command can't be run anywhere, or its stdin is more than 64 KiB or
                an iterator: send that with `write_stdin`.
            PathError: Its cwd is not in the workspace.
            UnsupportedError: It is to have a terminal, and this backend has none.
            SandboxLostError: The sandbox is dead.
        """
        timeout = None if command.timeout is None else self._clamp(command.timeout)
        launch, rest = self._launch(command, timeout, None)
        if rest is not None:
            raise CommandError(
                "start() takes at most 64 KiB of stdin, as bytes or text",
                hint="use stdin_open=True and write_stdin()",
            )
        return await self._start(replace(launch, stdin_open=stdin_open))

    @final
    async def exec(
        self,
        command: Command | str,
        args: Sequence[str] = (),
        *,
        timeout: float | None = None,
        on_output: Callable[[Chunk], Any] | None = None,
    ) -> Result:
        """Run a command to its end and return what it did.

        Args:
            command: A `Command`, or a program's name with `args` beside it.
            args: The arguments that follow a program's name.
            timeout: Seconds; overrides the command's own.
            on_output: Called with each chunk as it arrives, decoded; may be async. An exception
                from it stops the command and reaches the caller.

        Raises:
            CommandError: The command can't be run anywhere.
            SandboxLostError: The sandbox died; the output so far is lost.
        """
        run = self.stream(command, args, timeout=timeout)
        if on_output is None:
            return await run.complete()
        async with run:
            async for chunk in run:
                outcome = on_output(chunk)
                if inspect.isawaitable(outcome):
                    await outcome
            return run.result

    @final
    def stream(
        self, command: Command | str, args: Sequence[str] = (), *, timeout: float | None = None
    ) -> execution.Run:
        """Run a command and hand out its output as it arrives.

        Use it as `async with sandbox.stream(...) as run`, iterate over `run` for decoded chunks,
        and read `run.result` after the last one. Leaving the block early kills the command.
        """
        wanted = as_command(command, args, timeout)
        seconds = self._clamp(wanted.timeout or self.limits.timeout or DEFAULT_TIMEOUT)
        cap = wanted.output_bytes
        if cap is None:
            cap = self.limits.output_bytes or DEFAULT_OUTPUT_BYTES
        launch, rest = self._launch(wanted, seconds, cap)
        held = self.capabilities.limits
        return execution.Run(
            self._start, self._destroy, launch, rest, held, keeps_deadlines=self.keeps_deadlines
        )

    @final
    async def write_file(
        self, path: str | bytes, data: bytes | str, *, mode: int | None = None, append: bool = False
    ) -> None:
        """Write a file, making the directories above it.

        Args:
            path: In the workspace: relative to it, or absolute below `/workspace`.
            data: The whole content; text is encoded as UTF-8.
            mode: Permission bits; default 0644 for a new file, unchanged for an existing one.
            append: Add to the end instead of replacing the content.

        Raises:
            WorkspaceError: One of its children says why.
        """
        raw = data.encode() if isinstance(data, str) else bytes(data)
        await self._write_file(workspace_path(path, self.workspace), raw, mode, append)

    @final
    async def read_file(
        self, path: str | bytes, *, offset: int = 0, max_bytes: int | None = None
    ) -> bytes:
        """Return a file's content.

        Args:
            path: In the workspace.
            offset: Where to begin.
            max_bytes: Return at most this much. Without it the whole rest is returned, and a rest
                of more than 64 MiB is refused.

        Raises:
            FileTooLargeError: No `max_bytes` was given and the rest is over 64 MiB.
            WorkspaceError: One of its children says why.
        """
        if offset < 0 or (max_bytes is not None and max_bytes < 0):
            raise CommandError("offset and max_bytes must be 0 or more")
        name = workspace_path(path, self.workspace)
        limit = DEFAULT_READ_BYTES if max_bytes is None else max_bytes
        data, size = await self._read_file(name, offset, limit)
        if max_bytes is None and size - offset > limit:
            raise FileTooLargeError(
                os.fsdecode(name),
                f"has {size} bytes, over the limit of {limit} for one call",
                backend=self.backend,
                hint="give offset and max_bytes to read it in parts",
            )
        return data

    @final
    async def list_files(
        self, path: str | bytes = ".", *, max_entries: int = DEFAULT_LIST_ENTRIES
    ) -> Listing:
        """Return a directory's entries, sorted, with the number that there really are."""
        if max_entries < 0:
            raise CommandError("max_entries must be 0 or more")
        entries, total = await self._list_files(workspace_path(path, self.workspace), max_entries)
        return Listing(tuple(entries), total)

    @final
    async def stat(self, path: str | bytes) -> FileInfo:
        """Describe a path; a link is described, not followed."""
        info = await self._file_operation("stat", workspace_path(path, self.workspace), b"")
        assert info is not None
        return info

    @final
    async def make_dir(self, path: str | bytes) -> None:
        """Make a directory and those above it; one that exists is fine."""
        await self._file_operation("make_dir", workspace_path(path, self.workspace), b"")

    @final
    async def remove(self, path: str | bytes) -> None:
        """Remove a file, a link, or a directory with all that is in it."""
        await self._file_operation("remove", workspace_path(path, self.workspace), b"")

    @final
    async def move(self, path: str | bytes, target: str | bytes) -> None:
        """Rename within the workspace, replacing a file that is at `target`."""
        await self._file_operation(
            "move", workspace_path(path, self.workspace), workspace_path(target, self.workspace)
        )

    # What follows.

    def _clamp(self, timeout: float) -> float:
        return min(timeout, self.limits.max_timeout or MAX_TIMEOUT)

    def _launch(
        self, command: Command, timeout: float | None, cap: int | None
    ) -> tuple[Launch, bytes | AsyncIterable[bytes] | None]:
        """Return a launch, and what of stdin must be sent after it."""
        command_cwd(command, self.workspace)
        if command.terminal is not None and not self.capabilities.terminal:
            raise UnsupportedError(
                f"a command can't have a terminal on {self.backend} here",
                backend=self.backend,
                hint="leave `terminal` out, or use a backend whose capabilities have it",
            )
        if self.spec.env:
            command = replace(command, env={**self.spec.env, **command.env})
        stdin = command.stdin.encode() if isinstance(command.stdin, str) else command.stdin
        first, rest = b"", None if stdin is None else stdin
        if isinstance(stdin, bytes):
            first, rest = stdin[:FIRST_STDIN_BYTES], stdin[FIRST_STDIN_BYTES:] or None
        grace = self.limits.kill_grace or 0.0
        return Launch(command, timeout, cap, grace, first, rest is not None), rest

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} backend={self.backend}>"


class Backend(_AsyncCloseable):
    """One kind of isolation and its driver.

    `__init__` stores a config and does no I/O. Use it with `async with`: entering probes the
    machine and fails with a `BackendUnavailableError` where it can't run here.
    """

    name: ClassVar[str]
    """What the registry calls it."""

    # What a backend must implement.

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can promise here; complete once the backend has been opened."""

    @property
    @abstractmethod
    def default_limits(self) -> Limits:
        """Its hardened defaults, with the config's own limits over them."""

    @abstractmethod
    async def probe(self) -> Probe:
        """Find out whether it can run on this machine now. Never raises for a 'no'."""

    @abstractmethod
    async def _open(self) -> None:
        """Get ready to create sandboxes.

        Raises:
            BackendUnavailableError: It can't run here; the message says why.
        """

    @abstractmethod
    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        """Make a sandbox, and undo everything on the way out of a failure or cancellation."""

    @abstractmethod
    async def reap(self) -> int:
        """Remove what dead owners left on this machine and return how many sandboxes that was.

        What a live owner holds, and what is not ours, stays.
        """

    # What users call.

    @final
    async def __aenter__(self) -> Self:
        await self._open()
        return self

    @final
    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Make a live sandbox.

        Raises:
            LimitError: A limit was asked for that can't be enforced here.
            UnsupportedError: The network or mounts asked for are not to be had here.
            CreateError: It could not be made; nothing is left of the attempt.
        """
        wanted, limits = self._resolve(spec)
        return await self._create(wanted, limits, new_sandbox_id())

    @final
    async def execute(
        self,
        command: Command | str,
        args: Sequence[str] = (),
        *,
        timeout: float | None = None,
        spec: SandboxSpec | None = None,
    ) -> Result:
        """Run one command in a clean sandbox of its own.

        When this returns, all that the command started is gone. The empty sandbox is too, or goes
        at once, in the background; closing the backend waits for it.

        Args:
            command: A `Command`, or a program's name with `args` beside it.
            args: The arguments that follow a program's name.
            timeout: Seconds; overrides the command's own.
            spec: What kind of sandbox; default: the backend's own.

        Raises:
            SandboxError: The sandbox could not run it.
        """
        wanted = one_shot_command(command, args, timeout)
        sandbox = await self._one_shot(spec)
        try:
            result = await sandbox.exec(wanted)
        except BaseException:
            await sandbox.aclose()
            raise
        await self._end_one_shot(sandbox)
        return result

    # What follows.

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        """Return a clean sandbox for one command; a backend may have one ready."""
        return await self.create(spec)

    async def _end_one_shot(self, sandbox: Sandbox) -> None:
        """End a sandbox whose only command has ended with all that it started.

        A backend may leave the empty sandbox to the background, and waits for it in `aclose`.
        """
        await sandbox.aclose()

    def _resolve(self, spec: SandboxSpec | None) -> tuple[SandboxSpec, Limits]:
        """Check a spec against what this backend can do and fill in its limits."""
        wanted = spec or SandboxSpec()
        able = self.capabilities
        if wanted.network is not None and wanted.network.mode not in able.network_modes:
            raise UnsupportedError(
                f"network {wanted.network.mode!r} is not available on {self.name}; it has "
                + " and ".join(repr(mode) for mode in able.network_modes),
                backend=self.name,
                hint="the container and kubernetes backends can reach a network",
            )
        if wanted.mounts and not able.mounts:
            raise UnsupportedError(
                f"{self.name} can't show host paths inside a sandbox", backend=self.name
            )
        for name in able.limits.missing(wanted.limits.asked() | self._asked()):
            raise LimitError(
                name,
                f"{self.name} can't enforce {name} on this machine",
                backend=self.name,
                hint="leave it out, or see `ringfence doctor` for what blocks it",
            )
        return wanted, wanted.limits.over(self.default_limits).over(BASE_LIMITS)

    def _asked(self) -> frozenset[str]:
        """Return the limits that the config asks for explicitly."""
        return frozenset()


def as_command(
    command: Command | str,
    args: Sequence[str],
    timeout: float | None,
    leftovers: Literal["keep", "kill"] = "keep",
) -> Command:
    """Return a `Command` from either form that `exec` and `execute` take."""
    if isinstance(command, Command):
        if args:
            raise CommandError("a Command has its arguments in argv; give no others beside it")
        return command if timeout is None else replace(command, timeout=timeout)
    if isinstance(args, (str, bytes)):
        raise CommandError("args is a list of arguments, not one string")
    return Command((command, *args), timeout=timeout, leftovers=leftovers)


def one_shot_command(command: Command | str, args: Sequence[str], timeout: float | None) -> Command:
    """Return a `Command` that leaves nothing running, from either form that `execute` takes."""
    if isinstance(command, Command):
        return without_leftovers(as_command(command, args, timeout))
    return as_command(command, args, timeout, leftovers="kill")


def workspace_path(path: str | bytes, workspace: str) -> bytes:
    """Return a path relative to the workspace, as bytes without `.` and `..`.

    `/workspace/...` is taken on every backend, and so is the workspace's real directory.

    Raises:
        PathError: It leads outside, is empty, or contains NUL.
    """
    try:
        raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PathError(repr(path), "can't be encoded as UTF-8") from None
    shown = raw.decode("utf-8", "backslashreplace")
    if not raw or b"\0" in raw:
        raise PathError(shown, "is empty or contains NUL")
    if raw.startswith(b"/"):
        for root in (workspace.encode("utf-8", "surrogateescape"), b"/workspace"):
            if raw == root or raw.startswith(root.rstrip(b"/") + b"/"):
                raw = raw[len(root) :].lstrip(b"/")
                break
        else:
            raise PathError(shown, "is outside of the workspace", hint=f"it is {workspace}")
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise PathError(shown, "may not contain '..'")
    return b"/".join(parts) or b"."


def command_cwd(command: Command, workspace: str) -> bytes:
    """Return a command's cwd relative to the workspace.

    Raises:
        PathError: It leads outside.
    """
    return b"." if command.cwd_bytes is None else workspace_path(command.cwd_bytes, workspace)
