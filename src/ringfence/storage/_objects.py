"""Objects of a service, by the library `obstore`: S3 and what speaks its protocol, and memory.

The library's calls block and are made in threads, so they work on every event loop. Small objects
go out of memory, in one request. Larger ones are collected in a temporary file first: a source that
fails half way then leaves nothing at the service, where parts of an upload that was never finished
cost money and are seen by nobody. If this process is killed during a multipart upload its parts
remain; a lifecycle rule that aborts incomplete uploads removes them.

What the library says of a fault may repeat what the service was sent, so only our own words reach
the caller.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread
import obstore
from obstore import exceptions
from obstore.store import MemoryStore, S3Store

from ..errors import (
    ConfigError,
    ObjectExistsError,
    ObjectKeyError,
    ObjectMissingError,
    StoreAccessError,
    StoreError,
    StoreUnreachableError,
)
from .config import MemoryStoreConfig, S3StoreConfig
from .spool import Held, held
from .store import ArtifactStore, Content, StoredObject

if TYPE_CHECKING:  # which its stubs alone have
    from obstore import GetOptions
    from obstore.store import S3Config

__all__ = ("ObjectStore",)

_PART_BYTES = 5 << 20  # of a multipart upload; S3 takes no smaller ones
_MOST_PARTS = 10_000  # and not more of them
_PARTS_AT_ONCE = 2
_MOST_IF_MISSING = 64 << 20  # it can't go in parts, so it is held in memory
_READ_BYTES = 4 << 20
_LIST_CHUNK = 1000
_SHA256 = "sha256"
_RETRIES = 3
_CONNECT_TIMEOUT = timedelta(seconds=5)
_STATUS = re.compile(r"\bstatus:? (?:code )?(\d{3})\b")
_REFUSED = "is not permitted to these credentials"

_ERRORS: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (FileNotFoundError, ObjectMissingError, "does not exist"),
    (exceptions.AlreadyExistsError, ObjectExistsError, "exists already"),
    (exceptions.PreconditionError, StoreError, "was replaced meanwhile"),
    (exceptions.NotModifiedError, StoreError, "was replaced meanwhile"),
    (exceptions.PermissionDeniedError, StoreAccessError, _REFUSED),
    (exceptions.UnauthenticatedError, StoreAccessError, "the store refuses the credentials"),
    (exceptions.InvalidPathError, ObjectKeyError, "is no key for this store"),
    (exceptions.NotSupportedError, StoreError, "the store can't do this"),
    (exceptions.UnknownConfigurationKeyError, StoreError, "a setting is unknown to the store"),
    (exceptions.JoinError, StoreError, "the upload was broken off"),
    (exceptions.GenericError, StoreUnreachableError, "the store does not answer as it should"),
    (exceptions.BaseError, StoreUnreachableError, "the store does not answer as it should"),
    (ValueError, ObjectKeyError, "is no key for this store"),
)

_Value = TypeVar("_Value")


class ObjectStore(ArtifactStore):
    """A store at a service, or in this process's memory.

    Args:
        config: Which; its credentials are never shown.

    Raises:
        ConfigError: The library refuses the settings.
    """

    def __init__(self, config: S3StoreConfig | MemoryStoreConfig) -> None:
        # All in one thread: what a large upload has used stays with the thread that it ran in.
        self._large = ThreadPoolExecutor(1, "ringfence-upload")
        self._s3: S3Store | None = None
        self._store: S3Store | MemoryStore
        if isinstance(config, S3StoreConfig):
            self._store = self._s3 = _s3(config)
            self.name = config.name
            self.has_links = True
        else:
            self._store = MemoryStore()
            self.name = "memory"
        self._own = "" if self._s3 else f" {token_hex(8)}"

    @property
    def place(self) -> str:
        return f"{self.name}{self._own}"

    async def _put(
        self, key: str, content: Content, media_type: str, if_missing: bool
    ) -> StoredObject:
        if isinstance(content, bytes):
            sha256 = await _run(key, self._put_bytes, key, content, media_type, if_missing)
            return StoredObject(key, len(content), time.time(), sha256, media_type)
        async with held(content) as whole:
            attributes = _attributes(whole.sha256, media_type)
            if whole.file is None or if_missing:
                data = await anyio.to_thread.run_sync(_all_of, whole, key)
                await _run(key, self._put_now, key, data, attributes, if_missing)
            else:
                await _run(key, self._put_large, key, whole.file, whole.size, attributes)
        return StoredObject(key, whole.size, time.time(), whole.sha256, media_type)

    def _put_bytes(self, key: str, data: bytes, media_type: str, if_missing: bool) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self._put_now(key, data, _attributes(sha256, media_type), if_missing)
        return sha256

    def _put_now(self, key: str, data: bytes, attributes: dict[str, str], if_missing: bool) -> None:
        obstore.put(
            self._store,
            key,
            data,
            attributes=attributes,
            mode="create" if if_missing else "overwrite",
            use_multipart=False,
        )

    def _put_large(self, key: str, file: IO[bytes], size: int, attributes: dict[str, str]) -> None:
        self._large.submit(self._upload, key, file, size, attributes).result()

    def _upload(self, key: str, file: IO[bytes], size: int, attributes: dict[str, str]) -> None:
        obstore.put(
            self._store,
            key,
            file,
            attributes=attributes,
            chunk_size=max(_PART_BYTES, size // (_MOST_PARTS - 1)),
            max_concurrency=_PARTS_AT_ONCE,
        )

    async def _get(self, key: str, offset: int, length: int | None) -> AsyncGenerator[bytes, None]:
        found = await _run(key, obstore.head, self._store, key)
        end = found["size"] if length is None else min(found["size"], offset + length)
        while offset < end:
            upto = min(end, offset + _READ_BYTES)
            data = await _run(key, self._range, key, offset, upto, found["e_tag"])
            if len(data) != upto - offset:
                raise StoreError("the store sent another number of bytes than asked for", key=key)
            yield data
            offset = upto

    def _range(self, key: str, start: int, end: int, e_tag: str | None) -> bytes:
        options: GetOptions = {"range": (start, end)}
        if e_tag is not None:
            options["if_match"] = e_tag
        return bytes(obstore.get(self._store, key, options=options).bytes())

    async def _head(self, key: str) -> StoredObject:
        return await _run(key, self._describe, key)

    def _describe(self, key: str) -> StoredObject:
        found = obstore.get(self._store, key, options={"head": True})
        attributes = {str(name).lower(): value for name, value in found.attributes.items()}
        return StoredObject(
            key,
            found.meta["size"],
            found.meta["last_modified"].timestamp(),
            attributes.get(_SHA256, ""),
            attributes.get("content-type", ""),
        )

    async def _list(self, prefix: str) -> AsyncGenerator[StoredObject, None]:
        chunks = obstore.list(self._store, prefix or None, chunk_size=_LIST_CHUNK)
        while found := await _run(prefix, next, chunks, ()):
            for meta in found:
                yield StoredObject(meta["path"], meta["size"], meta["last_modified"].timestamp())

    async def _delete(self, key: str) -> None:
        try:
            await _run(key, obstore.delete, self._store, key)
        except ObjectMissingError:
            return

    async def _link(self, key: str, seconds: float) -> str:
        if self._s3 is None:
            return await super()._link(key, seconds)
        lasting = timedelta(seconds=round(seconds))
        return await _run(key, obstore.sign, self._s3, "GET", key, lasting)


def _s3(config: S3StoreConfig) -> S3Store:
    settings: S3Config = {}
    if config.endpoint:
        settings["endpoint"] = config.endpoint
    if config.region:
        settings["region"] = config.region
    if config.access_key_id:
        settings["access_key_id"] = config.access_key_id
        settings["secret_access_key"] = config.secret_access_key
    if config.session_token:
        settings["session_token"] = config.session_token
    timeout = timedelta(seconds=config.timeout)
    try:
        return S3Store(
            config.bucket,
            prefix=config.prefix or None,
            config=settings,
            client_options={
                "allow_http": config.endpoint.startswith("http://"),
                "connect_timeout": _CONNECT_TIMEOUT,
                "timeout": timeout,
            },
            retry_config={"max_retries": _RETRIES, "retry_timeout": timeout},
        )
    except (exceptions.BaseError, ValueError):
        raise ConfigError(f"the settings of {config.name} make no S3 client") from None


async def _run(key: str, function: Callable[..., _Value], *args: Any) -> _Value:
    """Call the library in a thread, and say what went wrong in our own words."""

    def call() -> _Value:
        with _translated(key):
            return function(*args)

    return await anyio.to_thread.run_sync(call)


@contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except tuple(foreign for foreign, _, _ in _ERRORS) as error:
        ours, words = next(pair[1:] for pair in _ERRORS if isinstance(error, pair[0]))
        if ours is StoreUnreachableError and (found := _STATUS.search(str(error))):
            if found[1] in ("401", "403"):
                raise StoreAccessError(_REFUSED, key=key) from None
            words = f"{words} (HTTP {found[1]})"
        raise ours(words, key=key) from None


def _attributes(sha256: str, media_type: str) -> dict[str, str]:
    """Return what is kept beside an object; a browser is to save it, never to show it."""
    return {
        "Content-Type": media_type,
        "Content-Disposition": "attachment",
        _SHA256: sha256,
    }


def _all_of(whole: Held, key: str) -> bytes:
    if whole.data is not None:
        return whole.data
    if whole.size > _MOST_IF_MISSING:
        raise StoreError(
            f"has more than {_MOST_IF_MISSING} bytes, too much to be put only if missing", key=key
        )
    assert whole.file is not None
    return whole.file.read()
