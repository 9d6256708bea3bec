"""Exports and imports from blocking code."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from ringfence import ExportEvent, FakeBackend, Incoming, ObjectKeyError, open_store, sync
from ringfence.errors import ConfigError


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
