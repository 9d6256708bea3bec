"""What can't be built is refused by a typed error that says what to do, and leaves nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import pytest

from ringfence.config import ContainerConfig
from ringfence.errors import (
    BackendUnavailableError,
    BackendUnreachableError,
    ConfigError,
    ImageError,
    MissingDependencyError,
)
from ringfence.image import build_image, debian, list_images
from ringfence.image.scratch import scratch

from ..machine import processes_with, until

pytestmark = pytest.mark.anyio

linux_root = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="mmdebstrap is run by root on Linux"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"way": "kaniko"}, "auto, debian, dockerfile"),
        ({"tag": "Upper:latest"}, "lower case"),
        ({"tag": "a b"}, "lower case"),
        ({"tag": ""}, "lower case"),
        ({"tag": "a\nb"}, "lower case"),
        ({"tag": "a" * 300}, "lower case"),
        ({"base": "--privileged"}, "lower case"),
        ({"timeout": 0}, "between 0 and"),
        ({"timeout": float("nan")}, "between 0 and"),
    ],
)
async def test_what_can_not_be_right_is_refused_before_an_engine_is_asked(
    settings: dict[str, object], said: str
) -> None:
    nowhere = ContainerConfig(host="unix:///nowhere.sock")
    with pytest.raises(ConfigError, match=said):
        await build_image(**{"engine": nowhere, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("tag", ["a", "a/b:c", "reg.example:5000/a/b", "a__b-c.d:Tag_1.x"])
async def test_names_that_engines_take_are_taken(tag: str, tmp_path: Path) -> None:
    with pytest.raises(BackendUnreachableError):
        await build_image(tag=tag, engine=ContainerConfig(socket_path=tmp_path / "none.sock"))


async def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    socket = tmp_path / "none.sock"
    with pytest.raises(BackendUnreachableError, match=r"none\.sock"):
        await list_images(engine=ContainerConfig(socket_path=socket))


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiodocker", None)
    for name in [name for name in sys.modules if name.startswith("ringfence.backends._docker")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingDependencyError, match=r"ringfence\[container\]"):
        await list_images()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is refused for that")
def test_of_packages_only_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BackendUnavailableError, match=r"needs root.*--way dockerfile"):
        debian.check()


def test_of_packages_only_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(BackendUnavailableError, match="on Linux only"):
        debian.check()


@linux_root
def test_of_packages_only_with_the_program_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="apt-get install mmdebstrap"):
        debian.check()


def stand_in(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script where mmdebstrap is looked for first."""
    program = directory / "mmdebstrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def left() -> set[Path]:
    places = (Path("/dev/shm"), Path(tempfile.gettempdir()))
    return {path for place in places for path in place.glob("ringfence-image-*")}


@linux_root
async def test_what_was_said_last_is_in_the_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = left()
    stand_in(tmp_path, monkeypatch, "echo I: one; echo E: no such package >&2; exit 25")
    heard: list[str] = []
    with pytest.raises(ImageError, match=r"exit code 25:\n(.*\n)?E: no such package"):
        await debian.bootstrap(tmp_path / "out.tar", with_data=False, on_line=heard.append)
    assert heard == ["I: one", "E: no such package"]
    assert left() <= before


KILLED = """
import anyio, os, sys
from pathlib import Path
from ringfence.image import debian
from ringfence.image.scratch import scratch
async def main():
    with scratch(in_memory=False) as place:
        await debian.bootstrap(place / "out.tar", with_data=False, on_line=lambda line: None)
anyio.run(main)
"""


@linux_root
async def test_if_the_builder_is_killed_all_ends_and_the_next_one_clears_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = f"86397.{os.getpid()}"
    stand_in(tmp_path, monkeypatch, f"setsid sleep {mark} & sleep {mark}")
    before = left()
    same = {**os.environ, "TMPDIR": tempfile.gettempdir()}  # which Python looks up once
    with subprocess.Popen([sys.executable, "-c", KILLED], env=same) as process:
        await until(lambda: len(processes_with(mark)) >= 2, what="the stand-in to run")
        process.kill()
    await until(lambda: not processes_with(mark), what="it to be gone")
    assert len(left() - before) == 2
    strange = Path(tempfile.gettempdir(), f"ringfence-image-{process.pid}x-kept")
    strange.mkdir()
    try:
        for in_memory in (True, False):
            with scratch(in_memory=in_memory) as place, scratch(in_memory=in_memory) as other:
                assert place.is_dir(), "what a live process made is not abandoned"
                assert other.is_dir()
        assert left() - before == {strange}
    finally:
        strange.rmdir()


@linux_root
async def test_cancelling_ends_all_that_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A dpkg that went on would write into a directory that is being removed."""
    before = left()
    mark = f"86399.{os.getpid()}"
    stand_in(tmp_path, monkeypatch, f"setsid sleep {mark} & mount -t tmpfs x $TMPDIR; sleep {mark}")
    async with anyio.create_task_group() as tasks:

        async def build() -> None:
            await debian.bootstrap(tmp_path / "out.tar", with_data=False, on_line=lambda line: None)

        tasks.start_soon(build)
        await until(lambda: len(processes_with(mark)) >= 2, what="the stand-in to run")
        tasks.cancel_scope.cancel()
    await until(lambda: not processes_with(mark), what="it to be gone")
    assert left() <= before
