"""What twins have that their source has not: text that stands in src/ringfence/sync.py as it is."""

HEAD = '''
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
'''

TAIL = '''
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
'''

CLASSES = {"Process": "process.py", "Run": "execution.py", "Sandbox": "backend/sandbox.py",
           "Backend": "backend/backend.py", "Pool": "pool/pool.py",
           "StreamedRun": "sessions/streaming.py",
           "BackgroundCommands": "sessions/background.py",
           "Session": "sessions/session.py", "SessionManager": "sessions/manager.py",
           "CodeRun": "contexts/run.py", "CodeContexts": "contexts/contexts.py",
           "Archive": "export/archive.py", "ArtifactStore": "storage/store.py"}  # fmt: skip

# Bases that have no twin, and are elsewhere: what they have, each class's twin has itself.
PARTS = {"Opened": "opened.py", "SandboxFiles": "backend/files.py",
         "Closeable": "backend/closeable.py"}  # fmt: skip

# Functions that make one of these: where each is, the module it is called by, and what it makes.
MAKERS = {"open_backend": ("registry.py", "registry", "Backend"),
          "open_store": ("storage/opening.py", "storage", "ArtifactStore")}  # fmt: skip

# Functions that take a sandbox: where each is, and the module that it is called by.
CALLS = {"export_workspace": ("export/exporting.py", "export"),
         "import_files": ("importing.py", "importing"),
         "archive_workspace": ("export/archive.py", "export")}  # fmt: skip

BASES = {"Session": "Sandbox"}

# What a class is made from, where that is not the async one.
INITS = {
    "Pool": """
        def __init__(self, config: PoolConfig[Sandbox]) -> None:
            settings = {**vars(config), "factory": partial(_made, config.factory)}
            self._inner = AsyncPool(PoolConfig(**settings))
            self._entered: Entered | None = None
    """,
    "CodeContexts": """
        def __init__(
            self, sandbox: Sandbox, *, python: str = "python3", limits: ContextLimits | None = None
        ) -> None:
            self._inner = AsyncCodeContexts(sandbox._inner, python=python, limits=limits)
            self._entered: Entered | None = None
    """,
    "Session": """
        def __init__(self, inner: AsyncSession) -> None:
            super().__init__(inner)
            self._inner: AsyncSession = inner
    """,
    "SessionManager": """
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
    """,
}

RENAMED = {"aclose": "close"}

# What the core asks for itself, and no user needs.
LEFT_OUT = {
    "BackgroundCommands.running",
    "Run.complete",
    "Sandbox.keeps_deadlines",
    "Session.end_if_overdue",
    "Session.hold",
    "Session.id",
    "Session.in_use",
    "Session.overdue",
    "Session.tell_later",
    "SessionManager.backend",
}

# The twins of what only the language calls, for the classes that have it.
SPECIAL = {
    "Archive.__aiter__": """
        def __iter__(self) -> Iterator[bytes]:
            return _each(self._inner.__aiter__())
    """,
    "ArtifactStore.put": """
        def put(
            self,
            key: str,
            content: bytes | Iterable[bytes],
            *,
            media_type: str = OCTETS,
            if_missing: bool = False,
        ) -> StoredObject:
            \"\"\"Store an object, as the async `put` does; an iterable may block.\"\"\"
            given = _content(content)
            return call(self._inner.put, key, given, media_type=media_type, if_missing=if_missing)
    """,
    "ArtifactStore.get": """
        def get(self, key: str, *, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
            \"\"\"Yield an object's content, or a part of it, as the async `get` does.\"\"\"
            return _each(self._inner.get(key, offset=offset, length=length))
    """,
    "ArtifactStore.list": """
        def list(self, prefix: str = "") -> Iterator[StoredObject]:
            \"\"\"Yield the objects below a prefix of whole parts, in no order.\"\"\"
            return _each(self._inner.list(prefix))
    """,
    "Process.__aiter__": """
        def __iter__(self) -> Self:
            self._inner.__aiter__()
            return self

        def __next__(self) -> Chunk:
            try:
                return call(self._inner.__anext__)
            except StopAsyncIteration:
                raise StopIteration from None
    """,
    "Sandbox.__aenter__": """
        def __enter__(self) -> Self:
            return self

        def __exit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            self.close()
    """,
    "Backend.__aenter__": """
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
    """,
}
SPECIAL["Pool.__aenter__"] = SPECIAL["Backend.__aenter__"]
SPECIAL["Session.background"] = """
    @property
    def background(self) -> BackgroundCommands:
        \"\"\"The commands in it that run on while nobody waits for them.\"\"\"
        return BackgroundCommands(self._inner.background)
"""
SPECIAL["SessionManager.sessions"] = """
    @property
    def sessions(self) -> list[Session]:
        \"\"\"The sessions that have a sandbox in this worker.\"\"\"
        return [Session(session) for session in self._inner.sessions]
"""
for _run in ("Run", "StreamedRun"):
    SPECIAL[f"{_run}.__aiter__"] = SPECIAL["Process.__aiter__"]
    SPECIAL[f"{_run}.__aenter__"] = SPECIAL["Backend.__aenter__"]
SPECIAL["CodeRun.__aiter__"] = SPECIAL["Process.__aiter__"].replace("Chunk", "Output")
SPECIAL["CodeRun.__aenter__"] = SPECIAL["Backend.__aenter__"]
SPECIAL["CodeContexts.__aenter__"] = SPECIAL["Backend.__aenter__"]
SPECIAL["SessionManager.__aenter__"] = SPECIAL["Backend.__aenter__"]

# A callback is called in its caller's thread, where it may block and be interrupted.
BODIES = {
    "Sandbox.exec": """
        if on_output is None:
            return call(self._inner.exec, command, args, timeout=timeout)
        with self.stream(command, args, timeout=timeout) as run:
            for chunk in run:
                on_output(chunk)
        return run.result
    """,
    "CodeContexts.run_code": """
        if on_output is None:
            return call(self._inner.run_code, code, context=context, timeout=timeout)
        with CodeRun(call(self._inner._stream, code, context, timeout)) as run:
            for output in run:
                on_output(output)
        return run.result
    """,
    "Pool.release": """
        call(self._inner.release, sandbox._inner)
    """,
    "Pool.lease": """
        sandbox = self.acquire(timeout=timeout)
        try:
            yield sandbox
        finally:
            self.release(sandbox)
    """,
    "SessionManager.exec": """
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
    """,
}

WORDS = (
    ("Use it with `async with`", "Use it in a `with` block"),
    ("It is shielded from cancellation.", "An interruption does not stop it."),
    ("and from any task", "and from any thread"),
    ("from many tasks at once", "from many threads at once"),
    ("`async with", "`with"),
    ("`await ", "`"),
    ("aclose", "close"),
    ("is skipped; may be async.", "is skipped, in another thread."),
    ("as it arrives, decoded; may be async", "decoded, in the caller's thread"),
    ("each output as it comes; may be async.", "each output, in the caller's thread."),
    ("Use `async with`.", "Use a `with` block."),
    ("If the caller is cancelled, the code", "If the caller is interrupted, the code"),
    ("decoded; may be async. It", "decoded, in the caller's thread. It"),
    ("also when the caller is cancelled", "also when the caller is interrupted"),
)
