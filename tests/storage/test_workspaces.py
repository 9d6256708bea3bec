"""Real workspaces, hostile and huge ones too, into real stores."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from ringfence import (
    Limits,
    Sandbox,
    SandboxSpec,
    archive_workspace,
    export_workspace,
    import_files,
    open_backend,
    read_manifest,
    stored_files,
)
from ringfence.export import ExportLimits, ExportReport
from ringfence.storage import ArtifactStore, LocalStore

from ..machine import forget_peak, status_bytes
from .contract import whole

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20
MOST_GROWTH = 64 * MIB
SPEC = SandboxSpec(
    limits=Limits(workspace_bytes=1 << 30, workspace_files=300_000, memory_bytes=3 << 30)
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["bubblewrap", "process", "container"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    image = {"backend": "container", "image": "ringfence-test:python"}
    async with (
        open_backend(image if request.param == "container" else request.param) as backend,
        await backend.create(SPEC if request.param == "bubblewrap" else None) as made,
    ):
        yield made


@pytest.fixture
async def jail() -> AsyncIterator[Sandbox]:
    async with open_backend("bubblewrap") as backend, await backend.create(SPEC) as made:
        yield made


async def run(sandbox: Sandbox, script: str) -> None:
    result = await sandbox.exec("python3", ["-c", script], timeout=120)
    assert result.ok, result.stderr_text


def reasons(report: ExportReport) -> dict[str, str]:
    return {item.path: item.reason for item in report.skipped}


HOSTILE = r"""
import os, socket
os.chdir(os.environ.get("WORKSPACE", "."))
open("a", "w").write("hello")
os.link("a", "b")
os.symlink("/etc/passwd", "shadow")
os.symlink(os.path.abspath("a"), "abs")
os.symlink("loop", "loop")
os.symlink("nowhere", "dangling")
os.symlink("/", "root")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
os.mkdir("empty")
os.mkdir("closed"); open("closed/inner", "w").write("x"); os.chmod("closed", 0)
for name in (b"--", b"l\nb", b"bad\xff", b" lead", b"trail ", b"t\tab", b"a\\b", b"%2F", b"..x"):
    open(name, "wb").write(name)
