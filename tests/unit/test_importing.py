"""Many files come in with one call, each whole or the call says which is not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from ringfence import FakeBackend, NoSpaceError, SandboxLostError, export_workspace
from ringfence.backends.fake import FakeSandbox
from ringfence.config import FakeConfig
from ringfence.errors import (
    ConfigError,
    FileMissingError,
    LimitError,
    ObjectMissingError,
    PathError,
    StoreError,
    WorkspaceError,
)
from ringfence.importing import ImportLimits, import_files
from ringfence.incoming import Incoming, directory_files, stored_files
from ringfence.storage import open_store

pytestmark = pytest.mark.anyio

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


def there(sandbox: FakeSandbox) -> dict[bytes, bytes]:
    """Return the content of every file in the workspace."""
    return {
        b"/".join(parts): bytes(node.data)
        for parts, node in sandbox._files._nodes.items()
        if node.kind == "file"
    }


async def streamed(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        await anyio.lowlevel.checkpoint()
        yield part


async def test_contents_by_path(sandbox: FakeSandbox) -> None:
    files: dict[str, bytes | str] = {"b/c": "text", "a": b"\0\xff", "empty": b""}
    report = await import_files(sandbox, files, into="in")
    assert there(sandbox) == {b"in/a": b"\0\xff", b"in/b/c": b"text", b"in/empty": b""}
    assert report.paths == ("in/a", "in/b/c", "in/empty")
    assert report.total_bytes == 6


async def test_streamed_content_in_parts_and_modes(sandbox: FakeSandbox) -> None:
    data = [os.urandom(MIB // 2), os.urandom(3 * MIB), b"", os.urandom(5)]
    files = [
        Incoming("big", streamed(*data), mode=0o755),
        Incoming(b"bad\xff", streamed(), size=0),
        Incoming("/workspace/x", b"y" * (2 * MIB + 1), sha256=""),
    ]
    report = await import_files(sandbox, files)
    assert there(sandbox) == {
        b"big": b"".join(data),
        b"bad\xff": b"",
        b"x": b"y" * (2 * MIB + 1),
    }
    assert (await sandbox.stat("big")).mode == 0o755
    assert report.paths == (os.fsdecode(b"bad\xff"), "big", "x")


async def test_an_existing_file_is_replaced_and_not_added_to(sandbox: FakeSandbox) -> None:
    await sandbox.write_file("a", "x" * 100)
    await import_files(sandbox, [Incoming("a", streamed(b"new", b"er"))])
    assert there(sandbox) == {b"a": b"newer"}


async def test_a_directory_of_this_machine(sandbox: FakeSandbox, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run").write_text("#!")
    (tmp_path / "d" / "run").chmod(0o700)
    (tmp_path / "big").write_bytes(b"x" * (2 * MIB + 3))
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("/")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / os.fsdecode(b"bad\xff")).write_text("x")
    await import_files(sandbox, tmp_path)
    assert there(sandbox) == {b"d/run": b"#!", b"big": b"x" * (2 * MIB + 3), b"bad\xff": b"x"}
    assert (await sandbox.stat("d/run")).mode == 0o755
    with pytest.raises(ConfigError, match="no directory to import from"):
        await import_files(sandbox, tmp_path / "missing")


async def test_a_file_that_becomes_a_link_meanwhile_is_not_followed(
    sandbox: FakeSandbox, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"large" * 60_000)
    (tmp_path / "secret").write_text("secret")
    files = list(directory_files(tmp_path / "in"))
    (tmp_path / "in" / "a").unlink()
    (tmp_path / "in" / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(PathError):
        await import_files(sandbox, files)
    assert there(sandbox) == {}


async def test_an_export_comes_back_from_its_store(sandbox: FakeSandbox) -> None:
    store = open_store("memory:")
    await sandbox.write_file(b"d/bad\xff\n", os.urandom(MIB + 1))
    await sandbox.write_file("run", "#!", mode=0o700)
    before = there(sandbox)
    await export_workspace(sandbox, store, prefix="acme/run")
    async with FakeBackend() as backend:
        other = await backend.create()
        assert isinstance(other, FakeSandbox)
        await import_files(other, stored_files(store, "acme/run"))
        assert there(other) == before
        assert (await other.stat("run")).mode == 0o755
        await store.put("acme/run/files/run", b"!#")  # of the same size
        with pytest.raises(WorkspaceError, match="another SHA-256"):
            await import_files(other, stored_files(store, "acme/run"))
        await store.delete("acme/run/files/run")
        with pytest.raises(ObjectMissingError):
            await import_files(other, stored_files(store, "acme/run"))
        with pytest.raises(ObjectMissingError):
            await import_files(other, stored_files(store, "acme/other"))


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "/workspace2/x"])
async def test_a_path_that_leads_out_is_refused(sandbox: FakeSandbox, path: str) -> None:
    for into in (".", "in"):
        with pytest.raises(PathError):
            await import_files(sandbox, {path: b"x"}, into=into)
    with pytest.raises(PathError):
        await import_files(sandbox, {"a": b"x"}, into=path)
    assert there(sandbox) == {}


@pytest.mark.parametrize("path", [".", "/workspace"])
async def test_the_workspace_itself_is_no_file(sandbox: FakeSandbox, path: str) -> None:
    with pytest.raises(WorkspaceError):
        await import_files(sandbox, {path: b"x"})


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (ImportLimits(file_bytes=9), "file_bytes"),
        (ImportLimits(total_bytes=29), "total_bytes"),
        (ImportLimits(entries=2), "entries"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_is_over_a_limit_is_refused_by_its_name(
    sandbox: FakeSandbox, limits: ImportLimits, name: str, is_streamed: bool
) -> None:
    def files() -> Iterator[Incoming]:
        for number in range(3):
            yield Incoming(f"{number}", streamed(b"x" * 5, b"y" * 5) if is_streamed else b"x" * 10)

    with pytest.raises(LimitError) as caught:
        await import_files(sandbox, files(), limits=limits)
    assert caught.value.limit == name
    assert all(len(data) == 10 for data in there(sandbox).values())  # no half of a file
    await import_files(
        sandbox, files(), limits=ImportLimits(file_bytes=10, total_bytes=30, entries=3)
    )
    assert len(there(sandbox)) == 3


@pytest.mark.parametrize(
    ("declared", "match"),
    [
        ({"size": 3}, "came to 4 bytes and not to 3"),
        ({"size": 5}, "came to 4 bytes and not to 5"),
        ({"sha256": "0" * 64}, "another SHA-256"),
    ],
)
async def test_what_comes_to_something_else_is_refused_and_removed(
    sandbox: FakeSandbox, declared: dict[str, Any], match: str
) -> None:
    with pytest.raises(WorkspaceError, match=match):
        await import_files(sandbox, [Incoming("a", streamed(b"ab", b"cd"), **declared)])
    assert there(sandbox) == {}
    good = hashlib.sha256(b"abcd").hexdigest()
    await import_files(sandbox, [Incoming("a", streamed(b"ab", b"cd"), size=4, sha256=good)])
    assert there(sandbox) == {b"a": b"abcd"}


async def test_what_a_program_in_the_sandbox_changes_meanwhile_is_noticed(
    sandbox: FakeSandbox,
) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b"1234"
        await sandbox.write_file("a", "")
        yield b"56"

    with pytest.raises(WorkspaceError, match="has 2 bytes in the workspace, not 6"):
        await import_files(sandbox, [Incoming("a", content())])
    assert there(sandbox) == {}


async def test_a_source_that_fails_leaves_no_half_file(sandbox: FakeSandbox) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise StoreError("the store failed")

    with pytest.raises(StoreError, match="the store failed"):
        await import_files(sandbox, [Incoming("a", broken())])

    def failing() -> Iterator[Incoming]:
        yield Incoming("b", b"whole")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await import_files(sandbox, failing())
    assert set(there(sandbox)) <= {b"b"}
    for wrong in ([("a", b"x")], [b"x"]):
        with pytest.raises(ConfigError, match="Incoming, not"):
            await import_files(sandbox, wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at_once"):
        await import_files(sandbox, {}, at_once=0)


async def test_a_full_workspace_is_its_own_error() -> None:
    async with FakeBackend(FakeConfig(workspace_bytes=100)) as backend:
        made = await backend.create()
        assert isinstance(made, FakeSandbox)
        with pytest.raises(NoSpaceError):
            await import_files(made, [Incoming("a", streamed(b"x" * 80, b"y" * 80))])
        assert there(made) == {}


async def test_cancelled_it_leaves_no_half_file(sandbox: FakeSandbox) -> None:
    async def hanging() -> AsyncIterator[bytes]:
        yield b"half"
        await anyio.sleep_forever()

    with anyio.move_on_after(0.1) as scope:
        await import_files(sandbox, [Incoming("a", hanging())])
    assert scope.cancelled_caught
    assert there(sandbox) == {}
    with pytest.raises(FileMissingError):
        await sandbox.stat("a")


async def test_a_sandbox_that_dies_is_said_so(
    sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dying() -> AsyncIterator[bytes]:
        yield b"half"
        sandbox.lose("killed")
        yield b"more"

    with pytest.raises(SandboxLostError):
        await import_files(sandbox, [Incoming("a", dying())])
