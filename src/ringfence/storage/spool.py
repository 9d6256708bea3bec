"""A content that is complete before it goes on: its size and SHA-256 are known, and it is whole."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO

import anyio.to_thread

from .store import Content, head_of

__all__ = ("Held", "held")

_SMALL = 512 << 10  # is held in memory
_PART_BYTES = 512 << 10


@dataclass(frozen=True)
class Held:
    """A complete content.

    Attributes:
        size: Bytes.
        sha256: In hexadecimal.
        data: All of it, or None if it is in the file.
        file: All of it from the beginning, or None if it is in memory.
    """

    size: int
    sha256: str
    data: bytes | None
    file: IO[bytes] | None

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield it, once."""
        if self.data:
            yield self.data
        while self.file and (part := await anyio.to_thread.run_sync(self.file.read, _PART_BYTES)):
            yield part


@asynccontextmanager
async def held(content: Content) -> AsyncIterator[Held]:
    """Take a content in, to memory or to a file without a name that ends with the block."""
    first, is_all = b"", True
    if isinstance(content, bytes):
        first = content
    else:
        rest = aiter(content)
        first, is_all = await head_of(rest, _SMALL)
    found = hashlib.sha256(first)
    if is_all:
        yield Held(len(first), found.hexdigest(), first, None)
        return
    with tempfile.TemporaryFile(prefix="ringfence-") as file:

        def write(part: bytes) -> int:
            found.update(part)
            return file.write(part)

        size = await anyio.to_thread.run_sync(file.write, first)
        async for part in rest:
            size += await anyio.to_thread.run_sync(write, part)
        await anyio.to_thread.run_sync(file.seek, 0)
        yield Held(size, found.hexdigest(), None, file)
