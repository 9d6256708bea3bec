"""A workspace as tar and zip: whole, with safe names, and nothing of the sandbox's making."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence import FakeBackend, FileInfo, FileKind, SandboxLostError, archive_workspace
from ringfence.backends.fake import FakeSandbox
from ringfence.errors import ConfigError, SandboxError
from ringfence.export import ExportLimits, ExportReport
from ringfence.storage import LocalStore, unescape_name

pytestmark = pytest.mark.anyio

Format = Literal["tar", "zip"]
FORMATS: tuple[Format, ...] = ("tar", "zip")
both = pytest.mark.parametrize("kind", FORMATS)

MIB = 1 << 20


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def sandbox() -> AsyncIterator[FakeSandbox]:
    async with FakeBackend() as backend:
        made = await backend.create()
        assert isinstance(made, FakeSandbox)
        yield made


async def archived(
    sandbox: FakeSandbox, kind: Format, limits: ExportLimits | None = None
) -> tuple[bytes, ExportReport]:
    archive = archive_workspace(sandbox, kind, limits)
    data = b"".join([part async for part in archive])
    return data, archive.report


def members(kind: Format, data: bytes) -> dict[str, tuple[bytes, int]]:
    """Return content and mode by name, from an archive that is read to its end."""
    if kind == "tar":
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            found = {}
            for member in tar:
                assert member.isreg()
                content = tar.extractfile(member)
                assert content is not None
                found[member.name] = content.read(), member.mode
            return found
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        assert zipped.testzip() is None
        return {
            item.filename: (zipped.read(item), (item.external_attr >> 16) & 0o7777)
            for item in zipped.infolist()
        }


@both
async def test_it_has_every_regular_file_whole(sandbox: FakeSandbox, kind: Format) -> None:
    big = os.urandom(3 * MIB + 7)
    await sandbox.write_file("a.txt", "hello")
    await sandbox.write_file("d/run", "#!", mode=0o4711)
    await sandbox.write_file("d/empty", "")
    await sandbox.write_file("big", big)
    sandbox.plant("link", FileKind.SYMLINK)
    data, report = await archived(sandbox, kind)
    assert members(kind, data) == {
        "a.txt": (b"hello", 0o644),
        "d/run": (b"#!", 0o755),
        "d/empty": (b"", 0o644),
        "big": (big, 0o644),
    }
    assert [file.path for file in report.files] == ["a.txt", "big", "d/empty", "d/run"]
    assert [item.reason for item in report.skipped] == ["a link"]
    assert (report.target, report.is_complete) == (kind, True)


@both
async def test_an_empty_workspace_is_an_empty_archive(sandbox: FakeSandbox, kind: Format) -> None:
    data, report = await archived(sandbox, kind)
    assert members(kind, data) == {}
    assert report.files == ()


@both
async def test_other_programs_can_unpack_it(
    sandbox: FakeSandbox, kind: Format, tmp_path: Path
) -> None:
    await sandbox.write_file("d/a b", "hello")
    await sandbox.write_file("big", "x" * (2 * MIB))
    data, _ = await archived(sandbox, kind)
    (tmp_path / "archive").write_bytes(data)
    out = tmp_path / "out"
    out.mkdir()
    if kind == "tar":
        subprocess.run(["tar", "-xf", tmp_path / "archive", "-C", out], check=True, timeout=50)
    else:
        with zipfile.ZipFile(tmp_path / "archive") as zipped:
            zipped.extractall(out)
    assert (out / "d" / "a b").read_text() == "hello"
    assert (out / "big").stat().st_size == 2 * MIB


NAMES = st.binary(min_size=1, max_size=120).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)


@settings(deadline=None)
@given(
    st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map(b"/".join), st.binary(max_size=9))
)
def test_any_name_comes_out_and_none_leads_out(tree: dict[bytes, bytes]) -> None:
    async def work() -> dict[bytes, bytes]:
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            assert isinstance(sandbox, FakeSandbox)
            there = {}
            for path, data in tree.items():
                try:
                    await sandbox.write_file(path, data)
                except SandboxError:
                    continue  # below a name that is a file
                there[path] = data
            tar, _ = await archived(sandbox, "tar")
            found = {os.fsencode(name): data for name, (data, _) in members("tar", tar).items()}
            assert found == there
            zipped, _ = await archived(sandbox, "zip")
            plain = " !#$&'()+;[]^`{}~"
            found = {}
            for name, (data, _) in members("zip", zipped).items():
                parts = name.split("/")
                assert not {"..", ".", ""} & set(parts)
                assert not set(name) & set('\\:*?"<>|\r\n')
                found[b"/".join(unescape_name(part, plain=plain) for part in parts)] = data
            assert found == there
            return there

    anyio.run(work)


@both
async def test_dates_that_no_format_has_are_brought_near(
    sandbox: FakeSandbox, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    dates = (-(2.0**62), -1.0, 0.0, 1e9, 2.0**33, 2.0**62)

    async def listed(path: bytes, most: int) -> tuple[list[FileInfo], int]:
        found = [
            FileInfo(f"{number}", FileKind.FILE, 1, 0o644, date)
            for number, date in enumerate(dates)
        ]
        return found, len(found)

    async def read(path: bytes, offset: int, most: int) -> tuple[bytes, int]:
        return b"x"[offset:], 1

    monkeypatch.setattr(sandbox, "_list_files", listed)
    monkeypatch.setattr(sandbox, "_read_file", read)
    data, _ = await archived(sandbox, kind)
    assert len(members(kind, data)) == len(dates)


@both
async def test_a_file_of_another_size_than_its_entry_says_breaks_nothing(
    sandbox: FakeSandbox, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a member whose header promises what its data does not keep."""
    sizes = {"grown": (1, 5000), "shrunk": (5000, 1), "gone": (5, -1), "over": (1, 20_000)}

    async def listed(path: bytes, most: int) -> tuple[list[FileInfo], int]:
        found = [
            FileInfo(name, FileKind.FILE, told, 0o644, 1e9) for name, (told, _) in sizes.items()
        ]
        return found, len(found)

    async def read(path: bytes, offset: int, most: int) -> tuple[bytes, int]:
        size = sizes[path.decode()][1]
        if size < 0:
            raise SandboxError("can't be read")
        return b"x" * max(0, min(most, size - offset)), size

    monkeypatch.setattr(sandbox, "_list_files", listed)
    monkeypatch.setattr(sandbox, "_read_file", read)
    data, report = await archived(sandbox, kind, ExportLimits(file_bytes=10_000))
    assert {name: len(content) for name, (content, _) in members(kind, data).items()} == {
        "grown": 5000,
        "shrunk": 1,
    }
    assert {item.path: item.reason for item in report.skipped} == {
        "gone": "can't be read",
        "over": "too large",
    }