open("zero", "w")
os.chmod("zero", 0)
"""


@pytest.mark.parametrize("to", ["store", "directory", "tar"])
async def test_a_hostile_workspace_comes_out_whole_and_says_what_did_not(
    sandbox: Sandbox, tmp_path: Path, to: str
) -> None:
    await run(sandbox, HOSTILE)
    with anyio.fail_after(60):
        if to == "tar":
            archive = archive_workspace(sandbox)
            data = b"".join([part async for part in archive])
            report = archive.report
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                assert all(member.isreg() for member in tar)
        elif to == "store":
            store = LocalStore(tmp_path)
            report = await export_workspace(sandbox, store, prefix="t/e")
            for file in report.files:
                found = await whole(store, file.key)
                assert hashlib.sha256(found).hexdigest() == file.sha256
        else:
            report = await export_workspace(sandbox, tmp_path)
    files = {os.fsencode(file.path): file.size for file in report.files}
    odd = (b"--", b"l\nb", b"bad\xff", b" lead", b"trail ", b"t\tab", b"a\\b", b"%2F", b"..x")
    wanted = {b"a": 5, b"b": 5} | {name: len(name) for name in odd}
    as_root = os.geteuid() == 0 and sandbox.backend == "process"
    if as_root:  # nothing is closed to root
        wanted |= {b"closed/inner": 1, b"zero": 0}
    assert files == wanted
    told = reasons(report)
    for name in ("shadow", "abs", "loop", "dangling", "root"):
        assert told.pop(name) == "a link"
    assert (told.pop("fifo"), told.pop("socket")) == ("a FIFO", "a socket")
    assert set(told) == (set() if as_root else {"closed", "zero"})
    assert report.is_complete


async def test_the_size_limit_is_kept_to_the_byte_and_for_sparse_files(
    jail: Sandbox, tmp_path: Path
) -> None:
    await run(
        jail,
        "for name, size in (('exact', 52428800), ('more', 52428801), ('sparse', 62914560),"
        " ('small', 1024)):\n open(name, 'wb').truncate(size)",
    )
    store = LocalStore(tmp_path)
    report = await export_workspace(jail, store, prefix="t/e")
    assert {file.path: file.size for file in report.files} == {"exact": 52_428_800, "small": 1024}
    assert reasons(report) == {"more": "too large", "sparse": "too large"}
    assert (await store.head("t/e/files/exact")).size == 52_428_800


async def test_files_that_are_written_meanwhile_are_each_whole_or_left_out(
    jail: Sandbox, tmp_path: Path
) -> None:
    """Truncated, grown, removed and made again as fast as a program can."""
    script = (
        "import os\n"
        "n = 0\n"
        "while True:\n"
        " n += 1\n"
        " open('log', 'ab').write(b'x' * 4096)\n"
        " if os.path.getsize('log') > 6 << 20: os.truncate('log', 0)\n"
        " open('new', 'wb').write(b'y' * (n % 9000))\n"
        " os.replace('new', f'file{n % 50}')\n"
        " if os.path.exists(f'file{n % 7}'): os.remove(f'file{n % 7}')\n"
    )
    await run(jail, "open('steady', 'w').write('steady')")
    async with anyio.create_task_group() as group:
        group.start_soon(jail.exec, "python3", ["-c", script])
        for number in range(10):
            store = LocalStore(tmp_path / f"{number}")
            report = await export_workspace(jail, store, prefix="t/e")
            assert "steady" in [file.path for file in report.files]
            assert set(reasons(report).values()) <= {"does not exist", "shrank while it was read"}
            for file in report.files:
                data = await whole(store, file.key)
                assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)
                assert set(data) <= set(b"xysteady")
        group.cancel_scope.cancel()


async def test_a_hundred_thousand_entries_are_bounded_and_all_can_be_had(
    jail: Sandbox, tmp_path: Path
) -> None:
    await run(
        jail,
        "import os\n"
        "for d in range(100):\n"
        " os.mkdir(f'{d:02}')\n"
        " for f in range(1000): os.symlink('x', f'{d:02}/{f:03}')\n"
        "open('zz', 'w').write('last')",
    )
    forget_peak()
    before = status_bytes("VmRSS")
    report = await export_workspace(jail, tmp_path / "few")
    assert not report.is_complete
    assert len(report.skipped) == 1000
    assert report.skipped_count <= 10_000
    report = await export_workspace(jail, tmp_path / "all", ExportLimits(entries=200_000))
    assert report.is_complete
    assert [file.path for file in report.files] == ["zz"]
    assert report.skipped_count == 100_000
    assert status_bytes("VmHWM") - before < MOST_GROWTH


async def test_a_tree_deeper_than_any_path_ends(jail: Sandbox, tmp_path: Path) -> None:
    await run(
        jail,
        "import os\n"
        "for _ in range(1500):\n"
        " os.mkdir('deeper'); os.chdir('deeper')\n"
        " open('file', 'w').write('x')",
    )
    store = LocalStore(tmp_path)
    with anyio.fail_after(120):
        report = await export_workspace(jail, store, prefix="t/e")
    assert 100 < len(report.files) < 1500
    assert any("longer than 1024 bytes" in reason for reason in reasons(report).values())
    assert all([await whole(store, file.key) == b"x" for file in report.files])


@pytest.mark.parametrize("to", ["local", "s3", "tar"])
async def test_a_large_workspace_costs_this_process_no_memory(
    jail: Sandbox, tmp_path: Path, s3_store: ArtifactStore, to: str
) -> None:
    """Several hundred MB: big files several at once, and many small ones."""
    await run(
        jail,
        "import os\n"
        "block = os.urandom(1 << 20)\n"
        "for n in range(8):\n"
        " with open(f'big{n}', 'wb') as f:\n"
        "  for _ in range(50): f.write(block)\n"
        "for n in range(500): open(f'small{n}', 'wb').write(block[:100_000])\n",
    )
    store = s3_store if to == "s3" else LocalStore(tmp_path)
    await store.put("warm", b"x" * MIB)
    forget_peak()
    before = status_bytes("VmRSS")
    if to == "tar":
        archive = archive_workspace(jail)
        size = 0
        async for part in archive:
            size += len(part)
        report = archive.report
        assert size > 400 * MIB
    else:
        report = await export_workspace(jail, store, prefix="t/e")
    assert (len(report.files), report.skipped_count) == (508, 0)
    assert report.total_bytes == 8 * 50 * MIB + 500 * 100_000
    assert status_bytes("VmHWM") - before < MOST_GROWTH


async def test_a_workspace_goes_from_one_sandbox_to_another_by_way_of_s3(
    s3_store: ArtifactStore,
) -> None:
    async with open_backend("bubblewrap") as backend:
        async with await backend.create(SPEC) as first:
            await run(
                first,
                "import os\n"
                "for n in range(100): open(f'f{n}', 'wb').write(os.urandom(n * 1000))\n"
                "open(b'bad\\xff', 'w').write('x'); open('big', 'wb').write(os.urandom(12 << 20))",
            )
            report = await export_workspace(first, s3_store, prefix="acme/one")
        async with await backend.create(SPEC) as second:
            brought = await import_files(second, stored_files(s3_store, "acme/one"))
            assert len(brought.paths) == 102
            again = await export_workspace(second, s3_store, prefix="acme/two")
    assert [(file.path, file.sha256) for file in again.files] == [
        (file.path, file.sha256) for file in report.files
    ]
    assert (await read_manifest(s3_store, "acme/two")).total_bytes == report.total_bytes
