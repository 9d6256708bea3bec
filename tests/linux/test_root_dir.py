"""A root file system of one's own instead of the host's."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ringfence import BubblewrapConfig, ConfigError, Mount, SandboxSpec, shell
from ringfence.backends.bubblewrap import BubblewrapBackend

pytestmark = pytest.mark.anyio

PROGRAMS = ("sh", "cat", "ls", "id")


@pytest.fixture
def root_dir(tmp_path: Path) -> Path:
    """Make the smallest root file system with a shell, of the host's own programs."""
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc/motd").write_text("a system of its own\n")
    (root / "bin").symlink_to("usr/bin")
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        shutil.copy(program, root / "usr/bin" / name)
        needs = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        for library in re.findall(r"(/\S+)", needs.stdout):
            target = root / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    (root / "usr").chmod(0o755)
    tmp_path.chmod(0o700)  # a private uid can't come by here on its own
    return root


async def test_programs_and_etc_are_those_of_the_given_root(root_dir: Path) -> None:
    async with BubblewrapBackend(BubblewrapConfig(root_dir=root_dir)) as backend:
        result = await backend.execute(shell("cat /etc/motd; ls /usr/bin; id -u; ls /home"))
    assert result.stdout_text.split("\n")[0] == "a system of its own"
    assert result.stdout_text.split()[5:] == ["cat", "id", "ls", "sh", "65534"]
    assert "/home" in result.stderr_text


async def test_the_given_root_is_read_only_and_the_workspace_is_not(root_dir: Path) -> None:
    async with BubblewrapBackend(BubblewrapConfig(root_dir=root_dir)) as backend:
        script = "echo x >/etc/motd; echo y >/usr/bin/new; echo z >/new; echo w >w && cat w"
        result = await backend.execute(shell(script))
    assert result.stdout == b"w\n"
    assert result.stderr_text.count("Read-only file system") == 3
    assert (root_dir / "etc/motd").read_text() == "a system of its own\n"


async def test_a_given_root_may_have_a_var_tmp_and_need_not(root_dir: Path) -> None:
    script = shell("echo x 2>&- >/var/tmp/x && cat /var/tmp/x; ls /var")
    said = []
    for part in ("etc", "var", "var/tmp"):
        (root_dir / part).mkdir(mode=0o755, exist_ok=True)
        async with BubblewrapBackend(BubblewrapConfig(root_dir=root_dir)) as backend:
            said.append((await backend.execute(script)).stdout_text.split())
    assert said == [["x", "tmp"], [], ["x", "tmp"]]


async def test_a_directory_that_is_no_root_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a root file system"):
        async with BubblewrapBackend(BubblewrapConfig(root_dir=tmp_path)):
            pass


async def test_mounts_are_shown_read_only_whatever_lies_above_them(tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "file").write_text("from the host\n")
    tmp_path.chmod(0o700)
    spec = SandboxSpec(mounts=(Mount(str(shown), "/opt/shown"), Mount(str(shown / "file"), "/f")))
    async with BubblewrapBackend() as backend:
        result = await backend.execute(
            shell("cat /opt/shown/file /f; echo x >/opt/shown/file; echo x >/f"), spec=spec
        )
    assert result.stdout == b"from the host\nfrom the host\n"
    assert result.stderr_text.count("Read-only file system") == 2


async def test_a_mount_that_does_not_exist_is_refused_before_anything_starts() -> None:
    async with BubblewrapBackend() as backend:
        with pytest.raises(ConfigError, match="'/nowhere' does not exist"):
            await backend.create(SandboxSpec(mounts=(Mount("/nowhere"),)))
