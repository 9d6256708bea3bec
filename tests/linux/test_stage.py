"""What the process that holds a jail can still reach of the host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.processes import sandbox_pids
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.models import Mount, SandboxSpec

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has a stage"),
]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of the host's, with another one in it."""
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    outer.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", outer], check=True)
    try:
        inner.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", inner], check=True)
        (inner / "told").write_text("seen")
        yield outer
    finally:
        subprocess.run(["umount", "-R", outer], check=True)


def mount_points(pid: int) -> set[str]:
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return {line.split()[4] for line in lines}


async def test_the_hosts_mounts_are_let_go_of(mounted: Path) -> None:
    """Each jail would copy them, and bwrap reads all of them again for each of its own."""
    assert str(mounted) in mount_points(os.getpid())
    async with BubblewrapBackend() as backend, await backend.create() as sandbox:
        assert (await sandbox.exec("true")).ok
        outer, *_ = sandbox_pids(sandbox.id)
        assert b"bwrap" in Path(f"/proc/{outer}/cmdline").read_bytes()
        kept = mount_points(outer)
        assert "/workspace" in kept
        assert not {path for path in kept if path.startswith("/sys") or "outer" in path}


async def test_what_is_mounted_below_a_shown_directory_is_shown(mounted: Path) -> None:
    spec = SandboxSpec(mounts=(Mount(str(mounted), "/shown"),))
    async with BubblewrapBackend() as backend, await backend.create(spec) as sandbox:
        assert (await sandbox.exec("cat", ["/shown/inner/told"])).stdout == b"seen"


async def test_a_hundred_mounts_are_shown(tmp_path: Path) -> None:
    mounts = []
    for number in range(100):
        (tmp_path / str(number)).mkdir()
        mounts.append(Mount(str(tmp_path / str(number)), f"/shown/{number}"))
    async with (
        BubblewrapBackend() as backend,
        await backend.create(SandboxSpec(mounts=tuple(mounts))) as sandbox,
    ):
        shown = (await sandbox.exec("ls", ["/shown"])).stdout.split()
    assert len(shown) == 100
