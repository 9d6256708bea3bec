"""What the tests of the warden run in, and the wardens that they are about."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ringfence.warden.binary import warden_path

from ..second_net import second_net
from .wire import RawWarden

__all__ = ("second_net",)

SOURCES = Path(__file__).parents[2] / "native" / "warden"
REPORTS = Path(__file__).with_name("reports.c")
SANITIZE = (
    *("-std=gnu11", "-O1", "-g", "-DWARDEN_HOSTED", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
)


class Build:
    """A warden's binary, and where it reports what a sanitizer finds."""

    def __init__(self, path: Path, reports: Path | None) -> None:
        self.path = path
        self.reports = reports

    def found(self) -> str:
        """Return what the sanitizers have said so far."""
        if self.reports is None:
            return ""
        return "\n".join(path.read_text() for path in self.reports.iterdir())


def sanitized(sources: Iterable[Path], target: Path, reports: Path) -> None:
    """Build a program with the sanitizers, so that it reports into a directory."""
    call = [*os.environ.get("CC", "cc").split(), *SANITIZE, f'-DREPORTS="{reports}"']
    subprocess.run([*call, "-o", str(target), *map(str, sources), str(REPORTS)], check=True)


@pytest.fixture(scope="session")
def sanitized_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    scratch = tmp_path_factory.mktemp("sanitized")
    reports = tmp_path_factory.mktemp("reports")
    sanitized(sorted(SOURCES.glob("*.c")), scratch / "warden", reports)
    return Build(scratch / "warden", reports)


@pytest.fixture(params=["release", pytest.param("sanitized", marks=pytest.mark.sanitizer)])
def build(request: pytest.FixtureRequest) -> Iterator[Build]:
    """The warden as it is shipped, and as the sanitizers watch it."""
    if request.param == "sanitized":
        found: Build = request.getfixturevalue("sanitized_build")
    else:
        path = warden_path()
        assert path is not None, "the warden is not built: make warden"
        found = Build(path, None)
    before = found.found()
    yield found
    assert found.found() == before


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "workspace"
    directory.mkdir()
    return directory


@pytest.fixture
def warden(build: Build, workspace: Path) -> Iterator[RawWarden]:
    """A warden that has said hello."""
    with RawWarden(str(build.path), workspace) as raw:
        raw.expect(0x81, 0)
        yield raw
    assert raw.process.returncode == 0
