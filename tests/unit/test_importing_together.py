"""Small files go into a sandbox together, and what fails takes nothing else along."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from ringfence import FakeBackend, NoSpaceError
from ringfence.backend import NewFile
from ringfence.backends.fake import FakeSandbox
from ringfence.errors import FileIsDirectoryError, FilePermissionError, LimitError, WorkspaceError
from ringfence.importing import ImportLimits, import_files
from ringfence.incoming import Incoming

pytestmark = pytest.mark.anyio

KB = 1 << 10


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
def groups(sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The paths of each call that writes files together."""
    asked: list[list[str]] = []
    write = sandbox._write_files

    async def together(files: Sequence[NewFile]) -> list[WorkspaceError | None]:
        asked.append([os.fsdecode(file.path) for file in files])
        return await write(files)

    monkeypatch.setattr(sandbox, "_write_files", together)
    return asked


def fail_at(
    sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch, path: bytes, error: BaseException
) -> None:
    """Let the writing of a file fail when half of it is there."""
    write = sandbox._write_file

    async def half(name: bytes, data: bytes, mode: int | None, append: bool) -> None:
        if name != path:
            await write(name, data, mode, append)
            return
        if not isinstance(error, FilePermissionError):
            await write(name, data[: len(data) // 2], mode, append)
        raise error

    monkeypatch.setattr(sandbox, "_write_file", half)


async def test_small_files_go_in_groups_and_large_ones_alone(
    sandbox: FakeSandbox, groups: list[list[str]], tmp_path: Path
) -> None:
    small = {f"s/{number:04}": b"x" * number for number in range(600)}
    large = {"l/0": b"x" * (300 * KB), "l/1": b"y" * (2 << 20)}
    report = await import_files(sandbox, small | large)
    assert [len(group) for group in groups] == [256, 256, 88]
    assert sorted(path for group in groups for path in group) == sorted(small)
    assert set(report.paths) == {*small, *large}
    groups.clear()
    for number in range(9):
        (tmp_path / f"{number}").write_bytes(b"z" * (250 * KB))
    (tmp_path / "large").write_bytes(b"z" * (257 * KB))
    await import_files(sandbox, tmp_path, into="d")
    assert max(map(len, groups)) == 4, "a group has at most 1 MiB"
    assert sum(map(len, groups)) >= 8
    assert (await sandbox.list_files("d")).total == 10


async def test_the_error_names_the_file_and_what_was_written_before(
    sandbox: FakeSandbox,
) -> None:
    await sandbox.write_file("b/kept", "kept")
    with pytest.raises(FileIsDirectoryError) as caught:
        await import_files(sandbox, {"a": "1", "b": "2", "c": "3"}, at_once=1)
    assert caught.value.path == "b"
    assert caught.value.written == ("a", "c")
    assert await sandbox.read_file("b/kept") == b"kept"


@pytest.mark.parametrize("content", [b"new" * 4, b"new" * 200_000], ids=["together", "alone"])
async def test_what_is_in_the_way_is_not_taken_away(sandbox: FakeSandbox, content: bytes) -> None:
    await sandbox.write_file("d/kept", "kept")
    with pytest.raises(FileIsDirectoryError):
        await import_files(sandbox, {"d": content, "e": b"e"})
    assert await sandbox.read_file("d/kept") == b"kept"


async def test_a_file_that_may_not_be_written_stays_as_it_is(
    sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.write_file("a", "old")
    fail_at(sandbox, monkeypatch, b"a", FilePermissionError("a", "is not permitted"))
    with pytest.raises(FilePermissionError):
        await import_files(sandbox, {"a": "new", "b": "b"})
    assert await sandbox.read_file("a") == b"old"


async def test_nothing_stays_of_what_does_not_fit(
    sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(sandbox, monkeypatch, b"b", NoSpaceError("b", "does not fit"))
    with pytest.raises(NoSpaceError) as caught:
        await import_files(sandbox, {"a": "1", "b": "22", "c": "3"})
    assert caught.value.written == ("a", "c")
    assert [info.name for info in (await sandbox.list_files()).entries] == ["a", "c"]


async def test_nothing_stays_of_what_was_cancelled(
    sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.CancelScope() as scope:
        write = sandbox._write_file

        async def slow(name: bytes, data: bytes, mode: int | None, append: bool) -> None:
            await write(name, data, mode, append)
            if name == b"b":
                scope.cancel()
                await anyio.sleep_forever()

        monkeypatch.setattr(sandbox, "_write_file", slow)
        await import_files(sandbox, {"a": "1", "b": "22", "c": "3"})
    assert scope.cancelled_caught
    assert [info.name for info in (await sandbox.list_files()).entries] == ["a"]


async def test_the_bounds_hold_within_a_group(
    sandbox: FakeSandbox, groups: list[list[str]]
) -> None:
    limits = ImportLimits(total_bytes=10, entries=4)
    with pytest.raises(LimitError, match="more than 10 bytes"):
        await import_files(sandbox, {"a": b"x" * 6, "b": b"x" * 4, "c": b"x"}, limits=limits)
    with pytest.raises(LimitError, match="more than 4 files"):
        await import_files(sandbox, {f"{n}": b"" for n in range(5)}, limits=limits)
    assert groups == [["a", "b"], ["0", "1", "2", "3"]]


async def test_what_was_told_of_a_content_is_held_against_it(sandbox: FakeSandbox) -> None:
    wrong = [Incoming("b", b"22", size=3), Incoming("b", b"22", sha256="00")]
    for item in wrong:
        with pytest.raises(WorkspaceError, match="came to") as caught:
            await import_files(sandbox, [Incoming("a", b"1"), item])
        assert (caught.value.path, caught.value.written) == ("b", ("a",))
    assert [info.name for info in (await sandbox.list_files()).entries] == ["a"]
