"""A workspace as one tar or zip file, made as it is read.

The archive is ours and not the sandbox's: no program of it runs, no member is a link, absolute or
leads upwards, and each file is whole, since its size is known before its member begins. Memory is
flat; a file of more than 512 KiB waits in a temporary file of this machine.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

import anyio.to_thread

from ..backend import Sandbox
from ..errors import ConfigError, SandboxError
from ..models import FileInfo
from ..storage.keys import escape_name
from ..storage.spool import Held, held
from .report import Exported, ExportLimits, ExportReport, Tally, media_type, reason_of
from .walk import FATAL, Found, Walk

__all__ = ("Archive", "archive_workspace")

_LATEST = datetime(2107, 12, 31, tzinfo=UTC).timestamp()  # the last year that zip knows
_EARLIEST = datetime(1980, 1, 1, tzinfo=UTC).timestamp()
_ZIP_PLAIN = " !#$&'()+;[]^`{}~"  # what is safe in a name on every system, beside what keys have


def archive_workspace(
    sandbox: Sandbox,
    format: Literal["tar", "zip"] = "tar",  # noqa: A002  # the word that everybody looks for
    limits: ExportLimits | None = None,
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
    if format not in _WRITERS:
        raise ConfigError(f"an archive is tar or zip, not {format!r}")
    return Archive(sandbox, _WRITERS[format], limits or ExportLimits())


class Archive(AsyncIterable[bytes]):
    """An archive that is made while it is iterated over; `report` says what is in it."""

    def __init__(
        self, sandbox: Sandbox, writer: Callable[[], _Writer], limits: ExportLimits
    ) -> None:
        self._sandbox = sandbox
        self._writer = writer
        self._limits = limits
        self._report: ExportReport | None = None

    @property
    def report(self) -> ExportReport:
        """What is in it and what was left out.

        Raises:
            RuntimeError: It has not been iterated over to the end.
        """
        if self._report is None:
            raise RuntimeError("the archive is not complete: iterate to the end first")
        return self._report

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        """Yield the archive in parts of some MiB at most.

        Raises:
            SandboxLostError: The sandbox died: what came until then is no whole archive.
        """
        tally, writer = Tally(self._limits), self._writer()
        walk = Walk(self._sandbox, self._limits, tally.skip)
        try:
            async with aclosing(walk.files()) as files:
                async for found in files:
                    async with aclosing(_member(walk, writer, tally, found)) as parts:
                        async for part in parts:
                            yield part
            yield await anyio.to_thread.run_sync(writer.end)
        finally:
            writer.end()  # also if the caller has left
        self._report = tally.report(writer.name, is_complete=walk.is_complete)


async def _member(
    walk: Walk, writer: _Writer, tally: Tally, found: Found
) -> AsyncGenerator[bytes, None]:
    """Yield one file's member, or nothing if it can't be had whole."""
    size = 0
    try:
        async with aclosing(walk.content(found)) as content, held(content) as whole:
            size = whole.size
            async with aclosing(writer.add(found, whole)) as parts:
                async for part in parts:
                    yield part
        tally.add(_entry(found, whole))
    except FATAL:
        raise
    except SandboxError as error:
        tally.skip(found.path, reason_of(error))
    finally:
        walk.settle(found, size)


def _entry(found: Found, whole: Held) -> Exported:
    path, info = found.path, found.info
    name = path.decode("utf-8", "surrogateescape")
    mode, kind = info.mode & 0o7777, media_type(path)
    return Exported(name, whole.size, whole.sha256, mode, info.mtime, kind)


class _Writer:
    """What makes members of files."""

    name: ClassVar[str]

    def add(self, found: Found, whole: Held) -> AsyncGenerator[bytes, None]:
        raise NotImplementedError

    def end(self) -> bytes:
        raise NotImplementedError


class _Tar(_Writer):
    name = "tar"

    async def add(self, found: Found, whole: Held) -> AsyncGenerator[bytes, None]:
        member = tarfile.TarInfo(found.path.decode("utf-8", "surrogateescape"))
        member.size = whole.size
        member.mode = _mode(found.info)
        member.mtime = int(_moment(found.info))
        yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        async with aclosing(whole.parts()) as parts:
            async for part in parts:
                yield part
        if padding := -whole.size % tarfile.BLOCKSIZE:
            yield bytes(padding)

    def end(self) -> bytes:
        return bytes(2 * tarfile.BLOCKSIZE)


class _Zip(_Writer):
    name = "zip"

    def __init__(self) -> None:
        self._out = _Sink()
        self._zip = zipfile.ZipFile(self._out, "w", zipfile.ZIP_DEFLATED, compresslevel=1)

    async def add(self, found: Found, whole: Held) -> AsyncGenerator[bytes, None]:
        name = "/".join(escape_name(part, plain=_ZIP_PLAIN) for part in found.path.split(b"/"))
        date = datetime.fromtimestamp(_moment(found.info), UTC).timetuple()[:6]
        member = zipfile.ZipInfo(name, date)
        member.compress_type = zipfile.ZIP_DEFLATED
        member.external_attr = (0o100000 | _mode(found.info)) << 16
        member.file_size = whole.size
        is_huge = whole.size >= zipfile.ZIP64_LIMIT
        async with aclosing(whole.parts()) as parts:
            with self._zip.open(member, "w", force_zip64=is_huge) as file:
                async for part in parts:
                    await anyio.to_thread.run_sync(file.write, part)
                    yield self._out.taken()
        yield self._out.taken()

    def end(self) -> bytes:
        self._zip.close()
        return self._out.taken()


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken; can't seek, so sizes follow the data."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._written += data
        return len(data)

    def taken(self) -> bytes:
        """Return what has been written since."""
        data = bytes(self._written)
        self._written.clear()
        return data


_WRITERS: dict[str, Callable[[], _Writer]] = {"tar": _Tar, "zip": _Zip}


def _mode(info: FileInfo) -> int:
    return 0o755 if info.mode & 0o100 else 0o644


def _moment(info: FileInfo) -> float:
    """Return when a file was changed, within what every format can say."""
    return min(max(info.mtime, _EARLIEST), _LATEST)
