"""The stores of one machine, by what every store does and by what each alone does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import obstore.exceptions
import pytest

from ringfence.errors import (
    ConfigError,
    MissingDependencyError,
    ObjectKeyError,
    ObjectMissingError,
    StoreAccessError,
    StoreError,
    UnsupportedError,
)
from ringfence.storage import (
    ArtifactStore,
    LocalStore,
    LocalStoreConfig,
    MemoryStoreConfig,
    S3StoreConfig,
    open_store,
)
from ringfence.storage._objects import _ERRORS
from ringfence.storage.drafts import Draft, sweep
from ringfence.storage.root import Root

from .contract import CHECKS, MIB, keys, parts_of, whole

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_does_what_every_store_does(
    store: ArtifactStore, check: Callable[[ArtifactStore], Awaitable[None]]
) -> None:
    await check(store)


async def test_there_are_no_links_to_what_is_on_this_machine(store: ArtifactStore) -> None:
    assert not store.has_links
    with pytest.raises(UnsupportedError, match="no links"):
        await store.link("a")
    for seconds in (0, -1, 8 * 24 * 3600):
        with pytest.raises(StoreError, match="may last"):
            await store.link("a", expires_in=seconds)


# A directory.


def everything(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


async def test_a_directory_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = LocalStore(tmp_path / "new" / "store")
        await store.put("a/b", b"x")
        await store.put("large", parts_of(b"x" * MIB, b"y" * MIB))
    finally:
        os.umask(before)
    root = tmp_path / "new" / "store"
    modes = {name: (root / name).stat().st_mode & 0o7777 for name in (".", *everything(root))}
    assert modes == {".": 0o700, "a": 0o700, "a/b": 0o600, "large": 0o600}


async def test_nothing_is_reached_by_a_link(tmp_path: Path) -> None:
    store, outside = LocalStore(tmp_path / "store"), tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (tmp_path / "store" / "dir").symlink_to(outside)
    (tmp_path / "store" / "file").symlink_to(outside / "secret")
    for call in (
        store.put("dir/new", b"x"),
        store.head("dir/secret"),
        whole(store, "dir/secret"),
        whole(store, "file"),
        store.head("file"),
    ):
        with pytest.raises(ObjectKeyError, match="link"):
            await call
    await store.delete("dir/secret")
    await store.delete("file")
    assert await keys(store) == []
    await store.put("file", b"mine")
    assert not (tmp_path / "store" / "file").is_symlink()
    assert everything(outside) == ["secret"]
    assert (outside / "secret").read_text() == "secret"


async def test_what_is_no_file_blocks_nobody(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with anyio.fail_after(5):
        for call in (whole(store, "fifo"), store.head("fifo")):
            with pytest.raises(ObjectKeyError, match="not a regular file"):
                await call
        assert await keys(store) == []


async def test_a_key_below_an_object_is_refused_and_the_object_stays(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put("a", b"x")
    await store.put("d/e", b"x")
    for key in ("a/b", "d"):
        with pytest.raises(ObjectKeyError):
            await store.put(key, b"y")
        with pytest.raises(ObjectKeyError):
            await store.put(key, b"y", if_missing=True)
    assert await keys(store) == ["a", "d/e"]
    assert everything(tmp_path) == ["a", "d", "d/e"]


async def test_a_reader_sees_one_whole_object_while_it_is_replaced(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put("a", b"1" * (3 * MIB))
    found = b""
    async for part in store.get("a"):
        found += part
        await store.put("a", b"2" * 10)
    assert found == b"1" * (3 * MIB)


async def test_removing_the_last_object_leaves_no_directories(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    await store.put("a/b/c/d", b"x")
    await store.put("a/x", b"x")
    await store.delete("a/b/c/d")
    assert everything(tmp_path) == ["a", "a/x"]
    await store.delete("a/x")
    assert everything(tmp_path) == []


async def test_putting_and_removing_side_by_side_loses_nothing(tmp_path: Path) -> None:
    """Catches a directory that one removes as empty while the other puts something into it."""
    store = LocalStore(tmp_path)

    async def work(number: int) -> None:
        for _ in range(30):
            await store.put(f"a/b/{number}", b"x")
            assert await whole(store, f"a/b/{number}") == b"x"
            await store.delete(f"a/b/{number}")

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(work, number)
    assert everything(tmp_path) == []


async def test_a_closed_directory_is_a_matter_of_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)

    def closed(*args: Any, **kwargs: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ringfence.storage.drafts.os.open", closed)  # root is refused nothing
    with pytest.raises(StoreAccessError):
        await store.put("a", b"x")


async def test_a_full_disk_is_the_stores_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ringfence.storage.drafts.os.write", full)
    with pytest.raises(StoreError, match="No space left") as caught:
        await store.put("a", b"x")
    assert not isinstance(caught.value, ObjectKeyError)
    assert everything(tmp_path) == []


async def test_drafts_are_no_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with Root(str(tmp_path), made_mode=0o700) as root:
        draft = Draft(root, mode=0o600)
        draft.write(b"half")
        assert len(everything(tmp_path)) == 1
        assert await keys(store) == []
        assert sweep(str(tmp_path)) == 0  # its writer lives
        draft.discard()
        draft.discard()
    assert everything(tmp_path) == []


KILLED = """
import os, signal, sys
from ringfence.storage.drafts import Draft
from ringfence.storage.root import Root
draft = Draft(Root(sys.argv[1], made_mode=0o700), mode=0o600)
draft.write(b"half")
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_the_next_one_removes_what_a_killed_process_was_writing(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], timeout=50)
    assert done.returncode == -signal.SIGKILL
    assert len(everything(tmp_path)) == 1
    with Root(str(tmp_path), made_mode=0o700) as root:
        alive = Draft(root, mode=0o600)
        LocalStore(tmp_path)
        assert len(everything(tmp_path)) == 1  # the one that is being written
        alive.discard()


