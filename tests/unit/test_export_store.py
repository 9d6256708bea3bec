"""A workspace in a store: whole, listed, resumable, and no way for a hostile one to break out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence import FakeBackend, FileInfo, FileKind, SandboxLostError
from ringfence.backends.fake import FakeSandbox
from ringfence.errors import (
    ConfigError,
    ObjectKeyError,
    ObjectMissingError,
    SandboxError,
    StoreError,
    StoreUnreachableError,
)
from ringfence.export import (
    ExportEvent,
    ExportLimits,
    ExportReport,
    export_workspace,
    read_manifest,
    readable,
    unreadable,
)
from ringfence.storage import ArtifactStore, LocalStore, open_store, unescape_path

pytestmark = pytest.mark.anyio

PREFIX = "acme/run%207"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def sandbox() -> AsyncIterator[FakeSandbox]:
    async with FakeBackend() as backend:
        made = await backend.create()
        assert isinstance(made, FakeSandbox)
        yield made


@pytest.fixture
def store() -> ArtifactStore:
    return open_store("memory:")


@pytest.fixture
def puts(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are put, in order."""
    seen: list[str] = []
    real = store._put

    async def put(key: str, *args: Any) -> Any:
        seen.append(key.removeprefix(f"{PREFIX}/"))
        return await real(key, *args)

    monkeypatch.setattr(store, "_put", put)
    return seen


async def export(sandbox: FakeSandbox, store: ArtifactStore, **options: Any) -> ExportReport:
    return await export_workspace(sandbox, store, prefix=PREFIX, **options)


async def objects(store: ArtifactStore) -> dict[str, bytes]:
    return {item.key: await store.read(item.key, max_bytes=1 << 20) async for item in store.list()}


def reasons(report: ExportReport) -> dict[str, str]:
    return {item.path: item.reason for item in report.skipped}


async def test_each_file_is_an_object_and_the_manifest_tells_all(
    sandbox: FakeSandbox, store: ArtifactStore
) -> None:
    await sandbox.write_file("a b.csv", "1,2\n", mode=0o640)
    await sandbox.write_file(b"d/bad\xff\n", b"\0", mode=0o755)
    sandbox.plant("link", FileKind.SYMLINK)
    report = await export(sandbox, store)
    found = await objects(store)
    manifest = json.loads(found.pop(f"{PREFIX}/manifest.json"))
    assert found == {
        f"{PREFIX}/files/a%20b.csv": b"1,2\n",
        f"{PREFIX}/files/d/bad%FF%0A": b"\0",
    }
    assert manifest["files"][0] == {
        "path": "a b.csv",
        "size": 4,
        "sha256": hashlib.sha256(b"1,2\n").hexdigest(),
        "mode": 0o640,
        "mtime": report.files[0].mtime,
        "media_type": "text/csv",
        "key": f"{PREFIX}/files/a%20b.csv",
    }
    assert manifest["files"][1]["path"] == r"d/bad\xff\x0a"
    assert manifest["skipped"] == [{"path": "link", "reason": "a link"}]
    assert (manifest["version"], manifest["is_complete"], manifest["total_bytes"]) == (1, True, 5)
    assert report.manifest == f"{PREFIX}/manifest.json"
    assert await read_manifest(store, PREFIX) == report
    assert (await store.head(f"{PREFIX}/files/a%20b.csv")).media_type == "text/csv"


async def test_a_second_run_brings_only_what_changed_or_is_missing(
    sandbox: FakeSandbox, store: ArtifactStore, puts: list[str]
) -> None:
    """By content: a program in the sandbox can set a file's date to what it was."""
    for name in ("same", "changed", "grown", "missing"):
        await sandbox.write_file(name, name * 10)
    first = await export(sandbox, store)
    assert sorted(puts) == [
        *("files/changed", "files/grown", "files/missing", "files/same", "manifest.json"),
    ]
    await store.delete(f"{PREFIX}/files/missing")
    node = sandbox._files._nodes[(b"changed",)]
    node.data[0:1] = b"C"  # and its date is what it was
    await sandbox.write_file("grown", "more", append=True)
    puts.clear()
    second = await export(sandbox, store)
    assert sorted(puts) == ["files/changed", "files/grown", "files/missing", "manifest.json"]
    assert puts[-1] == "manifest.json"
    assert [file.path for file in second.files if file.unchanged] == ["same"]
    assert [file.path for file in first.files] == [file.path for file in second.files]
    found = await objects(store)
    assert found[f"{PREFIX}/files/changed"] == b"C" + (b"changed" * 10)[1:]
    assert (await read_manifest(store, PREFIX)).total_bytes == second.total_bytes


