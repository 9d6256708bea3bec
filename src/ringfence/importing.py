"""Brings many files into a workspace with one call, and sees to it that each came whole.

Where they come from is an iterable of `Incoming`: of a mapping, a directory of this machine, a
store, or whatever a caller makes. Their content may be streamed, so memory stays bounded.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import anyio
import anyio.to_thread

from . import host_files
from .backend import Sandbox, workspace_path
from .errors import ConfigError, LimitError, SandboxError, WorkspaceError
from .export.manifest import read_manifest
from .export.pipeline import AT_ONCE, each_of
from .export.report import MAX_FILE_BYTES
from .models import FileKind
from .storage.store import ArtifactStore, Content

__all__ = (
    "ImportLimits",
    "ImportReport",
    "Incoming",
    "directory_files",
    "import_files",
    "stored_files",
)

_PART_BYTES = 1 << 20
_MAX_DIRECTORY = 1_000_000

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Incoming:
    """A file that is to come into a workspace.

    Attributes:
        path: In the workspace, below where the import goes.
        content: Bytes, or an async iterable of bytes.
        size: What it has to come to; None if that is not known.
        sha256: What it has to come to, in hexadecimal; empty if that is not known.
        mode: Permission bits; None for 0644, or those of the file that it replaces.
    """

    path: str | bytes
    content: Content
    size: int | None = None
    sha256: str = ""
    mode: int | None = None


@dataclass(frozen=True)
class ImportLimits:
    """How much an import may bring in.

    Attributes:
        file_bytes: Of each file.
        total_bytes: Of all files.
        entries: Files.
    """

    file_bytes: int = MAX_FILE_BYTES
    total_bytes: int = 1 << 30
    entries: int = 10_000


@dataclass(frozen=True)
class ImportReport:
    """What an import did.

    Attributes:
        paths: Of the files in the workspace, sorted; bytes that are not UTF-8 as surrogate escapes.
        total_bytes: Of all of them.
    """

    paths: tuple[str, ...]
    total_bytes: int


Source: TypeAlias = (
    Mapping[str, bytes | str]
    | Iterable[Incoming]
    | AsyncIterable[Incoming]
    | str
    | os.PathLike[str]
)


async def import_files(
    sandbox: Sandbox,
    source: Source,
    *,
    into: str | bytes = ".",
    limits: ImportLimits | None = None,
    at_once: int = AT_ONCE,
) -> ImportReport:
    """Write many files into a workspace, several at a time.

    Each is written whole, replacing a file of its name, and looked at afterwards. The first that
    fails ends the import: those that were written stay, and nothing of the one that failed does.

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
    if at_once < 1:
        raise ConfigError(f"at_once is 1 or more, not {at_once}")
    work = _Import(sandbox, workspace_path(into, sandbox.workspace), limits or ImportLimits())
    await each_of(_incoming(source), work.take, at_once)
    return ImportReport(tuple(sorted(work.paths, key=os.fsencode)), work.total)


async def _incoming(source: Source) -> AsyncGenerator[Incoming, None]:
    if isinstance(source, (str, os.PathLike)):
        source = directory_files(source)
    if isinstance(source, Mapping):
        for path, data in source.items():
            yield Incoming(path, data.encode() if isinstance(data, str) else bytes(data))
    elif isinstance(source, AsyncIterable):
        async with _closing(source) as items:
            async for item in items:
                yield item
    else:
        for item in source:
            yield item


