"""The wheel that a user installs, built through the sdist as a release is."""

from __future__ import annotations

import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.check_wheel import BINARIES, faults

PROJECT = Path(__file__).parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*argv: str | Path) -> str:
    done = subprocess.run(
        argv, cwd=PROJECT, capture_output=True, text=True, timeout=590, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", directory)
    (made,) = directory.glob("*.whl")
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="the warden is for Linux")
def test_it_holds_the_warden_of_this_machine_and_no_other(wheel: Path) -> None:
    assert faults(wheel, [platform.machine()]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the warden is for Linux")
def test_the_warden_can_be_executed_once_installed(wheel: Path, tmp_path: Path) -> None:
    """Catches a wheel, or an installer, that drops the executable bit."""
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path, wheel)
    assert (tmp_path / BINARIES / f"warden-{platform.machine()}").stat().st_mode & 0o555 == 0o555


def test_it_holds_the_package_and_the_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"ringfence"}
    assert [name for name in names if name.endswith("/licenses/LICENSE")]
    assert [name for name in names if "__pycache__" in name] == []


def test_it_holds_every_file_of_the_package_that_is_no_code(wheel: Path) -> None:
    """Catches what the sdist leaves out because a link leads to it as well."""
    package = PROJECT / "src" / "ringfence"
    wanted = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file()
        and path.suffix not in (".py", ".pyc")
        and "bin" not in path.relative_to(package).parts
    }
    assert "ringfence/image/context/Dockerfile" in wanted
    with zipfile.ZipFile(wheel) as archive:
        assert wanted - set(archive.namelist()) == set()
