"""The workspace comes out whole, by exact names, and lands nowhere else."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence import FakeBackend, FileInfo, FileKind, SandboxClosedError, SandboxLostError
from ringfence.backends.fake import FakeSandbox
from ringfence.errors import ConfigError, SandboxError
from ringfence.export import (
    MAX_FILE_BYTES,
    ExportLimits,
    ExportReport,
    export_workspace,
    readable,
)

pytestmark = pytest.mark.anyio

NAMES = st.binary(min_size=1, max_size=30).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map(b"/".join), st.binary(max_size=50), max_size=8
)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def sandbox() -> AsyncIterator[FakeSandbox]:
    async with FakeBackend() as backend:
        made = await backend.create()
        assert isinstance(made, FakeSandbox)
        yield made


def contents(directory: Path) -> dict[bytes, bytes]:
    """Return every regular file below a directory, links not followed."""
    root = os.fsencode(directory)
    found = {}
    for place, _, names in os.walk(root):
        for name in names:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                found[os.path.relpath(path, root)] = Path(os.fsdecode(path)).read_bytes()
    return found


def exported(report: ExportReport) -> list[str]:
    return [file.path for file in report.files]


def reasons(report: ExportReport) -> dict[str, str]:
    return {item.path: item.reason for item in report.skipped}


async def test_it_copies_files_and_says_so(sandbox: FakeSandbox, tmp_path: Path) -> None:
    await sandbox.write_file("report.md", "# Report\n")
    await sandbox.write_file("data/deep/numbers.csv", "1,2\n", mode=0o600)
    await sandbox.write_file("data/tool", "#!/bin/sh\n", mode=0o4711)
    await sandbox.make_dir("empty")
    report = await export_workspace(sandbox, tmp_path / "new" / "out")
    assert report.target == str(tmp_path / "new" / "out")
    assert contents(tmp_path / "new" / "out") == {
        b"report.md": b"# Report\n",
        b"data/deep/numbers.csv": b"1,2\n",
        b"data/tool": b"#!/bin/sh\n",
    }
    assert sorted(exported(report)) == ["data/deep/numbers.csv", "data/tool", "report.md"]
    assert (report.total_bytes, report.skipped, report.is_complete) == (9 + 4 + 10, (), True)
    modes = {
        name: (tmp_path / "new/out" / name).stat().st_mode & 0o7777 for name in exported(report)
    }
    assert modes == {"data/deep/numbers.csv": 0o644, "data/tool": 0o755, "report.md": 0o644}


async def test_what_is_no_regular_file_is_skipped_with_its_reason(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    kinds = [kind for kind in FileKind if kind not in (FileKind.FILE, FileKind.DIRECTORY)]
    for kind in kinds:
        sandbox.plant(f"x-{kind.value}", kind)
    sandbox.plant("closed", FileKind.FILE, 0)
    await sandbox.write_file("last", "still there")
    report = await export_workspace(sandbox, tmp_path)
    assert contents(tmp_path) == {b"last": b"still there"}
    assert reasons(report) == {
        "x-symlink": "a link",
        "x-fifo": "a FIFO",
        "x-socket": "a socket",
        "x-character_device": "a device",
        "x-block_device": "a device",
        "x-unknown": "of an unknown kind",
        "closed": "is closed to the sandbox's user",
    }
    assert report.skipped_count == len(kinds) + 1


@pytest.mark.parametrize(("size", "fits"), [(100, True), (101, False)])
async def test_a_file_of_exactly_the_limit_is_copied_and_one_byte_more_is_not(
    sandbox: FakeSandbox, tmp_path: Path, size: int, fits: bool
) -> None:
    await sandbox.write_file("file", b"x" * size)
    report = await export_workspace(sandbox, tmp_path, ExportLimits(file_bytes=100))
    assert contents(tmp_path) == ({b"file": b"x" * size} if fits else {})
    assert reasons(report) == ({} if fits else {"file": "too large"})


async def test_the_default_limit_is_50_mib_to_the_byte(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    assert ExportLimits().file_bytes == MAX_FILE_BYTES == 52_428_800
    await sandbox.write_file("exactly", bytes(52_428_800))
    await sandbox.write_file("more", bytes(52_428_801))
    report = await export_workspace(sandbox, tmp_path)
    assert [(file.path, file.size) for file in report.files] == [("exactly", 52_428_800)]
    assert (tmp_path / "exactly").stat().st_size == 52_428_800
    assert reasons(report) == {"more": "too large"}
    assert os.listdir(tmp_path) == ["exactly"]


async def test_a_file_that_grows_past_the_limit_meanwhile_leaves_nothing(
    sandbox: FakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.write_file("log", b"x" * 10)
    real = sandbox._read_file

    async def growing(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        await sandbox.write_file("log", b"x" * 1000, append=True)
        return await real(path, offset, max_bytes)

    monkeypatch.setattr(sandbox, "_read_file", growing)
    report = await export_workspace(sandbox, tmp_path, ExportLimits(file_bytes=500))
    assert reasons(report) == {"log": "too large"}
    assert os.listdir(tmp_path) == []


async def test_what_does_not_fit_the_total_is_skipped_and_smaller_files_go_on(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    for name, size in (("a", 60), ("b", 60), ("c", 40), ("d", 1)):
        await sandbox.write_file(name, b"x" * size)
    report = await export_workspace(sandbox, tmp_path, ExportLimits(total_bytes=100))
    assert exported(report) == ["a", "c"]
    assert reasons(report) == {"b": "over the total", "d": "over the total"}


async def test_more_entries_than_it_looks_at_make_it_incomplete(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    for number in range(20):
        await sandbox.write_file(f"d{number % 2}/{number:02}", "x")
    report = await export_workspace(sandbox, tmp_path, ExportLimits(entries=15))
    assert len(report.files) == 15 - 2
    assert not report.is_complete
    exact = await export_workspace(sandbox, tmp_path, ExportLimits(entries=22))
    assert (len(exact.files), exact.is_complete) == (20, True)


async def test_the_report_names_only_so_many_skipped_and_counts_the_rest(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    for number in range(9):
        sandbox.plant(f"link{number}", FileKind.SYMLINK)
    report = await export_workspace(sandbox, tmp_path, ExportLimits(listed=4))
    assert (len(report.skipped), report.skipped_count) == (4, 9)


async def test_names_that_are_none_lead_nowhere(
    sandbox: FakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("", ".", "..", "../up", "/etc/cron", "a/b", "nul\0", "fine")

    async def hostile(path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        found = [FileInfo(name, FileKind.FILE, 1, 0o644, 0.0) for name in names]
        found += [FileInfo("..", FileKind.DIRECTORY, 0, 0o755, 0.0)]
        return found, len(found)

    async def content(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        return b"x"[offset:], 1

    monkeypatch.setattr(sandbox, "_list_files", hostile)
    monkeypatch.setattr(sandbox, "_read_file", content)
    target = tmp_path / "in" / "out"
    report = await export_workspace(sandbox, target)
    assert contents(tmp_path) == {b"in/out/fine": b"x"}
    assert exported(report) == ["fine"]
    assert {item.reason for item in report.skipped} == {"not a name"}
    assert report.skipped_count == len(names)  # all but one, and the directory


async def test_a_link_in_the_target_is_not_followed(sandbox: FakeSandbox, tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (outside / "keep").write_text("mine")
    (target / "dir").symlink_to(outside)
    (target / "file").symlink_to(outside / "keep")
    await sandbox.write_file("dir/stolen", "x")
    await sandbox.write_file("file", "theirs")
    report = await export_workspace(sandbox, target)
    assert contents(outside) == {b"keep": b"mine"}
    assert reasons(report) == {"dir/stolen": "leads through a link"}
    assert not (target / "file").is_symlink()  # it was replaced, not written through
    assert (target / "file").read_text() == "theirs"


async def test_what_is_in_the_way_stops_one_file_alone(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    (tmp_path / "blocked").write_text("a file")
    await sandbox.write_file("taken", "x")
    await sandbox.write_file("blocked/inner", "x")
    await sandbox.write_file("replaced", "new")
    (tmp_path / "replaced").write_text("old and longer")
    report = await export_workspace(sandbox, tmp_path)
    assert set(reasons(report)) == {"taken", "blocked/inner"}
    assert contents(tmp_path) == {
        b"taken/mine": b"mine",
        b"blocked": b"a file",
        b"replaced": b"new",
    }


async def test_an_operation_that_was_broken_off_inside_stops_one_file_alone(
    sandbox: FakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.write_file("a", "x")
    await sandbox.write_file("b", "y")
    real = sandbox._read_file

    async def broken(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        if path == b"a":
            raise SandboxError("a file operation was ended from inside the sandbox")
        return await real(path, offset, max_bytes)

    monkeypatch.setattr(sandbox, "_read_file", broken)
    report = await export_workspace(sandbox, tmp_path)
    assert reasons(report) == {"a": "a file operation was ended from inside the sandbox"}
    assert contents(tmp_path) == {b"b": b"y"}


@pytest.mark.parametrize("part", [0, 2])
async def test_a_sandbox_that_dies_half_way_is_an_error_and_leaves_whole_files(
    sandbox: FakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr("ringfence.export.walk.PART_BYTES", 4)
    await sandbox.write_file("a", "whole")
    await sandbox.write_file("b", "0123456789")
    real = sandbox._read_file

    async def dying(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        if path == b"b" and offset >= part * 4:
            sandbox.lose("killed")
        return await real(path, offset, max_bytes)

    monkeypatch.setattr(sandbox, "_read_file", dying)
    with pytest.raises(SandboxLostError):
        await export_workspace(sandbox, tmp_path, at_once=1)
    assert contents(tmp_path) == {b"a": b"whole"}


async def test_cancelled_it_leaves_whole_files(
    sandbox: FakeSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.export.walk.PART_BYTES", 4)
    await sandbox.write_file("file", "0123456789")
    real = sandbox._read_file
    scope = anyio.CancelScope()

    async def cancelling(path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        if offset:
            scope.cancel()
        return await real(path, offset, max_bytes)

    monkeypatch.setattr(sandbox, "_read_file", cancelling)
    with scope:
        await export_workspace(sandbox, tmp_path)
    assert scope.cancelled_caught
    assert os.listdir(tmp_path) == []


async def test_a_closed_sandbox_and_a_bad_target_are_errors(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="no directory to export to"):
        await export_workspace(sandbox, tmp_path / "file")
    await sandbox.aclose()
    with pytest.raises(SandboxClosedError):
        await export_workspace(sandbox, tmp_path)


@contextmanager
def fresh_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@settings(deadline=None)
@given(TREES)
def test_any_name_comes_out_exactly_and_nothing_beside_it(tree: dict[bytes, bytes]) -> None:
    async def work(target: Path) -> tuple[ExportReport, dict[bytes, bytes]]:
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            there = {}
            for path, data in tree.items():
                try:
                    await sandbox.write_file(path, data)
                except SandboxError:
                    continue  # below a name that is a file
                there[path] = data
            return await export_workspace(sandbox, target), there

    with fresh_directory() as outer:
        report, there = anyio.run(work, outer / "target")
        assert contents(outer) == {b"target/" + path: data for path, data in there.items()}
        assert {os.fsencode(file.path) for file in report.files} == set(there)
        assert json.loads(json.dumps(report.to_dict()))["skipped_count"] == 0


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_a_readable_name_is_safe_to_show_and_can_be_turned_back(raw: bytes) -> None:
    shown = readable(os.fsdecode(raw))
    assert shown.isprintable()
    shown.encode()
    back = bytearray()
    rest = shown
    while rest:
        if rest.startswith("\\\\"):
            back += b"\\"
            rest = rest[2:]
        elif rest.startswith("\\x"):
            back.append(int(rest[2:4], 16))
            rest = rest[4:]
        else:
            back += rest[0].encode()
            rest = rest[1:]
    assert bytes(back) == raw
