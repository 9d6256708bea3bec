"""The synchronous twins of backends, sandboxes, processes, pools, sessions, exports and stores.

Written by scripts/twins from the async classes; change those, not this file. All calls
share one event loop in a thread of its own, so they also work where an event loop is running, and
from any thread::

    from ringfence import sync

    with sync.open_backend("auto") as backend:
        print(backend.execute("echo", ["hello"]).stdout_text)
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import anyio.to_thread

from . import export, importing, registry, storage
from .backend import DEFAULT_LIST_ENTRIES
from .backend import Backend as AsyncBackend
from .backend import Sandbox as AsyncSandbox
from .contexts import CodeContext, CodeResult, ContextLimits, Output
from .contexts import CodeContexts as AsyncCodeContexts
from .contexts import CodeRun as AsyncCodeRun
from .events import Observer
from .execution import Run as AsyncRun
from .export import Archive as AsyncArchive
from .export import ExportEvent, ExportLimits, ExportReport, Room
from .export.pipeline import AT_ONCE
from .importing import ImportLimits, ImportReport
from .incoming import Source
from .leases import LeaseStore
from .models import (
    Capabilities,
    Chunk,
    Command,
    Exit,
    FileInfo,
    Limits,
    Listing,
    Probe,
    Result,
    SandboxSpec,
)
from .policy import Plan, Policy
from .pool import Pool as AsyncPool
from .pool import PoolConfig
from .portal import Entered, call
from .process import Process as AsyncProcess
from .registry import Config
from .sessions import DEFAULT_IDLE_TIMEOUT, DEFAULT_TENANT, BackgroundCommand, OutputPart
from .sessions import BackgroundCommands as AsyncBackgroundCommands
from .sessions import Session as AsyncSession
from .sessions import SessionManager as AsyncSessionManager
from .sessions import StreamedRun as AsyncStreamedRun
from .sessions.background import DEFAULT_READ_BYTES, DEFAULT_WRITE_TIMEOUT
from .storage import ArtifactStore as AsyncArtifactStore
from .storage import StoreConfig, StoredObject
from .storage.store import OCTETS

__all__ = (
    "Archive",
    "ArtifactStore",
    "Backend",
    "BackgroundCommands",
    "CodeContexts",
    "CodeRun",
    "Pool",
    "Process",
    "Run",
    "Sandbox",
    "Session",
    "SessionManager",
    "StreamedRun",
    "archive_workspace",
    "export_workspace",
    "import_files",
    "open_backend",
    "open_store",
)

_Target: TypeAlias = "str | os.PathLike[str] | ArtifactStore | AsyncArtifactStore"


class Process:
    """One running command. Deadlines, caps and decoding are written above it.

    Output must be consumed: a program that writes more than the window waits for its reader.
    """

    def __init__(self, inner: AsyncProcess) -> None:
        self._inner = inner

    @property
    def pid(self) -> int | None:
        """The process id inside the sandbox, where the backend knows it."""
        return self._inner.pid

    def receive(self) -> Chunk | None:
        """Return the next output in order of arrival, or None when the command has ended.

        It has ended when its main process has, even if a left-over child holds its pipes open.

        Raises:
            SandboxLostError: The sandbox died under it.
        """
        return call(self._inner.receive)

    def wait(self) -> Exit:
        """Return how the command ended. Output that nobody received is dropped.

        Raises:
            SandboxLostError: The sandbox died, or the command's end can't be told for certain.
        """
        return call(self._inner.wait)

    def kill(self, signal: int | None = None) -> None:
        """End the command's whole tree: TERM, a grace, KILL. Safe after its end.

        Args:
            signal: Send this signal to every process of the tree instead, and nothing more.
        """
        call(self._inner.kill, signal)

    def write_stdin(self, data: bytes) -> None:
        """Send bytes to the command's stdin, waiting while it does not read.

        Data for a command that has closed its stdin or ended is dropped.
        """
        call(self._inner.write_stdin, data)

    def close_stdin(self) -> None:
        """Let the command see end of file. Safe to call again."""
        call(self._inner.close_stdin)

    def resize(self, rows: int, columns: int) -> None:
        """Tell the command that its terminal has another size. Safe after its end.

        Args:
            rows: Its height in characters, 1 to 65,535.
            columns: Its width, likewise.

        Raises:
            CommandError: The size is impossible, or the command has no terminal.
        """
        call(self._inner.resize, rows, columns)

    def __iter__(self) -> Self:
        self._inner.__aiter__()
        return self

    def __next__(self) -> Chunk:
        try:
            return call(self._inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __repr__(self) -> str:
        return repr(self._inner)


class Run:
    """One command on its way from start to result.

    Use it in a `with` block; iterate over it for decoded chunks, or `run.finish()`. Leaving
    the block before the end kills the command's tree, also when the caller is interrupted.
    """

    def __init__(self, inner: AsyncRun) -> None:
        self._inner = inner
        self._entered: Entered | None = None

    @property
    def result(self) -> Result:
        """What the program did; there is one after the last chunk.

        Raises:
            RuntimeError: The command has not ended yet.
        """
        return self._inner.result

    def __enter__(self) -> Self:
        self._entered = Entered(self._inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            self._entered.__exit__(exc_type, exc, traceback)

    def finish(self) -> Result:
        """Drain the command to its end and return its result."""
        return call(self._inner.finish)

    def __iter__(self) -> Self:
        self._inner.__aiter__()
        return self

    def __next__(self) -> Chunk:
        try:
            return call(self._inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __repr__(self) -> str:
        return repr(self._inner)


class Sandbox:
    """One isolated environment with one writable workspace.

    Made by `Backend.create`. Commands may run in it at the same time; each is a process tree of
    its own. It lives until `close`, its maximum age, or its death.
    """

    def __init__(self, inner: AsyncSandbox) -> None:
        self._inner = inner

    @property
    def id(self) -> str:
        """Its own name, unique on this machine."""
        return self._inner.id

    @property
    def spec(self) -> SandboxSpec:
        """What was asked for."""
        return self._inner.spec

    @property
    def limits(self) -> Limits:
        """The limits in force, every default filled in."""
        return self._inner.limits

    @property
    def capabilities(self) -> Capabilities:
        """What its backend can promise."""
        return self._inner.capabilities

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ping(self, *, timeout: float = 2.0) -> None:
        """Find out whether the sandbox is alive and answers, without starting a command.

        Args:
            timeout: Seconds in which it must answer.

        Raises:
            SandboxLostError: It is dead, or has not answered in time.
            SandboxClosedError: It has been closed.
        """
        call(self._inner.ping, timeout=timeout)

    def start(self, command: Command, *, stdin_open: bool = False) -> Process:
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
        return Process(call(self._inner.start, command, stdin_open=stdin_open))

    def exec(
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
            on_output: Called with each chunk decoded, in the caller's thread. An exception
                from it stops the command and reaches the caller.

        Raises:
            CommandError: The command can't be run anywhere.
            SandboxLostError: The sandbox died; the output so far is lost.
        """
        if on_output is None:
            return call(self._inner.exec, command, args, timeout=timeout)
        with self.stream(command, args, timeout=timeout) as run:
            for chunk in run:
                on_output(chunk)
        return run.result

    def stream(
        self, command: Command | str, args: Sequence[str] = (), *, timeout: float | None = None
    ) -> Run:
        """Run a command and hand out its output as it arrives.

        Use it as `with sandbox.stream(...) as run`, iterate over `run` for decoded chunks,
        and read `run.result` after the last one. Leaving the block early kills the command.
        """
        return Run(self._inner.stream(command, args, timeout=timeout))

    @property
    def backend(self) -> str:
        """The name of the backend that made it."""
        return self._inner.backend

    @property
    def workspace(self) -> str:
        """The directory that is its workspace, as its programs see it."""
        return self._inner.workspace

    def write_file(
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
        call(self._inner.write_file, path, data, mode=mode, append=append)

    def read_file(
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
        return call(self._inner.read_file, path, offset=offset, max_bytes=max_bytes)

    def list_files(
        self, path: str | bytes = ".", *, max_entries: int = DEFAULT_LIST_ENTRIES
    ) -> Listing:
        """Return a directory's entries, sorted, with the number that there really are."""
        return call(self._inner.list_files, path, max_entries=max_entries)

    def stat(self, path: str | bytes) -> FileInfo:
        """Describe a path; a link is described, not followed."""
        return call(self._inner.stat, path)

    def make_dir(self, path: str | bytes) -> None:
        """Make a directory and those above it; one that exists is fine."""
        call(self._inner.make_dir, path)

    def remove(self, path: str | bytes) -> None:
        """Remove a file, a link, or a directory with all that is in it."""
        call(self._inner.remove, path)

    def move(self, path: str | bytes, target: str | bytes) -> None:
        """Rename within the workspace, replacing a file that is at `target`."""
        call(self._inner.move, path, target)

    def close(self) -> None:
        """Free everything that is held. Safe to call again."""
        call(self._inner.aclose)

    def __repr__(self) -> str:
        return repr(self._inner)


class Backend:
    """One kind of isolation and its driver.

    `__init__` stores a config and does no I/O. Use it in a `with` block: entering probes the
    machine and fails with a `BackendUnavailableError` where it can't run here.
    """

    def __init__(self, inner: AsyncBackend) -> None:
        self._inner = inner
        self._entered: Entered | None = None

    @property
    def name(self) -> str:
        """What the registry calls it."""
        return self._inner.name

    @property
    def capabilities(self) -> Capabilities:
        """What it can promise here; complete once the backend has been opened."""
        return self._inner.capabilities

    @property
    def default_limits(self) -> Limits:
        """Its hardened defaults, with the config's own limits over them."""
        return self._inner.default_limits

    def probe(self) -> Probe:
        """Find out whether it can run on this machine now. Never raises for a 'no'."""
        return call(self._inner.probe)

    def reap(self) -> int:
        """Remove what dead owners left on this machine and return how many sandboxes that was.

        What a live owner holds, and what is not ours, stays.
        """
        return call(self._inner.reap)

    def __enter__(self) -> Self:
        self._entered = Entered(self._inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            self._entered.__exit__(exc_type, exc, traceback)

    def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Make a live sandbox.

        Raises:
            LimitError: A limit was asked for that can't be enforced here.
            UnsupportedError: The network or mounts asked for are not to be had here.
            CreateError: It could not be made; nothing is left of the attempt.
        """
        return Sandbox(call(self._inner.create, spec))

    def execute(
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
        return call(self._inner.execute, command, args, timeout=timeout, spec=spec)

    def close(self) -> None:
        """Free everything that is held. Safe to call again."""
        call(self._inner.aclose)

    def __repr__(self) -> str:
        return repr(self._inner)


class Pool:
    """Sandboxes that are booted before they are asked for. Each is handed out once.

    Use it in a `with` block; leaving the block closes it. What it makes on demand or ahead it makes
    in the background; callers are served in the order in which they came.

    Args:
        config: Its factory and its size.
    """

    def __init__(self, config: PoolConfig[Sandbox]) -> None:
        settings = {**vars(config), "factory": partial(_made, config.factory)}
        self._inner = AsyncPool(PoolConfig(**settings))
        self._entered: Entered | None = None

    @property
    def size(self) -> int:
        """How many sandboxes there are: ready, in use, being made and being removed."""
        return self._inner.size

    @property
    def in_use(self) -> int:
        """How many have been handed out and not released."""
        return self._inner.in_use

    @property
    def ready(self) -> int:
        """How many can be handed out at once."""
        return self._inner.ready

    @property
    def waiting(self) -> int:
        """How many callers stand in line."""
        return self._inner.waiting

    def warmup(self, n: int, *, timeout: float | None = None) -> None:
        """Return when that many are ready, and from now on keep so many ready.

        There are never more than `max_size` in all, and those in use count: the rest of them is as
        much as is waited for.

        Args:
            n: How many.
            timeout: Seconds to wait for them. Default: the config's `create_timeout`.

        Raises:
            PoolTimeoutError: They were not ready in time; they are still being made.
            PoolClosedError: The pool is not open.
            SandboxError: One could not be made; the pool goes on trying.
        """
        call(self._inner.warmup, n, timeout=timeout)

    def acquire(self, *, timeout: float | None = None) -> Sandbox:
        """Return a clean sandbox, a ready one or the next that comes up; `release` it after use.

        Args:
            timeout: Seconds to wait for it. Default: the config's `acquire_timeout`.

        Raises:
            PoolTimeoutError: None came free in time.
            PoolClosedError: The pool is not open, or was closed meanwhile.
            SandboxError: It had to be made, and could not be.
        """
        return Sandbox(call(self._inner.acquire, timeout=timeout))

    def release(self, sandbox: Sandbox) -> None:
        """Give a sandbox back, to be destroyed in the background; another takes its place.

        Safe to call again, and after the pool was closed.

        Raises:
            PoolError: It is not this pool's.
        """
        call(self._inner.release, sandbox._inner)

    @contextmanager
    def lease(self, *, timeout: float | None = None) -> Iterator[Sandbox]:
        """Acquire a sandbox for a block, and release it at the block's end.

        Args:
            timeout: Seconds to wait for it. Default: the config's `acquire_timeout`.

        Raises:
            SandboxError: As from `acquire`.
        """
        sandbox = self.acquire(timeout=timeout)
        try:
            yield sandbox
        finally:
            self.release(sandbox)

    def execute(
        self, command: Command | str, args: Sequence[str] = (), *, timeout: float | None = None
    ) -> Result:
        """Run one command in a clean sandbox, as a backend's `execute` does.

        All that the command started has ended when this returns; its sandbox is destroyed in the
        background.

        Args:
            command: A `Command`, or a program's name with `args` beside it.
            args: The arguments that follow a program's name.
            timeout: Seconds; overrides the command's own. The wait for a sandbox is not in it.

        Raises:
            CommandError: The command can't be run anywhere.
            SandboxError: As from `acquire`, or the sandbox could not run it.
        """
        return call(self._inner.execute, command, args, timeout=timeout)

    def close(self) -> None:
        """Turn away who waits, and destroy every sandbox, also those in use.

        Safe to call again and from any thread. An interruption does not stop it.
        """
        call(self._inner.aclose)

    def __enter__(self) -> Self:
        self._entered = Entered(self._inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            self._entered.__exit__(exc_type, exc, traceback)

    def __repr__(self) -> str:
        return repr(self._inner)


class StreamedRun:
    """A command whose reader may be slow: it never waits for it.

    Use it in a `with` block, and iterate over it for decoded chunks; after the last one there is
    `result`. What the reader has not taken is buffered, at most `output_bytes` of each stream,
    which is all that is ever kept. For a reader that is far behind, chunks come joined, and then
    the order within a stream is exact and the one between the two only roughly so. Leaving the
    block before the end kills the command's tree.
    """

    def __init__(self, inner: AsyncStreamedRun) -> None:
        self._inner = inner
        self._entered: Entered | None = None

    @property
    def result(self) -> Result:
        """What the program did; there is one after the last chunk.

        Raises:
            RuntimeError: The command has not ended yet.
        """
        return self._inner.result

    def finish(self) -> Result:
        """Wait for the end of the command and return its result; chunks can still be read."""
        return call(self._inner.finish)

    def __enter__(self) -> Self:
        self._entered = Entered(self._inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            self._entered.__exit__(exc_type, exc, traceback)

    def __iter__(self) -> Self:
        self._inner.__aiter__()
        return self

    def __next__(self) -> Chunk:
        try:
            return call(self._inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __repr__(self) -> str:
        return repr(self._inner)


class BackgroundCommands:
    """The background commands of one session, as `Session.background`."""

    def __init__(self, inner: AsyncBackgroundCommands) -> None:
        self._inner = inner

    def start(self, command: Command | str, *, stdin_open: bool = True) -> BackgroundCommand:
        """Start a command and return at once; it runs on whatever becomes of the caller.

        Args:
            command: A script for `bash -c` (`sh -c` where there is no bash), or a `Command`.
                Without a timeout in it, only the sandbox's maximum age bounds it. With a
                `terminal` it has one.
            stdin_open: Keep its stdin open for `write`, until `close_stdin`.

        Raises:
            LimitError: As many as a session can have run already.
            CommandError: It can't be run, or its stdin is more than 64 KiB or an iterator.
            UnsupportedError: It is to have a terminal, and this backend has none.
            SandboxError: As from `Session.ensure`.
        """
        return call(self._inner.start, command, stdin_open=stdin_open)

    def commands(self) -> list[BackgroundCommand]:
        """Return all that run, and those that ended lately, in the order of their starts."""
        return call(self._inner.commands)

    def get(self, command_id: str) -> BackgroundCommand:
        """Return what is known of one.

        Raises:
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        return call(self._inner.get, command_id)

    def read(
        self,
        command_id: str,
        offset: int = 0,
        *,
        max_bytes: int = DEFAULT_READ_BYTES,
        wait: float = 0.0,
    ) -> OutputPart:
        """Return output from an offset on; stdout and stderr together, as they arrived.

        The last MiB is kept. What was asked for and is gone is counted in `dropped`.

        Args:
            command_id: Which.
            offset: Where to begin, from `next_offset` of what was read before; below 0, so many
                bytes before the end.
            max_bytes: The most to return.
            wait: Seconds to wait for something at that offset, if there is nothing yet; below 0,
                for something new.

        Raises:
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        return call(self._inner.read, command_id, offset, max_bytes=max_bytes, wait=wait)

    def write(
        self, command_id: str, data: bytes | str, *, timeout: float = DEFAULT_WRITE_TIMEOUT
    ) -> None:
        """Send to its stdin; with a terminal, type: Enter is a line feed, Ctrl-C the byte 3.

        What is sent to one that has ended, or has closed its stdin, is dropped.

        Args:
            command_id: Which.
            data: Bytes, or text to be encoded as UTF-8.
            timeout: Seconds in which it must be taken.

        Raises:
            CommandError: It does not read: a part may have been taken.
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        call(self._inner.write, command_id, data, timeout=timeout)

    def close_stdin(self, command_id: str) -> None:
        """Let it see end of file; with a terminal, type what stands for that."""
        call(self._inner.close_stdin, command_id)

    def resize(self, command_id: str, rows: int, columns: int) -> None:
        """Tell it that its terminal has another size, in characters.

        Raises:
            CommandError: The size is impossible, or it has no terminal.
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        call(self._inner.resize, command_id, rows, columns)

    def signal(self, command_id: str, number: int) -> None:
        """Send a signal to every process of its tree.

        Raises:
            CommandError: There is no such signal.
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        call(self._inner.signal, command_id, number)

    def kill(self, command_id: str) -> None:
        """End its whole tree: TERM, a grace, KILL. Returns before that is done; see `wait`."""
        call(self._inner.kill, command_id)

    def wait(self, command_id: str, timeout: float | None = None) -> Exit | None:
        """Wait for its end and return how it ended, or None if it runs on.

        Args:
            command_id: Which.
            timeout: Seconds to wait at most.

        Raises:
            SandboxLostError: Its sandbox ended under it.
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        return call(self._inner.wait, command_id, timeout)

    def __repr__(self) -> str:
        return repr(self._inner)


class Session(Sandbox):
    """The sandbox of one execution, as all its calls see it.

    It is a `Sandbox` like any other, but there is nothing behind it until its first use, and when
    what was behind it has died or come to its end, that is told once, by a `SandboxLostError`; the
    call after that gets a new sandbox, and `Result.workspace_is_new` says so. It ends with
    `close`, which is what `SessionManager.destroy_execution` does.
    """

    def __init__(self, inner: AsyncSession) -> None:
        super().__init__(inner)
        self._inner: AsyncSession = inner

    @property
    def execution_id(self) -> str:
        """The execution that it belongs to."""
        return self._inner.execution_id

    @property
    def tenant_id(self) -> str:
        """Whose execution it is."""
        return self._inner.tenant_id

    @property
    def plan(self) -> Plan:
        """What the tenant may have."""
        return self._inner.plan

    @property
    def background(self) -> BackgroundCommands:
        """The commands in it that run on while nobody waits for them."""
        return BackgroundCommands(self._inner.background)

    @property
    def generation(self) -> int:
        """How many sandboxes it has had in this worker; 0 before the first use."""
        return self._inner.generation

    @property
    def is_live(self) -> bool:
        """Whether there is a sandbox behind it now."""
        return self._inner.is_live

    @property
    def has_restarted(self) -> bool:
        """Whether an earlier sandbox of the execution is gone, here or in a worker that died."""
        return self._inner.has_restarted

    @property
    def is_closed(self) -> bool:
        """Whether the execution has been destroyed."""
        return self._inner.is_closed

    def ensure(self) -> None:
        """Make the sandbox now, unless there is one.

        Raises:
            SandboxLostError: The one that there was has ended, and nobody was told yet.
            SessionElsewhereError: Another live worker holds the execution.
            LimitError: The tenant has as many sandboxes as its plan allows.
            LeaseStoreError: The store of leases does not answer.
            CreateError: It could not be made; nothing is left of the attempt.
        """
        call(self._inner.ensure)

    def close(self) -> None:
        """Destroy the execution; when this returns, nothing of it runs. Safe to call again."""
        call(self._inner.aclose)

    def __repr__(self) -> str:
        return repr(self._inner)


class SessionManager:
    """One sandbox for each execution, on any backend. Use it in a `with` block.

    Leaving the block destroys the sandboxes of this worker; those of others stay.

    Args:
        backend: Makes the sandboxes; it must be open, and stays so.
        leases: Who holds which execution. Default: a file that all workers of this machine and
            user share. It is not closed with the manager if it was given.
        policy: Profiles and plans; default: those of this package.
        idle_timeout: Seconds until a sandbox that nobody uses is ended; a plan's own is an upper
            bound to it.
        observers: Who is told of what happens; see `ringfence.events`.
        warm: How many sandboxes to keep ready for sessions that ask for nothing of their own.
            They count for no plan until they are used, and have the labels of the worker alone.
        python_ahead: Whether a session's sandbox has a Python up before the next program comes
            that `python3 -` is to run, as `run_code` of the tools has it; see `sessions.ahead`. It
            takes the memory of an idle interpreter in each sandbox that has run one.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        leases: LeaseStore | None = None,
        policy: Policy | None = None,
        idle_timeout: float = DEFAULT_IDLE_TIMEOUT,
        observers: Iterable[Observer] = (),
        warm: int = 0,
    ) -> None:
        self._inner = AsyncSessionManager(
            backend._inner,
            leases=leases,
            policy=policy,
            idle_timeout=idle_timeout,
            observers=observers,
            warm=warm,
        )
        self._entered: Entered | None = None

    @property
    def owner(self) -> str:
        """The name under which this worker holds its leases."""
        return self._inner.owner

    @property
    def sessions(self) -> list[Session]:
        """The sessions that have a sandbox in this worker."""
        return [Session(session) for session in self._inner.sessions]

    def session(
        self,
        execution_id: str,
        *,
        tenant_id: str = DEFAULT_TENANT,
        plan: str | None = None,
        profile: str = "session",
        spec: SandboxSpec | None = None,
    ) -> Session:
        """Return the session of an execution; nothing is made before its first use.

        Args:
            execution_id: Which execution: letters, digits and `._:@/+-`, at most 128.
            tenant_id: Whose it is, in the same form. Two tenants can use one id; they never meet.
            plan: What the tenant may have; default: the policy's default plan.
            profile: What the sandbox gets where nothing else is said.
            spec: What is asked for beyond the profile: limits, network, variables, mounts.

        Raises:
            ConfigError: A name is malformed or unknown, or the session exists and something else
                is asked for now.
            LimitError: More is asked for than the plan allows.
            SandboxClosedError: The manager is not open.
        """
        return Session(
            self._inner.session(
                execution_id, tenant_id=tenant_id, plan=plan, profile=profile, spec=spec
            )
        )

    def exec(
        self,
        execution_id: str,
        command: Command | str,
        *,
        tenant_id: str = DEFAULT_TENANT,
        timeout: float | None = None,
        on_output: Callable[[Chunk], Any] | None = None,
    ) -> Result:
        """Run a command in an execution's sandbox and return what it did.

        Args:
            execution_id: Which execution.
            command: A script for `bash -c` (`sh -c` where there is no bash), or a `Command`.
            tenant_id: Whose execution it is.
            timeout: Seconds; default 30, clamped to 300 or the plan's maximum.
            on_output: Called with each chunk, decoded, in the caller's thread. It may be slow, for
                the command does not wait. An exception from it stops the command and reaches
                the caller.

        Raises:
            CommandError: The command can't be run anywhere.
            SandboxError: As from `Session.ensure`, or the sandbox could not run it.
        """
        if on_output is None:
            return call(
                self._inner.exec, execution_id, command, tenant_id=tenant_id, timeout=timeout
            )
        with self.exec_streaming(
            execution_id, command, tenant_id=tenant_id, timeout=timeout
        ) as run:
            for chunk in run:
                on_output(chunk)
        return run.result

    def exec_streaming(
        self,
        execution_id: str,
        command: Command | str,
        *,
        tenant_id: str = DEFAULT_TENANT,
        timeout: float | None = None,
    ) -> StreamedRun:
        """Run a command and hand out its output as it arrives, to a reader who may be slow.

        Use it as `with sessions.exec_streaming(...) as run`, iterate over `run` for decoded
        chunks, and read `run.result` after the last one. Leaving the block early kills it.
        """
        return StreamedRun(
            self._inner.exec_streaming(execution_id, command, tenant_id=tenant_id, timeout=timeout)
        )

    def export(
        self,
        execution_id: str,
        target: _Target,
        *,
        tenant_id: str = DEFAULT_TENANT,
        limits: ExportLimits | None = None,
        on_progress: Callable[[ExportEvent], Any] | None = None,
    ) -> ExportReport:
        """Copy an execution's workspace into a directory or a store.

        In a store the keys begin with the tenant and the execution.

        Args:
            execution_id: Which execution.
            target: A directory, made if need be, or a store.
            tenant_id: Whose execution it is.
            limits: How much; in all never more than the plan's `storage_bytes`, which in a store
                bounds all that the tenant has there: what would exceed it is skipped.
            on_progress: As for `export_workspace`.

        Raises:
            LimitError: The tenant has all the `storage_bytes` of its plan in the store, and nothing
                of this execution.
            SandboxError: As from `Session.ensure`, or from `export_workspace`.
        """
        return call(
            self._inner.export,
            execution_id,
            _place(target),
            tenant_id=tenant_id,
            limits=limits,
            on_progress=on_progress,
        )

    def destroy_execution(self, execution_id: str, *, tenant_id: str = DEFAULT_TENANT) -> None:
        """End an execution's sandbox, if this worker has it. Safe to call again."""
        call(self._inner.destroy_execution, execution_id, tenant_id=tenant_id)

    def cleanup_stale(self) -> int:
        """Remove what workers left that have died, and return how many sandboxes that was.

        Happens by itself when the manager is opened and every few seconds from then on.

        Raises:
            LeaseStoreError: The store of leases does not answer.
        """
        return call(self._inner.cleanup_stale)

    def close(self) -> None:
        """Destroy the sandboxes of this worker. Safe to call again, and shielded."""
        call(self._inner.aclose)

    def __enter__(self) -> Self:
        self._entered = Entered(self._inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            self._entered.__exit__(exc_type, exc, traceback)

    def __repr__(self) -> str:
        return repr(self._inner)


class CodeRun:
    """Code that runs, as its context's `stream_code` returns it.

    Use it in a `with` block, iterate over it for outputs as they come, and read `result` after the
    last one. Leaving the block early interrupts the code, and the context can be used again.
    """

    def __init__(self, inner: AsyncCodeRun) -> None:
        self._inner = inner
        self._entered: Entered | None = None

    @property
    def result(self) -> CodeResult:
        """What the code did; there is one after the last output.

        Raises:
            RuntimeError: It has not ended yet.
        """
        return self._inner.result

    def __enter__(self) -> Self:
        self._entered = Entered(self._inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            self._entered.__exit__(exc_type, exc, traceback)

    def __iter__(self) -> Self:
        self._inner.__aiter__()
        return self

    def __next__(self) -> Output:
        try:
            return call(self._inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def finish(self) -> CodeResult:
        """Wait for the end and return the result."""
        return call(self._inner.finish)

    def __repr__(self) -> str:
        return repr(self._inner)


class CodeContexts:
    """Contexts of one sandbox, in which code finds what earlier code has left. Use `with`.

    Leaving the block ends them; the sandbox is not theirs, and stays.

    Args:
        sandbox: Where; a session, or any sandbox that runs programs.
        python: The interpreter to take there, a name or a path; it has the package `ipykernel`.
        limits: What they may take.
    """

    def __init__(
        self, sandbox: Sandbox, *, python: str = "python3", limits: ContextLimits | None = None
    ) -> None:
        self._inner = AsyncCodeContexts(sandbox._inner, python=python, limits=limits)
        self._entered: Entered | None = None

    def create_context(self, language: str = "python", *, name: str | None = None) -> CodeContext:
        """Start a kernel; it takes about a second.

        Args:
            language: `python` is all that there is.
            name: What it is called: letters, digits and `_.-`, at most 64. Default: `k1`, `k2`, ...

        Raises:
            CommandError: The name can't be used, or another context has it.
            UnsupportedError: There is no such language, or the sandbox runs no programs.
            KernelMissingError: The sandbox has no ipykernel; the hint says how to get one.
            ContextError: It could not be started.
            LimitError: There are as many as a sandbox can have.
            SandboxError: The sandbox could not run it.
        """
        return call(self._inner.create_context, language, name=name)

    def run_code(
        self,
        code: str,
        *,
        context: str | CodeContext | None = None,
        timeout: float | None = None,
        on_output: Callable[[Output], Any] | None = None,
    ) -> CodeResult:
        """Run code in a context and return what it did.

        What it has defined is there for the code after it. Code of one context runs one piece
        after the other, that of several at the same time. Code that asks for input gets an
        exception. If the caller is interrupted, the code is interrupted.

        Args:
            code: Cells of IPython: Python, with `await` at the top, and its `%` and `!` commands.
            context: Which; default: one of its own, made when it is first needed.
            timeout: Seconds; default 30, clamped to the sandbox's maximum. Then it is interrupted;
                if that does not help its kernel is killed, and `kernel_lost` says so.
            on_output: Called with each output, in the caller's thread.

        Raises:
            ContextMissingError: There is no such context.
            ContextLostError: Its kernel has died, now or before; `result` has what came of it.
            CommandError: The code or the timeout can't be right.
            SandboxLostError: The sandbox died.
        """
        if on_output is None:
            return call(self._inner.run_code, code, context=context, timeout=timeout)
        with CodeRun(call(self._inner._stream, code, context, timeout)) as run:
            for output in run:
                on_output(output)
        return run.result

    def stream_code(
        self, code: str, *, context: str | CodeContext, timeout: float | None = None
    ) -> CodeRun:
        """Run code in a context and hand out its outputs as they come; see `CodeRun`.

        Args:
            code: As for `run_code`.
            context: Which.
            timeout: As for `run_code`.

        Raises:
            ContextMissingError: There is no such context.
            CommandError: The code or the timeout can't be right.
        """
        return CodeRun(self._inner.stream_code(code, context=context, timeout=timeout))

    def list_contexts(self) -> list[CodeContext]:
        """Return those that there are, those whose kernel has died too."""
        return call(self._inner.list_contexts)

    def interrupt_context(self, context: str | CodeContext) -> None:
        """Interrupt the code that runs, as Ctrl-C does; where none runs, nothing happens.

        Raises:
            ContextMissingError: There is no such context.
            SandboxError: Its kernel or its sandbox is gone.
        """
        call(self._inner.interrupt_context, context)

    def restart_context(self, context: str | CodeContext) -> CodeContext:
        """Give it a new kernel, also if the old one has died. Its variables are gone, files stay.

        Code that runs in it is ended.

        Raises:
            ContextMissingError: There is no such context.
            ContextError: It could not be started; it can be tried again.
            SandboxError: The sandbox could not run it.
        """
        return call(self._inner.restart_context, context)

    def close_context(self, context: str | CodeContext) -> None:
        """End a context with all that it has started.

        Raises:
            ContextMissingError: There is no such context.
        """
        call(self._inner.close_context, context)

    def close(self) -> None:
        """End all contexts. Safe to call again."""
        call(self._inner.aclose)

    def __enter__(self) -> Self:
        self._entered = Entered(self._inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            self._entered.__exit__(exc_type, exc, traceback)

    def __repr__(self) -> str:
        return repr(self._inner)


class Archive:
    """An archive that is made while it is iterated over; `report` says what is in it."""

    def __init__(self, inner: AsyncArchive) -> None:
        self._inner = inner

    @property
    def report(self) -> ExportReport:
        """What is in it and what was left out.

        Raises:
            RuntimeError: It has not been iterated over to the end.
        """
        return self._inner.report

    def __iter__(self) -> Iterator[bytes]:
        return _each(self._inner.__aiter__())

    def __repr__(self) -> str:
        return repr(self._inner)


class ArtifactStore:
    """A place for objects, made by `open_store`.

    It can be used from many threads at once, and holds nothing that has to be closed.

    Attributes:
        name: Where it is, fit to be shown: no credentials.
        has_links: Whether `link` works.
    """

    def __init__(self, inner: AsyncArtifactStore) -> None:
        self._inner = inner

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def has_links(self) -> bool:
        return self._inner.has_links

    @property
    def place(self) -> str:
        """What two stores have in common, in whatever process, if they hold the same objects."""
        return self._inner.place

    def put(
        self,
        key: str,
        content: bytes | Iterable[bytes],
        *,
        media_type: str = OCTETS,
        if_missing: bool = False,
    ) -> StoredObject:
        """Store an object, as the async `put` does; an iterable may block."""
        given = _content(content)
        return call(self._inner.put, key, given, media_type=media_type, if_missing=if_missing)

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield an object's content, or a part of it, as the async `get` does."""
        return _each(self._inner.get(key, offset=offset, length=length))

    def read(self, key: str, *, max_bytes: int) -> bytes:
        """Return a whole object that has at most so many bytes.

        Raises:
            ObjectMissingError: There is no such object.
            StoreError: It has more.
        """
        return call(self._inner.read, key, max_bytes=max_bytes)

    def head(self, key: str) -> StoredObject:
        """Describe an object, with its SHA-256 and media type where the store can tell.

        Raises:
            ObjectMissingError: There is no such object.
        """
        return call(self._inner.head, key)

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects below a prefix of whole parts, in no order."""
        return _each(self._inner.list(prefix))

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is fine."""
        call(self._inner.delete, key)

    def link(self, key: str, *, expires_in: float = 3600.0) -> str:
        """Return a URL by which anybody can download an object until it expires.

        It is made without asking the store, so there need not be such an object. Whoever has the
        URL has the object: keep it out of logs.

        Args:
            key: Of the object.
            expires_in: Seconds from now, at most a week.

        Raises:
            UnsupportedError: This store has no links; `has_links` says so too.
            StoreError: `expires_in` is out of range.
        """
        return call(self._inner.link, key, expires_in=expires_in)

    def __repr__(self) -> str:
        return repr(self._inner)


def open_backend(config: Config = "auto") -> Backend:
    """Return the backend that a config describes, to be entered with `with`.

    Nothing is started before it is entered. With `auto`, the choice is made then too: the
    strongest that can run here, never one that isolates nothing. `select_backend` makes the
    choice without opening anything.

    Args:
        config: A backend's name or alias (with its own defaults), a config, or a mapping with the
            keys of `BackendConfig`. Empty, as a name and in `BackendConfig`, means `process`.

    Raises:
        ConfigError: The config contradicts itself, or there is no such backend.
        BackendUnavailableError: This version does not have the backend.
        MissingDependencyError: A package that it needs is not installed.

    Warns:
        IsolationWarning: No backend was named, and `process` isolates nothing.
    """
    return Backend(registry.open_backend(config))


def open_store(where: str | os.PathLike[str] | StoreConfig) -> ArtifactStore:
    """Return a store, ready to use; no request is made yet.

    Args:
        where: A directory's path or `file:///` URL; `memory:` for one in this process that ends
            with it; `s3://bucket/prefix`, with credentials, region and endpoint from the `AWS_*`
            variables; or one of the configs.

    Raises:
        ConfigError: It names no store, or the directory can't be made.
        MissingDependencyError: It is not a directory, and the extra `storage` is not installed.
    """
    return ArtifactStore(storage.open_store(where))


def export_workspace(
    sandbox: Sandbox,
    target: _Target,
    limits: ExportLimits | None = None,
    *,
    prefix: str = "",
    on_progress: Callable[[ExportEvent], Any] | None = None,
    at_once: int = AT_ONCE,
    room: Room | None = None,
) -> ExportReport:
    """Copy the regular files of a workspace into a directory or a store.

    In a directory they have their exact names, replace files of the same name, and get mode 0644,
    or 0755 where their owner may execute them; directories are made where a file needs them. In a
    store they are objects below `PREFIX/files/`, by keys that `ringfence.storage.unescape_path`
    turns back, with the list of all of them in `PREFIX/manifest.json`; what was there of an earlier
    export and is not in the workspace any more stays, and is not in the list.

    Args:
        sandbox: Whose workspace.
        target: A directory, made if need be, or a store.
        limits: How much.
        prefix: What the keys in a store begin with: `key_prefix(tenant, execution)`.
        on_progress: Called for each file that is done and each entry that
            is skipped, in another thread. An exception from it stops the export and
            reaches the caller.
        at_once: How many files are in work at a time, each with some MiB of memory; small ones
            that go to a directory count together.
        room: What may still be added to a store, shared with other exports; None bounds nothing.

    Raises:
        ConfigError: The directory can't be made, or a store has no prefix, or a directory one.
        ObjectKeyError: The prefix is none.
        SandboxLostError: The sandbox died; what was copied until then is whole, and stays.
        SandboxClosedError: It is closed.
        StoreError: The store failed. Exporting again goes on from there.
    """
    return call(
        export.export_workspace,
        sandbox._inner,
        _place(target),
        limits,
        prefix=prefix,
        on_progress=on_progress,
        at_once=at_once,
        room=room,
    )


def import_files(
    sandbox: Sandbox,
    source: Source,
    *,
    into: str | bytes = ".",
    limits: ImportLimits | None = None,
    at_once: int = AT_ONCE,
) -> ImportReport:
    """Write many files into a workspace, several at a time and small ones together.

    Each is written whole, replacing a file of its name. The first that fails ends the import: those
    that were written stay, of which `WorkspaceError.written` has the paths, and nothing of the one
    that failed does.

    Args:
        sandbox: Whose workspace.
        source: Contents by path; a directory of this machine (see `directory_files`); or an
            iterable of `Incoming`, async or not, such as `stored_files`.
        into: The directory of the workspace that the paths are below, made if need be.
        limits: How much.
        at_once: How many files are in work at a time, each with some MiB of memory.

    Raises:
        LimitError: There is more than the limits allow. For contents that are bytes and sizes that
            are known this is said before the file is begun.
        PathError: A path leads out of the workspace.
        WorkspaceError: A file could not be written, or came to another size or SHA-256.
        SandboxLostError: The sandbox died.
    """
    return call(
        importing.import_files, sandbox._inner, source, into=into, limits=limits, at_once=at_once
    )


def archive_workspace(
    sandbox: Sandbox, format: Literal["tar", "zip"] = "tar", limits: ExportLimits | None = None
) -> Archive:
    """Return the regular files of a workspace as one archive, to be iterated over once.

    Args:
        sandbox: Whose workspace.
        format: `tar` (GNU, with exact names) or `zip` (compressed; a name that is not fit for
            every system is escaped as in a store's key). Both without links, owners and
            directories of their own; modes are 0644 or 0755.
        limits: How much.

    Raises:
        ConfigError: There is no such format.
    """
    return Archive(export.archive_workspace(sandbox._inner, format, limits))


def _place(target: _Target) -> str | os.PathLike[str] | AsyncArtifactStore:
    """Return where an export goes, as the async ones take it."""
    return target._inner if isinstance(target, ArtifactStore) else target


def _content(content: bytes | Iterable[bytes]) -> bytes | AsyncIterator[bytes]:
    """Return a content as async stores take it; what blocks does so in a thread."""
    return content if isinstance(content, bytes) else _streamed(iter(content))


async def _streamed(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (part := await anyio.to_thread.run_sync(next, parts, None)) is not None:
        yield part


def _each(parts: Any) -> Iterator[Any]:
    """Yield what an async generator yields, and close it at the end or when it is left."""
    try:
        while (part := call(anext, parts, None)) is not None:
            yield part
    finally:
        call(parts.aclose)


async def _made(factory: Callable[[], Any]) -> Any:
    """Call a factory that blocks, in a thread: it may need the event loop itself."""
    made = await anyio.to_thread.run_sync(factory)
    return made._inner if isinstance(made, Sandbox) else made
