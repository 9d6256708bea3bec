"""The contract of an artifact store: objects under keys, streamed in and out.

What a store must implement is abstract and starts with an underscore; what users call is final and
checks what it is given. An object is whole or not there: who reads one sees what one `put` wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias, final

from ..errors import StoreError, UnsupportedError
from .keys import check_key

__all__ = ("ArtifactStore", "Content", "StoredObject", "Whole", "head_of")

Content: TypeAlias = bytes | AsyncIterable[bytes]
"""What an object is made of: all at once, or as it comes."""

OCTETS = "application/octet-stream"
MAX_LINK_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class StoredObject:
    """What a store knows of an object.

    Attributes:
        key: Its key.
        size: Bytes.
        modified: When it was put, in seconds since the epoch; 0.0 where that is not known.
        sha256: Of its content, in hexadecimal; empty where it was not asked for or not kept.
        media_type: As it was given; empty where it was not asked for or not kept.
    """

    key: str
    size: int
    modified: float = 0.0
    sha256: str = ""
    media_type: str = ""


@dataclass(frozen=True)
class Whole:
    """A small object that is to be stored together with others.

    Attributes:
        key: A checked one.
        content: All of it.
        media_type: What a download of it says it is.
    """

    key: str
    content: bytes
    media_type: str


class ArtifactStore(ABC):
    """A place for objects, made by `open_store`.

    It can be used from many tasks at once, and holds nothing that has to be closed.

    Attributes:
        name: Where it is, fit to be shown: no credentials.
        has_links: Whether `link` works.
    """

    name: str
    has_links: bool = False

    @property
    def place(self) -> str:
        """What two stores have in common, in whatever process, if they hold the same objects."""
        return self.name

    @abstractmethod
    async def _put(
        self, key: str, content: Content, media_type: str, if_missing: bool
    ) -> StoredObject:
        """Store an object; on the way out of a failure or cancellation nothing of it is left."""

    _together: int = 1
    """How many small objects `_put_many` is best given: more than one where they need not wait for
    a service, and going to another thread would cost more than the storing."""

    async def _put_many(self, objects: Sequence[Whole]) -> list[StoredObject | StoreError]:
        """Store small objects, each of them or its own error: none stops the others."""
        stored: list[StoredObject | StoreError] = []
        for one in objects:
            try:
                stored.append(await self._put(one.key, one.content, one.media_type, False))
            except StoreError as error:
                stored.append(error)
        return stored

    @abstractmethod
    def _get(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        """Yield an object's content in parts of at most some MiB."""

    @abstractmethod
    async def _head(self, key: str) -> StoredObject:
        """Describe an object, with its SHA-256."""

    @abstractmethod
    def _list(self, prefix: str) -> AsyncGenerator[StoredObject, None]:
        """Yield the objects below a prefix, in any order; an empty one is all."""

    @abstractmethod
    async def _delete(self, key: str) -> None:
        """Remove an object, if there is one."""

    async def _link(self, key: str, seconds: float) -> str:
        raise UnsupportedError(
            f"{self.name} has no links", hint="hand out what `get` yields instead"
        )

    @final
    async def put(
        self, key: str, content: Content, *, media_type: str = OCTETS, if_missing: bool = False
    ) -> StoredObject:
        """Store an object, replacing one of the same key, and return it with its SHA-256.

        Memory stays bounded, whatever the content's size. If the content raises, nothing is
        stored, and its exception reaches the caller.

        Args:
            key: Parts between slashes; see `keys` for making some of names.
            content: Bytes, or an async iterable of bytes.
            media_type: What a download of it says it is.
            if_missing: Refuse to replace. Of two such calls at once, one succeeds.

        Raises:
            ObjectKeyError: No store, or not this one, can use the key.
            ObjectExistsError: There is one, and `if_missing` was given.
            StoreError: Its children say why; `retryable` whether to try again.
        """
        if not media_type.isascii() or not media_type.isprintable() or not media_type:
            raise StoreError(f"{media_type!r} is no media type", key=key)
        check_key(key)
        if isinstance(content, bytes):
            return await self._put(key, content, media_type, if_missing)
        if not isinstance(content, AsyncIterable):
            raise StoreError(f"content is bytes, not {type(content).__name__}", key=key)
        source = aiter(content)
        try:
            return await self._put(key, source, media_type, if_missing)
        finally:
            if isinstance(source, AsyncGenerator):  # nobody else can, and trio warns of one open
                await source.aclose()

    @final
    async def get(
        self, key: str, *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield an object's content, or a part of it, in pieces of at most some MiB.

        Args:
            key: Of the object.
            offset: Bytes to leave out; at or beyond the end nothing is yielded.
            length: Bytes to yield at most; None for all.

        Raises:
            ObjectMissingError: There is no such object.
            StoreError: It was replaced while it was read, or the store failed.
        """
        if offset < 0 or (length is not None and length < 0):
            raise StoreError("offset and length must be 0 or more", key=key)
        async with aclosing(self._get(check_key(key), offset, length)) as parts:
            async for part in parts:
                yield part

    @final
    async def read(self, key: str, *, max_bytes: int) -> bytes:
        """Return a whole object that has at most so many bytes.

        Raises:
            ObjectMissingError: There is no such object.
            StoreError: It has more.
        """
        found = bytearray()
        async with aclosing(self.get(key, length=max_bytes + 1)) as parts:
            async for part in parts:
                found += part
        if len(found) > max_bytes:
            raise StoreError(f"has more than {max_bytes} bytes", key=key)
        return bytes(found)

    @final
    async def head(self, key: str) -> StoredObject:
        """Describe an object, with its SHA-256 and media type where the store can tell.

        Raises:
            ObjectMissingError: There is no such object.
        """
        return await self._head(check_key(key))

    @final
    async def list(self, prefix: str = "") -> AsyncGenerator[StoredObject, None]:
        """Yield the objects below a prefix of whole parts, in no order; not those being put."""
        if prefix:
            check_key(prefix)
        async with aclosing(self._list(prefix)) as found:
            async for item in found:
                yield item

    @final
    async def delete(self, key: str) -> None:
        """Remove an object; one that is not there is fine."""
        await self._delete(check_key(key))

    @final
    async def link(self, key: str, *, expires_in: float = 3600.0) -> str:
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
        if not 1 <= expires_in <= MAX_LINK_SECONDS:
            raise StoreError(
                f"a link may last 1 to {MAX_LINK_SECONDS:.0f} s, not {expires_in:g}", key=key
            )
        return await self._link(check_key(key), expires_in)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


async def head_of(content: AsyncIterator[bytes], most: int) -> tuple[bytes, bool]:
    """Take the first bytes of a content, and say whether that was all; the rest can go on.

    What is returned may be longer than `most` by what came last.

    Raises:
        StoreError: The content yields something else than bytes.
    """
    first: list[bytes] = []
    size = 0
    async for part in content:
        if not isinstance(part, bytes):
            raise StoreError(f"content is bytes, not {type(part).__name__}")
        first.append(part)
        size += len(part)
        if size > most:
            return b"".join(first), False
    return b"".join(first), True
