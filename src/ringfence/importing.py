"""Brings many files into a workspace with one call, and sees to it that each came whole.

Small files whose content is there are written together, by one operation where the sandbox can;
others are streamed one by one, so memory stays bounded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass

import anyio

from .backend import NOT_BEGUN, UNDO_SECONDS, NewFile, Sandbox, workspace_path
from .errors import ConfigError, LimitError, SandboxError, WorkspaceError
from .export.pipeline import AT_ONCE, each_of
from .export.report import MAX_FILE_BYTES
from .incoming import (
    MOST_TOGETHER,
    PART_BYTES,
    SMALL_BYTES,
    Incoming,
    Source,
    closing,
    incoming,
)
from .models import FileKind
from .storage.store import Content

__all__ = ("ImportLimits", "ImportReport", "import_files")


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


async def import_files(
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
    if at_once < 1:
        raise ConfigError(f"at_once is 1 or more, not {at_once}")
    work = _Import(sandbox, workspace_path(into, sandbox.workspace), limits or ImportLimits())
    try:
        await each_of(work.groups(incoming(source)), work.take, at_once)
    except WorkspaceError as error:
        error.written = work.written()
        raise
    return ImportReport(work.written(), work.total)


class _Import:
    """One import on its way."""

    def __init__(self, sandbox: Sandbox, into: bytes, limits: ImportLimits) -> None:
        self._sandbox = sandbox
        self._into = into
        self._limits = limits
        self._entries = 0
        self._paths: list[bytes] = []
        self.total = 0

    def written(self) -> tuple[str, ...]:
        """Return the paths of what has been written, sorted."""
        return tuple(os.fsdecode(path) for path in sorted(self._paths))

    async def groups(
        self, source: AsyncGenerator[Incoming, None]
    ) -> AsyncGenerator[list[Incoming], None]:
        """Yield what comes, small files of which the content is there together, others alone."""
        group: list[Incoming] = []
        size = 0
        async with aclosing(source) as items:
            async for item in items:
                if not isinstance(item, Incoming):
                    raise ConfigError(f"what is imported is Incoming, not {type(item).__name__}")
                if not isinstance(item.content, bytes) or len(item.content) > SMALL_BYTES:
                    yield [item]
                    continue
                if len(group) == MOST_TOGETHER or size + len(item.content) > PART_BYTES:
                    yield group
                    group, size = [], 0
                group.append(item)
                size += len(item.content)
        if group:
            yield group

    async def take(self, group: list[Incoming]) -> None:
        """Write a group.

        Raises:
            SandboxError: As from `import_files`.
        """
        if len(group) > 1:
            await self._together(group)
        else:
            await self._alone(group[0])

    async def _together(self, group: list[Incoming]) -> None:
        """Write what fits, and then raise the first error."""
        files: list[NewFile] = []
        failed: SandboxError | None = None
        for item in group:
            assert isinstance(item.content, bytes)
            try:
                files.append(self._admit_whole(item, item.content))
            except SandboxError as error:
                failed = error
                break
        outcomes = await self._sandbox._write_files(files)
        self._paths += [
            file.path for file, outcome in zip(files, outcomes, strict=True) if outcome is None
        ]
        for outcome in (*outcomes, failed):
            if outcome is not None:
                raise outcome

    def _admit_whole(self, item: Incoming, content: bytes) -> NewFile:
        path = self._admit(item, len(content))
        self.total += len(content)
        sha256 = hashlib.sha256(content).hexdigest() if item.sha256 else ""
        _compare(path, item, len(content), sha256)
        return NewFile(path, content, item.mode)

    def _admit(self, item: Incoming, size: int | None) -> bytes:
        """Return a file's path in the workspace, if the limits have room for it."""
        path = self._path(item.path)
        self._entries += 1
        if self._entries > self._limits.entries:
            raise LimitError("entries", f"more than {self._limits.entries} files to import")
        if size is not None:
            self._check(path, size, self.total + size)
        return path

    async def _alone(self, item: Incoming) -> None:
        told = item.size
        if told is None and isinstance(item.content, bytes):
            told = len(item.content)
        path = self._admit(item, told)
        begun = False
        try:
            size, sha256 = 0, hashlib.sha256()
            async with aclosing(_parts(item.content)) as parts:
                async for part in parts:
                    size += len(part)
                    self.total += len(part)
                    self._check(path, size, self.total)
                    sha256.update(part)
                    try:
                        await self._sandbox.write_file(path, part, mode=item.mode, append=begun)
                    except NOT_BEGUN:
                        raise
                    except BaseException:
                        begun = True
                        raise
                    begun = True
            _compare(path, item, size, sha256.hexdigest())
            await self._verify(path, size)
        except BaseException:
            if begun:
                with anyio.move_on_after(UNDO_SECONDS, shield=True), suppress(SandboxError):
                    await self._sandbox.remove(path)
            raise
        self._paths.append(path)

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

    async def _verify(self, path: bytes, size: int) -> None:
        found = await self._sandbox.stat(path)
        if found.kind is not FileKind.FILE or found.size != size:
            shown = os.fsdecode(path)
            raise WorkspaceError(shown, f"has {found.size} bytes in the workspace, not {size}")


def _compare(path: bytes, item: Incoming, size: int, sha256: str) -> None:
    """Check that a content came to what was told of it."""
    shown = os.fsdecode(path)
    if item.size is not None and size != item.size:
        raise WorkspaceError(shown, f"came to {size} bytes and not to {item.size}")
    if item.sha256 and sha256 != item.sha256:
        raise WorkspaceError(shown, "came to another SHA-256 than it has")


async def _parts(content: Content) -> AsyncGenerator[bytes, None]:
    """Yield a content in parts that one call of the sandbox takes; at least one."""
    if isinstance(content, bytes):
        for start in range(0, len(content) or 1, PART_BYTES):
            yield content[start : start + PART_BYTES]
        return
    is_empty = True
    async with closing(content) as source:
        async for part in source:
            for start in range(0, len(part), PART_BYTES):
                is_empty = False
                yield part[start : start + PART_BYTES]
    if is_empty:
        yield b""
