"""Finds and reads the files of a workspace, through the sandbox's own file operations.

Nothing in the workspace can block that or lead it elsewhere. What comes back is not trusted: a name
that is none is left out, a file may have another size than its entry says, and the caps hold for
what is really read.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ..backend import Sandbox
from ..errors import SandboxClosedError, SandboxError, SandboxLostError, WorkspaceError
from ..models import FileInfo, FileKind
from .report import ExportLimits, reason_of

__all__ = ("FATAL", "PART_BYTES", "Found", "Walk")

_SMALL = 256 << 10  # is read together with others
_BATCH_BYTES = 2 << 20
_BATCH_FILES = 256

PART_BYTES = 512 << 10
"""Of one read; what an export holds in memory is some of these for each file in work."""

FATAL = (SandboxLostError, SandboxClosedError)
"""What ends a walk; any other error concerns one file."""

_TOO_LARGE = "too large"
_OVER_TOTAL = "over the total"
_KINDS = {
    FileKind.SYMLINK: "a link",
    FileKind.FIFO: "a FIFO",
    FileKind.SOCKET: "a socket",
    FileKind.CHARACTER_DEVICE: "a device",
    FileKind.BLOCK_DEVICE: "a device",
}


@dataclass
class Found:
    """A file that a walk has found.

    Attributes:
        path: Below the workspace.
        info: Its entry, which may be out of date.
        charged: Bytes of the total that are taken for it.
        content: All of it, if it has been read together with others.
        error: Why it could not be, else None.
    """

    path: bytes
    info: FileInfo
    charged: int
    content: bytes | None = None
    error: WorkspaceError | None = None


class Walk:
    """One walk over a workspace, with what it may bring out.

    Args:
        sandbox: Whose workspace.
        limits: How much.
        skip: Called with the path and the reason of what is left out.

    Attributes:
        is_complete: Whether everything has been seen.
    """

    def __init__(
        self, sandbox: Sandbox, limits: ExportLimits, skip: Callable[[bytes, str], Any]
    ) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._skip = skip
        self._left = limits.total_bytes
        self.is_complete = True

    async def files(self) -> AsyncGenerator[Found, None]:
        """Yield the regular files that fit the caps, each directory's together.

        The size of each is taken from the total then: say with `settle` what it came to.

        Raises:
            SandboxLostError: The sandbox died.
            SandboxClosedError: It is closed.
        """
        seen = 0
        waiting = [b""]
        while waiting and self.is_complete:
            place = waiting.pop()
            try:
                listing = await self._sandbox.list_files(
                    place or b".", max_entries=self._limits.entries - seen
                )
            except FATAL:
                raise
            except SandboxError as error:
                self._skip(place, reason_of(error))
                continue
            seen += len(listing.entries)
            self.is_complete = not listing.truncated
            inner = []
            for info in listing.entries:
                name = os.fsencode(info.name)
                path = place + b"/" + name if place else name
                if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
                    self._skip(path, "not a name")
                elif info.kind is FileKind.DIRECTORY:
                    inner.append(path)
                elif self._admit(path, info):
                    yield Found(path, info, info.size)
            waiting += reversed(inner)

    async def batches(self) -> AsyncGenerator[list[Found], None]:
        """Yield what `files` does, small ones together: what `read` reads at once.

        Raises:
            SandboxLostError: The sandbox died.
            SandboxClosedError: It is closed.
        """
        batch: list[Found] = []
        size = 0
        async with aclosing(self.files()) as files:
            async for found in files:
                if found.info.size > _SMALL:
                    yield [found]
                    continue
                if size + found.info.size > _BATCH_BYTES or len(batch) == _BATCH_FILES:
                    yield batch
                    batch, size = [], 0
                batch.append(found)
                size += found.info.size
        if batch:
            yield batch

    async def read(self, batch: list[Found]) -> list[Found]:
        """Read the files of a batch at once, and return them.

        One that has no content and no error then is to be read by itself: it is large, or has
        grown, or something inside has ended the reading of them all, or there is no other way.

        Raises:
            SandboxLostError: The sandbox died.
            SandboxClosedError: It is closed.
        """
        if len(batch) == 1:
            return batch
        paths = [found.path for found in batch]
        try:
            results = await self._sandbox._read_files(paths, sum(one.info.size for one in batch))
        except FATAL:
            raise
        except SandboxError:
            return batch
        for found, result in zip(batch, results, strict=True):
            if isinstance(result, WorkspaceError):
                found.error = result
            else:
                found.content = result
        return batch

    def _admit(self, path: bytes, info: FileInfo) -> bool:
        """Take a file's size from what is left, or skip it."""
        if info.kind is not FileKind.FILE:
            reason = _KINDS.get(info.kind, "of an unknown kind")
        elif info.size > self._limits.file_bytes:
            reason = _TOO_LARGE
        elif info.size > self._left:
            reason = _OVER_TOTAL
        else:
            self._left -= info.size
            return True
        self._skip(path, reason)
        return False

    def settle(self, found: Found, size: int) -> None:
        """Charge what a file came to (0 if it was left out) instead of what was taken for it."""
        self._left += found.charged - size
        found.charged = size

    def whole(self, found: Found) -> bytes | None:
        """Return a file's content if `read` has got it: no `content` then.

        Raises:
            WorkspaceError: It has grown over a cap, or can't be read.
        """
        if found.error is not None:
            raise found.error
        if found.content is not None:
            self._charge(found, len(found.content))
        return found.content

    async def content(self, found: Found) -> AsyncGenerator[bytes, None]:
        """Yield a file's content, whatever size it has by now.

        Raises:
            WorkspaceError: It has grown over a cap, or shrunk under the reading, or can't be read.
            SandboxError: The sandbox could not read it.
        """
        path, size, is_last = found.path, 0, False
        while not is_last:
            most = min(self._limits.file_bytes, found.charged + self._left)
            wanted = min(PART_BYTES, max(1, most + 1 - size))
            data = await self._sandbox.read_file(path, offset=size, max_bytes=wanted)
            size += len(data)
            self._charge(found, size)
            is_last = len(data) < wanted
            if is_last and len(data) < size < found.info.size:
                # Parts of what it was, and parts of what it is.
                raise WorkspaceError(os.fsdecode(path), "shrank while it was read")
            if data:
                yield data

    def _charge(self, found: Found, size: int) -> None:
        """Take what has been read of a file from the total.

        Raises:
            WorkspaceError: It is over a cap.
        """
        if size > self._limits.file_bytes:
            raise WorkspaceError(os.fsdecode(found.path), _TOO_LARGE)
        if size > found.charged + self._left:  # others may have taken some meanwhile
            raise WorkspaceError(os.fsdecode(found.path), _OVER_TOTAL)
        self.settle(found, max(size, found.charged))