@both
async def test_a_sandbox_that_dies_is_an_error_and_no_short_archive(
    sandbox: FakeSandbox, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sandbox.write_file("a", "x")
    await sandbox.write_file("b", "x")
    real = sandbox._read_file

    async def dying(path: bytes, offset: int, most: int) -> tuple[bytes, int]:
        if path == b"b":
            sandbox.lose("killed")
        return await real(path, offset, most)

    monkeypatch.setattr(sandbox, "_read_file", dying)
    archive = archive_workspace(sandbox, kind)
    with pytest.raises(SandboxLostError):
        [part async for part in archive]
    with pytest.raises(RuntimeError, match="not complete"):
        archive.report  # noqa: B018  # the access is the test


@both
async def test_it_may_be_left_in_the_middle(sandbox: FakeSandbox, kind: Format) -> None:
    await sandbox.write_file("big", os.urandom(3 * MIB))
    archive = archive_workspace(sandbox, kind)
    async with aclosing(aiter(archive)) as parts:
        await anext(parts)
    with pytest.raises(RuntimeError, match="not complete"):
        archive.report  # noqa: B018  # the access is the test


@both
async def test_a_store_takes_it_as_it_is(
    sandbox: FakeSandbox, kind: Format, tmp_path: Path
) -> None:
    await sandbox.write_file("a", "x" * (2 * MIB))
    store = LocalStore(tmp_path)
    archive = archive_workspace(sandbox, kind)
    stored = await store.put("acme/run/all", archive)
    data = await store.read("acme/run/all", max_bytes=10 * MIB)
    assert stored.size == len(data)
    assert list(members(kind, data)) == ["a"]
    assert len(archive.report.files) == 1


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tar or zip"):
        archive_workspace(None, "rar")  # type: ignore[arg-type]
