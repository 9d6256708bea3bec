"""Small files that a sandbox reads together, as the ones with a warden do."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ringfence import FakeBackend, SandboxLostError, SandboxSpec
from ringfence.backends.fake import FakeSandbox
from ringfence.errors import FileMissingError, SandboxError, WorkspaceError
from ringfence.export import ExportLimits, ExportReport, export_workspace
from ringfence.storage import LocalStore
from ringfence.storage.drafts import place_whole
from ringfence.storage.root import Root

pytestmark = pytest.mark.anyio

Found = list[bytes | WorkspaceError | None]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class Together:
    """Reads what a sandbox has together, and keeps count of it.

    Attributes:
        asked: The paths and the most bytes of each call.
        alone: The paths that were read by themselves.
        instead: What some paths answer instead.
        error: What every call raises.
    """

    def __init__(self, sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[list[bytes], int]] = []
        self.alone: list[bytes] = []
        self.instead: dict[bytes, bytes | WorkspaceError | None] = {}
        self.error: SandboxError | None = None
        self._read = sandbox._read_file
        monkeypatch.setattr(sandbox, "_read_files", self._together)
        monkeypatch.setattr(sandbox, "_read_file", self._one)

    async def _one(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        self.alone.append(path)
        return await self._read(path, offset, max_bytes)

    async def _together(self, paths: Sequence[bytes], max_bytes: int) -> Found:
        self.asked.append((list(paths), max_bytes))
        if self.error is not None:
            raise self.error
        found: Found = [(await self._read(path, 0, 1 << 30))[0] for path in paths]
        pairs = zip(paths, found, strict=True)
        return [self.instead.get(path, content) for path, content in pairs]


@pytest.fixture
async def sandbox() -> AsyncIterator[FakeSandbox]:
    async with FakeBackend() as backend:
        made = await backend.create(SandboxSpec())
        assert isinstance(made, FakeSandbox)
        yield made


@pytest.fixture
def together(sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch) -> Together:
    return Together(sandbox, monkeypatch)


def outcome(report: ExportReport) -> tuple[dict[str, int], dict[str, str]]:
    files = {file.path: file.size for file in report.files}
    return files, {item.path: item.reason for item in report.skipped}


async def test_small_files_are_read_together_and_large_ones_by_themselves(
    sandbox: FakeSandbox, together: Together, tmp_path: Path
) -> None:
    small = {f"s{number:03}": number * 50 for number in range(300)}
    await sandbox.write_file("large", bytes((256 << 10) + 1))
    for name, size in small.items():
        await sandbox.write_file(name, b"x" * size)
    report = await export_workspace(sandbox, tmp_path)
    assert outcome(report) == ({**small, "large": (256 << 10) + 1}, {})
    assert set(together.alone) == {b"large"}
    names = [path.decode() for paths, _ in together.asked for path in paths]
    assert sorted(names) == sorted(small)
    for paths, most in together.asked:
        assert most == sum(small[path.decode()] for path in paths) <= 2 << 20
        assert len(paths) <= 256
    for name, size in small.items():
        assert (tmp_path / name).read_bytes() == b"x" * size


async def test_what_can_not_be_read_stops_no_other(
    sandbox: FakeSandbox, together: Together, tmp_path: Path
) -> None:
    for name in "abc":
        await sandbox.write_file(name, name)
    together.instead = {b"a": FileMissingError("a", "does not exist"), b"b": None}
    report = await export_workspace(sandbox, tmp_path)
    assert outcome(report) == ({"b": 1, "c": 1}, {"a": "does not exist"})
    assert together.alone == [b"b"]


async def test_what_can_not_be_stored_stops_no_other(
    sandbox: FakeSandbox, together: Together, tmp_path: Path
) -> None:
    for name in ("a", "b/x", "b/y", "c", "d/x"):
        await sandbox.write_file(name, name)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("/tmp")
    files, skipped = outcome(await export_workspace(sandbox, tmp_path))
    assert files == {"c": 1, "d/x": 3}
    assert skipped == {
        "a": "Is a directory",
        **dict.fromkeys(("b/x", "b/y"), "leads through a link"),
    }
    assert len(together.asked) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "d"]


async def test_a_directory_that_goes_between_two_files_is_made_again(tmp_path: Path) -> None:
    with Root(str(tmp_path), made_mode=0o755) as root:
        place_whole(root, b"d/a", b"first", mode=0o644)
        shutil.rmtree(tmp_path / "d")
        place_whole(root, b"d/b", b"second", mode=0o644)
        place_whole(root, b"e/b", b"third", mode=0o644)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"d/b", "e/b"}


async def test_the_caps_hold_for_what_has_been_read(
    sandbox: FakeSandbox, together: Together, tmp_path: Path
) -> None:
    for name in "abcd":
        await sandbox.write_file(name, "1234")
    together.instead = {b"a": b"x" * 11, b"b": b"x" * 10, b"d": b"x"}
    limits = ExportLimits(file_bytes=10, total_bytes=20)
    files, skipped = outcome(await export_workspace(sandbox, tmp_path, limits, at_once=1))
    assert (files, skipped) == ({"b": 10, "c": 4, "d": 1}, {"a": "too large"})
    together.instead = {b"a": b"x" * 9, b"b": b"x" * 9}
    files, skipped = outcome(await export_workspace(sandbox, tmp_path, limits, at_once=1))
    assert (files, skipped) == ({"b": 9, "c": 4, "d": 4}, {"a": "over the total"})


async def test_a_reading_that_was_broken_off_is_done_file_by_file(
    sandbox: FakeSandbox, together: Together, tmp_path: Path
) -> None:
    for name in "ab":
        await sandbox.write_file(name, name)
    together.error = SandboxError("a file operation was ended from inside the sandbox")
    assert outcome(await export_workspace(sandbox, tmp_path)) == ({"a": 1, "b": 1}, {})
    assert sorted(together.alone) == [b"a", b"b"]


async def test_a_sandbox_that_dies_under_it_is_its_own_error(
    sandbox: FakeSandbox, together: Together, tmp_path: Path
) -> None:
    for name in "ab":
        await sandbox.write_file(name, name)
    together.error = SandboxLostError("gone", cause="killed")
    with pytest.raises(SandboxLostError):
        await export_workspace(sandbox, tmp_path)
    assert not list(tmp_path.iterdir())


async def test_a_second_run_brings_only_what_has_changed(
    sandbox: FakeSandbox, together: Together, tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    for name in "abc":
        await sandbox.write_file(name, "same")
    await export_workspace(sandbox, store, prefix="p")
    await sandbox.write_file("b", "diff")
    report = await export_workspace(sandbox, store, prefix="p")
    assert {file.path: file.unchanged for file in report.files} == {
        "a": True,
        "b": False,
        "c": True,
    }
    assert await store.read("p/files/b", max_bytes=4) == b"diff"
    assert together.alone == []