async def test_a_store_that_fails_ends_the_export_and_the_next_one_goes_on(
    sandbox: FakeSandbox, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await sandbox.write_file(f"f{number}", "x" * number)
    real, count = store._put, 0

    async def failing(key: str, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count > 7:
            raise StoreUnreachableError("the store does not answer", key=key)
        return await real(key, *args)

    monkeypatch.setattr(store, "_put", failing)
    with pytest.raises(StoreUnreachableError):
        await export(sandbox, store, at_once=1)
    assert len(await objects(store)) == 7
    with pytest.raises(ObjectMissingError):
        await read_manifest(store, PREFIX)
    monkeypatch.setattr(store, "_put", real)
    report = await export(sandbox, store)
    assert sum(file.unchanged for file in report.files) == 7
    assert len(report.files) == 20


async def test_a_name_that_no_key_can_have_is_skipped_alone(
    sandbox: FakeSandbox, store: ArtifactStore
) -> None:
    await sandbox.write_file("/".join(["d" * 200] * 6), "x")
    await sandbox.write_file(b"\n" * 100, "x")
    await sandbox.write_file("x" * 255, "x")
    report = await export(sandbox, store)
    assert [file.path for file in report.files] == ["x" * 255]
    assert set(reasons(report).values()) == {
        "is longer than 1024 bytes",
        "has a part that is longer than 255 bytes",
    }


async def test_a_key_that_is_in_the_way_is_skipped_alone(
    sandbox: FakeSandbox, tmp_path: Any
) -> None:
    store = LocalStore(tmp_path)
    await store.put(f"{PREFIX}/files/a", b"was a file")
    await sandbox.write_file("a/b", "x")
    await sandbox.write_file("c", "x")
    report = await export(sandbox, store)
    assert [file.path for file in report.files] == ["c"]
    assert list(reasons(report)) == ["a/b"]


async def test_an_object_that_vanishes_between_listing_and_looking_is_brought(
    sandbox: FakeSandbox, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.write_file("a", "x")
    await export(sandbox, store)

    async def gone(key: str) -> Any:
        raise ObjectMissingError("does not exist", key=key)

    monkeypatch.setattr(store, "_head", gone)
    report = await export(sandbox, store)
    assert [file.unchanged for file in report.files] == [False]


# A workspace that changes meanwhile.


@pytest.mark.parametrize("target", ["store", "directory"])
async def test_a_file_that_shrinks_under_a_long_read_is_no_mixture(
    sandbox: FakeSandbox,
    store: ArtifactStore,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    monkeypatch.setattr("ringfence.export.walk.PART_BYTES", 4)
    await sandbox.write_file("file", "0123456789")
    await sandbox.write_file("other", "x")
    real = sandbox._read_file

    async def shrinking(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        found = await real(path, offset, max_bytes)
        if path == b"file" and offset == 0:
            await sandbox.write_file("file", "ABCDE")
        return found

    monkeypatch.setattr(sandbox, "_read_file", shrinking)
    if target == "store":
        report = await export(sandbox, store)
    else:
        report = await export_workspace(sandbox, tmp_path)
    assert reasons(report) == {"file": "shrank while it was read"}
    assert [file.path for file in report.files] == ["other"]


async def test_a_file_that_grows_within_the_caps_is_brought_as_it_was_read(
    sandbox: FakeSandbox, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.export.walk.PART_BYTES", 4)
    await sandbox.write_file("log", "1234")
    real = sandbox._read_file

    async def growing(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        if offset == 4:
            await sandbox.write_file("log", "56", append=True)
        return await real(path, offset, max_bytes)

    monkeypatch.setattr(sandbox, "_read_file", growing)
    report = await export(sandbox, store)
    assert [(file.path, file.size) for file in report.files] == [("log", 6)]
    assert (await objects(store))[f"{PREFIX}/files/log"] == b"123456"


async def test_a_file_that_vanishes_is_skipped_alone(
    sandbox: FakeSandbox, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.write_file("a", "x")
    await sandbox.write_file("b", "y")
    real = sandbox._read_file

    async def vanishing(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        if path == b"a":
            await sandbox.remove("a")
        return await real(path, offset, max_bytes)

    monkeypatch.setattr(sandbox, "_read_file", vanishing)
    report = await export(sandbox, store)
    assert reasons(report) == {"a": "does not exist"}
    assert [file.path for file in report.files] == ["b"]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8),
    st.integers(0, 150),
    st.integers(1, 4),
)
def test_the_total_is_kept_whatever_sizes_are_told_and_come(
    sizes: list[tuple[int, int]], total: int, at_once: int
) -> None:
    """Catches a cap that trusts the sizes of a listing."""

    async def work() -> None:
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            assert isinstance(sandbox, FakeSandbox)

            async def listed(path: bytes, most: int) -> tuple[list[FileInfo], int]:
                found = [
                    FileInfo(f"{number}", FileKind.FILE, told, 0o644, 0.0)
                    for number, (told, _) in enumerate(sizes)
                ]
                return found, len(found)

            async def read(path: bytes, offset: int, most: int) -> tuple[bytes, int]:
                await anyio.lowlevel.checkpoint()
                size = sizes[int(path)][1]
                return b"x" * max(0, min(most, size - offset)), size

            vars(sandbox).update(_list_files=listed, _read_file=read)
            limits = ExportLimits(file_bytes=50, total_bytes=total)
            report = await export(sandbox, open_store("memory:"), limits=limits, at_once=at_once)
            assert report.total_bytes <= total
            assert all(file.size == sizes[int(file.path)][1] <= 50 for file in report.files)
            assert len(report.files) + report.skipped_count == len(sizes)

    anyio.run(work)


# Several at once.


async def test_files_are_read_several_at_once_and_never_more(
    sandbox: FakeSandbox, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        await sandbox.write_file(f"{number}", "x")
    now, most, real = 0, 0, sandbox._read_file

    async def counted(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.sleep(0.01)
        now -= 1
        return await real(path, offset, max_bytes)

    monkeypatch.setattr(sandbox, "_read_file", counted)
    await export(sandbox, store, at_once=3)
    assert most == 3


async def test_a_sandbox_that_dies_is_its_own_error_and_not_a_group(
    sandbox: FakeSandbox, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        await sandbox.write_file(f"{number}", "x")

    async def dying(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        await anyio.sleep(0.01)
        raise SandboxLostError("gone", cause="killed")

    monkeypatch.setattr(sandbox, "_read_file", dying)
    with pytest.raises(SandboxLostError) as caught:
        await export(sandbox, store)
    assert caught.value.cause == "killed"
    assert await objects(store) == {}


async def test_cancelled_it_stops_and_writes_no_manifest(
    sandbox: FakeSandbox, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.write_file("a", "x")

    async def hanging(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(sandbox, "_read_file", hanging)
    with anyio.move_on_after(0.1) as scope:
        await export(sandbox, store)
    assert scope.cancelled_caught
    assert await objects(store) == {}


# Progress.


@pytest.mark.parametrize("is_async", [False, True])
async def test_progress_tells_of_every_entry(
    sandbox: FakeSandbox, store: ArtifactStore, is_async: bool
) -> None:
    for name in ("a", "b"):
        await sandbox.write_file(name, name * 5)
    sandbox.plant("link", FileKind.SYMLINK)
    events: list[ExportEvent] = []

    async def later(event: ExportEvent) -> None:
        await anyio.lowlevel.checkpoint()
        events.append(event)

    on_progress = later if is_async else events.append
    await export(sandbox, store, on_progress=on_progress)
    told = {(event.path, event.outcome, event.size, event.reason) for event in events}
    assert told == {
        ("a", "exported", 5, ""),
        ("b", "exported", 5, ""),
        ("link", "skipped", 0, "a link"),
    }
    assert max((event.files, event.total_bytes) for event in events) == (2, 10)
    events.clear()
    await export(sandbox, store, on_progress=on_progress)
    assert {event.outcome for event in events} == {"unchanged", "skipped"}


async def test_an_error_of_the_caller_stops_it_and_comes_back_as_it_is(
    sandbox: FakeSandbox, store: ArtifactStore
) -> None:
    for number in range(5):
        await sandbox.write_file(f"{number}", "x")

    def broken(event: ExportEvent) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await export(sandbox, store, on_progress=broken)
    with pytest.raises(ObjectMissingError):
        await read_manifest(store, PREFIX)


# What is asked.


async def test_a_target_that_can_not_be_right_is_refused_before_anything(
    sandbox: FakeSandbox, store: ArtifactStore, tmp_path: Any
) -> None:
    with pytest.raises(ConfigError, match="needs a prefix"):
        await export_workspace(sandbox, store)
    with pytest.raises(ConfigError, match="no prefix"):
        await export_workspace(sandbox, tmp_path, prefix="a")
    with pytest.raises(ConfigError, match="at_once"):
        await export_workspace(sandbox, tmp_path, at_once=0)
    for prefix in ("/a", "a/..", "a//b", "a/"):
        with pytest.raises(ObjectKeyError):
            await export_workspace(sandbox, store, prefix=prefix)
    assert "list_files" not in [call.verb for call in sandbox._owner.calls]


# The manifest.


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_a_readable_name_can_be_turned_back(raw: bytes) -> None:
    name = raw.decode("utf-8", "surrogateescape")
    assert unreadable(readable(name)) == name


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"files": 3},
        {"files": [{"path": "a"}]},
        {"key": "other/run/files/a"},
        {"key": f"{PREFIX}/files/b"},
        {"key": f"{PREFIX}/files/../../x"},
        {"path": "../../etc/passwd"},
        {"skipped": [1]},
        {"skipped_count": "many"},
    ],
)
async def test_a_manifest_that_is_none_is_refused(
    sandbox: FakeSandbox, store: ArtifactStore, change: dict[str, Any]
) -> None:
    """Catches a reader that fetches whatever key stands in it, or writes wherever."""
    await sandbox.write_file("a", "x")
    report = await export(sandbox, store)
    content = json.loads(await store.read(report.manifest, max_bytes=1 << 20))
    for name, value in change.items():
        (content["files"][0] if name in ("key", "path") else content)[name] = value
    await store.put(report.manifest, json.dumps(content).encode())
    with pytest.raises(StoreError, match=r"no manifest|not|no name"):
        await read_manifest(store, PREFIX)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"null", b"\xff", b'{"version": 1}', b"[" * 9999]
)
async def test_what_is_no_manifest_at_all_is_refused(store: ArtifactStore, data: bytes) -> None:
    await store.put(f"{PREFIX}/manifest.json", data)
    with pytest.raises(StoreError, match="no manifest"):
        await read_manifest(store, PREFIX)


async def test_every_key_leads_back_to_its_path(sandbox: FakeSandbox, store: ArtifactStore) -> None:
    names = [b"l\nb", b"a\\b", b"bad\xff", b"..x", b"%2F", b" ", b"+", "ünï".encode(), b"--"]
    for name in names:
        await sandbox.write_file(b"d/" + name, name)
    report = await export(sandbox, store)
    assert len(report.files) == len(names)
    for file in report.files:
        path = unescape_path(file.key.removeprefix(f"{PREFIX}/files/"))
        assert path == file.path.encode("utf-8", "surrogateescape")
        assert await store.read(file.key, max_bytes=100) == path.removeprefix(b"d/")


async def test_one_file_that_the_sandbox_can_not_give_stops_no_other(
    sandbox: FakeSandbox, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await sandbox.write_file(name, name)
    real = sandbox._read_file

    async def broken(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        if path == b"b":
            raise SandboxError("a file operation was ended from inside the sandbox")
        return await real(path, offset, max_bytes)

    monkeypatch.setattr(sandbox, "_read_file", broken)
    report = await export(sandbox, store)
    assert [file.path for file in report.files] == ["a", "c"]
    assert reasons(report) == {"b": "a file operation was ended from inside the sandbox"}
