"""Exports and imports from blocking code."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import ExportEvent, FakeBackend, Incoming, ObjectKeyError, open_store, sync
from ringfence.errors import ConfigError, ObjectExistsError, StoreError, UnsupportedError


def test_a_workspace_goes_out_and_comes_back(tmp_path: Path) -> None:
    events: list[ExportEvent] = []
    with sync.Backend(FakeBackend()) as backend, backend.create() as sandbox:
        brought = sync.import_files(sandbox, [Incoming("a", b"1"), Incoming("d/b", b"22")])
        assert brought.total_bytes == 3
        report = sync.export_workspace(sandbox, tmp_path / "out", on_progress=events.append)
        assert [file.path for file in report.files] == ["a", "d/b"]
        store = open_store(tmp_path / "store")
        report = sync.export_workspace(sandbox, store, prefix="acme/run")
        assert report.manifest == "acme/run/manifest.json"
        with pytest.raises(ObjectKeyError):
            sync.export_workspace(sandbox, store, prefix="../run")
    assert (tmp_path / "out" / "d" / "b").read_text() == "22"
    assert {event.path for event in events} == {"a", "d/b"}
    assert (tmp_path / "store" / "acme" / "run" / "files" / "d" / "b").read_text() == "22"


def test_a_workspace_comes_as_an_archive(tmp_path: Path) -> None:
    """Part by part, and an iteration that is left early leaves nothing open."""
    with sync.Backend(FakeBackend()) as backend, backend.create() as sandbox:
        sandbox.write_file("d/b", "22")
        sandbox.write_file("large", b"x" * (3 << 20))
        archive = sync.archive_workspace(sandbox)
        with pytest.raises(RuntimeError, match="not complete"):
            _ = archive.report
        data = b"".join(archive)
        assert [file.path for file in archive.report.files] == ["d/b", "large"]
        with tarfile.open(fileobj=io.BytesIO(data)) as found:
            assert {member.name: member.size for member in found} == {"d/b": 2, "large": 3 << 20}
        assert next(iter(sync.archive_workspace(sandbox, "zip"))).startswith(b"PK")
        with pytest.raises(ConfigError, match="tar or zip"):
            sync.archive_workspace(sandbox, "rar")  # type: ignore[arg-type]


def test_an_error_of_the_callback_comes_back(tmp_path: Path) -> None:
    def broken(event: ExportEvent) -> None:
        raise KeyError("mine")

    with sync.Backend(FakeBackend()) as backend, backend.create() as sandbox:
        sandbox.write_file("a", "x")
        with pytest.raises(KeyError, match="mine"):
            sync.export_workspace(sandbox, tmp_path, on_progress=broken)


def test_a_store_from_blocking_code(tmp_path: Path) -> None:
    """Objects in and out in parts, by a source that blocks, and an export that goes there."""
    store = sync.open_store(tmp_path)

    def parts() -> Iterator[bytes]:
        for _ in range(3):
            time.sleep(0.01)
            yield b"x" * (1 << 20)

    stored = store.put("a/large", parts(), media_type="text/plain")
    assert (stored.size, stored.sha256) == (3 << 20, store.head("a/large").sha256)
    assert sum(map(len, store.get("a/large", offset=5))) == (3 << 20) - 5
    assert next(store.get("a/large", length=2)) == b"xx"  # and is left early
    store.put("b", b"1")
    with pytest.raises(ObjectExistsError):
        store.put("b", b"2", if_missing=True)
    assert store.read("b", max_bytes=1) == b"1"
    store.delete("b")
    assert [item.key for item in store.list()] == ["a/large"]
    assert (store.has_links, str(tmp_path) in store.name) == (False, True)
    with pytest.raises(UnsupportedError, match="has no links"):
        store.link("a/large")
    with sync.Backend(FakeBackend()) as backend, backend.create() as sandbox:
        sandbox.write_file("f", "1")
        sync.export_workspace(sandbox, store, prefix="acme/run")
    assert store.read("acme/run/files/f", max_bytes=9) == b"1"
    with pytest.raises(StoreError, match="not int"):
        store.put("c", [1])  # type: ignore[list-item]
    assert [item.key for item in store.list("c")] == []