async def test_a_sweep_takes_nothing_but_drafts(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x")
    root = tmp_path / "root"
    root.mkdir()
    (root / ".ringfence-0123456789abcdef").symlink_to(outside)
    (root / ".ringfence-notes").write_text("x")
    (root / "file").write_text("x")
    assert sweep(str(root)) == 0
    assert len(everything(root)) == 3
    assert outside.exists()


# Opening.


@pytest.mark.parametrize("where", ["", "file\0", "/dev/null", "/proc/nothing/here"])
def test_what_can_be_no_directory_is_refused(where: str) -> None:
    with pytest.raises(ConfigError, match="no directory for a store"):
        open_store(where)


def test_each_way_to_name_a_store_opens_it(tmp_path: Path) -> None:
    for where in (
        str(tmp_path / "a b"),
        tmp_path / "a b",
        f"file://{tmp_path}/a%20b",
        f"file://localhost{tmp_path}/a%20b",
        LocalStoreConfig(tmp_path / "a b"),
    ):
        assert open_store(where).name == f"directory {tmp_path}/a b"
    assert open_store("memory:").name == open_store(MemoryStoreConfig()).name == "memory"
    assert open_store("s3://bucket").name == "s3://bucket"
    assert open_store("s3://bucket/a/b/").name == "s3://bucket/a/b"


async def test_each_store_in_memory_is_a_new_one() -> None:
    await open_store("memory:").put("a", b"x")
    with pytest.raises(ObjectMissingError):
        await open_store("memory:").head("a")


@pytest.mark.parametrize(
    "where",
    [
        "s3://user:hunter2@bucket/x",
        "s3://bucket/x?secret=hunter2",
        "s3://bucket#hunter2",
        "ftp://host/x",
        "file://other-host/x",
        "s3://",
        "s3://UPPER",
        "s3://bucket/../x",
    ],
)
def test_a_url_that_is_none_is_refused_and_its_secrets_are_not_repeated(where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(where)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": "ftp://host"},
        {"endpoint": "https://user:hunter2@host"},
        {"endpoint": "https://host?x=hunter2"},
        {"access_key_id": "key"},
        {"secret_access_key": "hunter2"},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"prefix": "/x"},
        {"prefix": "a/../b"},
    ],
)
def test_settings_that_can_not_be_right_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        S3StoreConfig("bucket", **settings)
    assert "hunter2" not in str(caught.value)


def test_credentials_are_never_shown() -> None:
    config = S3StoreConfig(
        "bucket",
        endpoint="http://127.0.0.1:1",
        access_key_id="AKIDHUNTER2",
        secret_access_key="hunter2-secret",
        session_token="hunter2-token",
    )
    store = open_store(config)
    shown = f"{config!r} {config} {config.name} {store!r} {store} {vars(store)!r}"
    assert "hunter2" not in shown.lower()


@pytest.mark.parametrize("where", ["memory:", "s3://bucket"])
def test_a_missing_extra_is_named_and_a_directory_needs_none(where: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from ringfence.storage import open_store\n"
        "from ringfence.errors import MissingDependencyError\n"
        f"open_store({str(tmp_path)!r})\n"
        f"try: open_store({where!r})\n"
        "except MissingDependencyError as error: print(error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=50
    )
    assert (done.stdout, done.stderr) == ("pip install 'ringfence[storage]'\n", "")
    assert issubclass(MissingDependencyError, ImportError)


def test_every_fault_of_the_library_has_words_of_ours() -> None:
    """Catches a new kind of fault that would pass through with what the service was sent."""
    known = {kind.__name__ for kind, _, _ in _ERRORS}
    foreign = {name for name in dir(obstore.exceptions) if name.endswith("Error")}
    assert foreign - known == {"NotFoundError"}  # which is FileNotFoundError by now
