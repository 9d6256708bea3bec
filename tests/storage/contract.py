"""What every store does, as one check for each; run on each kind of store."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import anyio
import pytest

from ringfence.errors import (
    ObjectExistsError,
    ObjectKeyError,
    ObjectMissingError,
    StoreError,
)
from ringfence.storage import ArtifactStore, escape_name

MIB = 1 << 20

HARD_NAMES = (
    *(b"l\nb", b"a\\b", b"bad\xff", b"..x", b"%2F", b" ", b"+", b"--", b".", b".."),
    *("ünï".encode(), "日本".encode(), "a\u0301".encode(), "á".encode(), b"x" * 255, b"a?b#c&d"),
)


async def parts_of(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def keys(store: ArtifactStore, prefix: str = "") -> list[str]:
    return sorted([item.key async for item in store.list(prefix)])


async def whole(
    store: ArtifactStore, key: str, offset: int = 0, length: int | None = None
) -> bytes:
    return b"".join([part async for part in store.get(key, offset=offset, length=length)])


async def check_round_trips(store: ArtifactStore) -> None:
    for data in (b"", b"x", b"\0\xff" * 1000):
        stored = await store.put("a/b/file", data, media_type="text/csv")
        assert (stored.size, stored.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert await whole(store, "a/b/file") == data
        head = await store.head("a/b/file")
        assert (head.key, head.size, head.sha256) == ("a/b/file", len(data), stored.sha256)
        assert head.modified > 1_500_000_000
    assert await store.read("a/b/file", max_bytes=2000) == b"\0\xff" * 1000
    with pytest.raises(StoreError, match="more than 1999 bytes"):
        await store.read("a/b/file", max_bytes=1999)


async def check_streams(store: ArtifactStore) -> None:
    """In parts and not: below what is held in memory, above it, and above one part of an upload."""
    for sizes in ((), (0,), (1, 2), (MIB, 1), (MIB + 1,), (3 * MIB, 7 * MIB, 5), (1,) * 300):
        data = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
        wanted = b"".join(data)
        stored = await store.put("streamed", parts_of(*data))
        assert (stored.size, stored.sha256) == (len(wanted), hashlib.sha256(wanted).hexdigest())
        assert await whole(store, "streamed") == wanted
    assert await whole(store, "streamed", offset=299) == wanted[299:]
    assert await whole(store, "streamed", offset=10, length=20) == wanted[10:30]
    assert await whole(store, "streamed", offset=300) == b""
    assert await whole(store, "streamed", offset=1000, length=5) == b""
    assert await whole(store, "streamed", length=0) == b""
    for offset, length in ((-1, None), (0, -1)):
        with pytest.raises(StoreError, match="0 or more"):
            await whole(store, "streamed", offset, length)


async def check_names(store: ArtifactStore) -> None:
    for name in HARD_NAMES:
        await store.put(f"t/{escape_name(name)}", name)
    wanted = sorted(f"t/{escape_name(name)}" for name in HARD_NAMES)
    assert await keys(store) == wanted
    for name in HARD_NAMES:
        assert await whole(store, f"t/{escape_name(name)}") == name


async def check_lists(store: ArtifactStore) -> None:
    for key in ("a/1", "a/b/2", "ab/3", "c"):
        await store.put(key, key.encode())
    assert await keys(store) == ["a/1", "a/b/2", "ab/3", "c"]
    assert await keys(store, "a") == ["a/1", "a/b/2"]
    assert await keys(store, "a/b") == ["a/b/2"]
    assert await keys(store, "nothing") == []
    assert [item.size async for item in store.list("ab")] == [4]


async def check_deletes(store: ArtifactStore) -> None:
    await store.put("a/b/c", b"x")
    await store.put("a/d", b"x")
    await store.delete("a/b/c")
    await store.delete("a/b/c")
    await store.delete("never/was")
    assert await keys(store) == ["a/d"]
    for read in (store.head("a/b/c"), store.read("a/b/c", max_bytes=1), whole(store, "a/b/c")):
        with pytest.raises(ObjectMissingError) as caught:
            await read
        assert caught.value.key == "a/b/c"


async def check_conditions(store: ArtifactStore) -> None:
    """Of several who put what is missing, one does, and the others hear of it."""
    outcomes: list[str] = []

    async def put(number: int) -> None:
        try:
            await store.put("once", b"%d" % number, if_missing=True)
        except ObjectExistsError:
            outcomes.append("exists")
        else:
            outcomes.append(str(number))

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(put, number)
    assert outcomes.count("exists") == 5
    assert [(await whole(store, "once")).decode()] == [one for one in outcomes if one != "exists"]
    with pytest.raises(ObjectExistsError):
        await store.put("once", parts_of(b"x" * MIB, b"y" * MIB), if_missing=True)
    await store.put("large", parts_of(b"x" * MIB, b"y"), if_missing=True)
    assert (await store.head("large")).size == MIB + 1
    await store.put("once", b"replaced")
    assert await whole(store, "once") == b"replaced"


class SourceError(Exception):
    pass


async def check_failing_sources(store: ArtifactStore) -> None:
    """A source that fails leaves what was there, and its own error comes through."""

    async def failing(*sizes: int) -> AsyncIterator[bytes]:
        for size in sizes:
            yield b"x" * size
        raise SourceError("broken")

    for sizes in ((), (1,), (2 * MIB,), (9 * MIB, 9 * MIB)):
        with pytest.raises(SourceError):
            await store.put("never", failing(*sizes))
    assert await keys(store) == []
    await store.put("kept", b"old")
    with pytest.raises(SourceError):
        await store.put("kept", failing(2 * MIB))
    assert await whole(store, "kept") == b"old"
    with pytest.raises(StoreError, match="content is bytes, not str"):
        await store.put("never", parts_of("text"))  # type: ignore[arg-type]


async def check_cancellation(store: ArtifactStore) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * (2 * MIB)
        await anyio.sleep_forever()

    with anyio.move_on_after(0.3) as scope:
        await store.put("never", endless())
    assert scope.cancelled_caught
    assert await keys(store) == []


async def check_bad_keys(store: ArtifactStore) -> None:
    for key in ("", "/a", "../a", "a/../b", "a//b", "a\nb", "a/"):
        for call in (
            store.put(key, b"x"),
            store.head(key),
            store.delete(key),
            whole(store, key),
            store.link(key),
        ):
            with pytest.raises(ObjectKeyError):
                await call
    for prefix in ("/a", "..", "a/"):
        with pytest.raises(ObjectKeyError):
            await keys(store, prefix)
    for media_type in ("", "text/html\r\nX: y", "ü"):
        with pytest.raises(StoreError, match="no media type"):
            await store.put("a", b"x", media_type=media_type)
    assert await keys(store) == []


CHECKS = (
    check_round_trips,
    check_streams,
    check_names,
    check_lists,
    check_deletes,
    check_conditions,
    check_failing_sources,
    check_cancellation,
    check_bad_keys,
)
