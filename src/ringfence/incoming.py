"""What is to come into a workspace: of a mapping, a directory of this machine, or a store.

Contents of large files are streamed, and small ones are there at once.
"""

from __future__ import annotations

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
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import anyio
import anyio.to_thread

from . import host_files
from .errors import ConfigError
from .export.manifest import read_manifest
from .models import FileKind
from .storage.store import ArtifactStore, Content

__all__ = (
    "Incoming",
    "Source",
    "closing",
    "directory_files",
    "incoming",
    "stored_files",
)

SMALL_BYTES = 256 << 10
"""A file of at most so much is read at once, and is written together with others."""

PART_BYTES = 1 << 20
"""What one call of a sandbox is given at most."""

MOST_TOGETHER = 256
"""Small files that are in hand at a time."""

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


Source: TypeAlias = (
    Mapping[str, bytes | str]
    | Iterable[Incoming]
    | AsyncIterable[Incoming]
    | str
    | os.PathLike[str]
)


async def incoming(source: Source) -> AsyncGenerator[Incoming, None]:
    """Yield what a source has."""
    if isinstance(source, (str, os.PathLike)):
        found = directory_files(source)
        while some := await anyio.to_thread.run_sync(_next_files, found):
            for item in some:
                yield item
    elif isinstance(source, Mapping):
        for path, data in source.items():
            yield Incoming(path, data.encode() if isinstance(data, str) else bytes(data))
    elif isinstance(source, AsyncIterable):
        async with closing(source) as items:
            async for item in items:
                yield item
    else:
        for item in source:
            yield item


@asynccontextmanager
async def closing(source: AsyncIterable[_Item]) -> AsyncIterator[AsyncIterator[_Item]]:
    """Iterate over what we were handed and close it: nobody else can."""
    items = aiter(source)
    try:
        yield items
    finally:
        if isinstance(items, AsyncGenerator):
            await items.aclose()


def directory_files(directory: str | os.PathLike[str]) -> Iterator[Incoming]:
    """Yield the regular files below a directory of this machine, through no link.

    Blocks: a small one is read when it is its turn, others only when they are written. Links, FIFOs
    and devices are left out. Modes become 0644, or 0755 where the owner may execute.

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
                yield Incoming(path, _content(root, path, info.size), info.size, mode=mode)


def _next_files(found: Iterator[Incoming]) -> list[Incoming]:
    """Return some more of them; none at the end."""
    some: list[Incoming] = []
    size = 0
    for item in found:
        some.append(item)
        size += len(item.content) if isinstance(item.content, bytes) else 0
        if len(some) == MOST_TOGETHER or size > PART_BYTES:
            break
    return some


def _content(root: str, path: bytes, size: int) -> Content:
    """Return a file's content at once if it is small, or as it is read."""
    if size > SMALL_BYTES:
        return _host_content(root, path)
    data, now = host_files.read_file(root, path, 0, size)
    return data if now == size else _host_content(root, path)


async def _host_content(root: str, path: bytes) -> AsyncGenerator[bytes, None]:
    fd = await anyio.to_thread.run_sync(host_files.open_file, root, path)
    try:
        while data := await anyio.to_thread.run_sync(os.read, fd, PART_BYTES):
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