class _Import:
    """One import on its way."""

    def __init__(self, sandbox: Sandbox, into: bytes, limits: ImportLimits) -> None:
        self._sandbox = sandbox
        self._into = into
        self._limits = limits
        self._entries = 0
        self.paths: list[str] = []
        self.total = 0

    async def take(self, item: Incoming) -> None:
        if not isinstance(item, Incoming):
            raise ConfigError(f"what is imported is Incoming, not {type(item).__name__}")
        path = self._path(item.path)
        self._entries += 1
        if self._entries > self._limits.entries:
            raise LimitError("entries", f"more than {self._limits.entries} files to import")
        if isinstance(item.content, bytes) and item.size is None:
            item = replace(item, size=len(item.content))
        if item.size is not None:
            self._check(path, item.size, self.total + item.size)
        begun = False
        try:
            size, sha256 = 0, hashlib.sha256()
            async with aclosing(_parts(item.content)) as parts:
                async for part in parts:
                    size += len(part)
                    self.total += len(part)
                    self._check(path, size, self.total)
                    sha256.update(part)
                    begun, again = True, begun
                    await self._sandbox.write_file(path, part, mode=item.mode, append=again)
            await self._verify(path, item, size, sha256.hexdigest())
        except BaseException:
            if begun:
                with anyio.move_on_after(5, shield=True), suppress(SandboxError):
                    await self._sandbox.remove(path)
            raise
        self.paths.append(os.fsdecode(path))

    def _path(self, path: str | bytes) -> bytes:
        below = workspace_path(path, self._sandbox.workspace)
        if below == b".":
            raise WorkspaceError(os.fsdecode(path), "is the workspace itself and no file")
        return below if self._into == b"." else self._into + b"/" + below

    def _check(self, path: bytes, size: int, total: int) -> None:
        shown = os.fsdecode(path)
        if size > self._limits.file_bytes:
            raise LimitError(
                "file_bytes", f"{shown!r} has more than {self._limits.file_bytes} bytes"
            )
        if total > self._limits.total_bytes:
            raise LimitError(
                "total_bytes",
                f"with {shown!r} there are more than {self._limits.total_bytes} bytes to import",
            )

    async def _verify(self, path: bytes, item: Incoming, size: int, sha256: str) -> None:
        shown = os.fsdecode(path)
        if item.size is not None and size != item.size:
            raise WorkspaceError(shown, f"came to {size} bytes and not to {item.size}")
        if item.sha256 and sha256 != item.sha256:
            raise WorkspaceError(shown, "came to another SHA-256 than it has")
        found = await self._sandbox.stat(path)
        if found.kind is not FileKind.FILE or found.size != size:
            raise WorkspaceError(shown, f"has {found.size} bytes in the workspace, not {size}")


async def _parts(content: Content) -> AsyncGenerator[bytes, None]:
    """Yield a content in parts that one call of the sandbox takes; at least one."""
    if isinstance(content, bytes):
        for start in range(0, len(content) or 1, _PART_BYTES):
            yield content[start : start + _PART_BYTES]
        return
    is_empty = True
    async with _closing(content) as source:
        async for part in source:
            for start in range(0, len(part), _PART_BYTES):
                is_empty = False
                yield part[start : start + _PART_BYTES]
    if is_empty:
        yield b""


@asynccontextmanager
async def _closing(source: AsyncIterable[_Item]) -> AsyncIterator[AsyncIterator[_Item]]:
    """Iterate over what we were handed and close it: nobody else can."""
    items = aiter(source)
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


def directory_files(directory: str | os.PathLike[str]) -> Iterator[Incoming]:
    """Yield the regular files below a directory of this machine, through no link.

    Links, FIFOs and devices are left out. Modes become 0644, or 0755 where the owner may execute.

    Raises:
        ConfigError: It is no directory.
    """
    root = os.path.abspath(directory)
    if not os.path.isdir(root):
        raise ConfigError(f"{root!r} is no directory to import from")
    waiting = [b""]
    while waiting:
        place = waiting.pop()
        entries, _ = host_files.list_files(root, place or b".", _MAX_DIRECTORY)
        for info in entries:
            path = (place + b"/" if place else b"") + os.fsencode(info.name)
            if info.kind is FileKind.DIRECTORY:
                waiting.append(path)
            elif info.kind is FileKind.FILE:
                mode = 0o755 if info.mode & stat.S_IXUSR else 0o644
                yield Incoming(path, _host_content(root, path), info.size, mode=mode)


async def _host_content(root: str, path: bytes) -> AsyncGenerator[bytes, None]:
    fd = await anyio.to_thread.run_sync(host_files.open_file, root, path)
    try:
        while data := await anyio.to_thread.run_sync(os.read, fd, _PART_BYTES):
            yield data
    finally:
        os.close(fd)


async def stored_files(store: ArtifactStore, prefix: str) -> AsyncGenerator[Incoming, None]:
    """Yield the files of an earlier export from a store, to be verified by its manifest.

    Raises:
        ObjectMissingError: Nothing was exported there, or not to the end.
        StoreError: The store failed, or its manifest is none.
    """
    report = await read_manifest(store, prefix)
    for file in report.files:
        yield Incoming(
            os.fsencode(file.path),
            store.get(file.key),
            file.size,
            file.sha256,
            0o755 if file.mode & stat.S_IXUSR else 0o644,
        )
