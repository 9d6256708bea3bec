"""A warden for one command, beside another PID 1: it outlives its stream with what is left."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..machine import SOON, new_mark, processes_with, until_gone
from . import wire
from .conftest import Build
from .wire import RawWarden

MARK = new_mark()


@pytest.fixture
def once(build: Build, workspace: Path) -> Iterator[RawWarden]:
    with RawWarden(str(build.path), workspace, "--once") as raw:
        raw.expect(wire.HELLO, 0)
        yield raw


def sh(script: str) -> list[bytes]:
    return [b"/bin/sh", b"-c", script.encode()]


def until_written(path: Path, text: str) -> None:
    deadline = time.monotonic() + SOON
    while not path.exists() or path.read_text() != text:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_command_left_lives_on_and_is_drained(once: RawWarden, workspace: Path) -> None:
    """Catches a server that dies with the stream, or hangs on a pipe that nobody reads."""
    os.mkfifo(workspace / "go")
    script = "(cat go; yes | head -c 400000; echo $? >done; cat go) & exit 3"
    end = once.run(1, sh(script))
    assert (end.outcome, end.value) == (wire.EXITED, 3)
    once.socket.close()
    (workspace / "go").write_bytes(b"")  # there is a reader: it lives
    until_written(workspace / "done", "0\n")
    (workspace / "go").write_bytes(b"")
    assert once.process.wait(SOON) == 0


def test_a_command_that_runs_ends_with_the_stream(once: RawWarden) -> None:
    once.send(wire.start(1, sh(f"sleep {MARK} & echo up; sleep {MARK}")))
    while once.next_frame() != (wire.STDOUT, 1, b"up\n"):
        pass
    once.socket.close()
    assert once.process.wait(SOON) == 0
    assert not until_gone(processes_with(MARK))


def test_one_that_left_nothing_ends_with_the_stream(once: RawWarden) -> None:
    assert once.run(1, sh("exit 4")).value == 4
    once.socket.close()
    assert once.process.wait(SOON) == 0


def test_an_init_reaps_and_ends_at_its_time(build: Build) -> None:
    """As PID 1: a shell leaves an orphan to it, and looks until that is gone, as a zombie too."""
    script = (
        "exec 3>&1; (sh -c \"sh -c 'exec sleep 1' & exit 0\"; "
        "until cat /proc/[0-9]*/stat | grep -q '(sleep)'; do :; done; "
        "while cat /proc/[0-9]*/stat | grep -q '(sleep)'; do :; done; echo reaped >&3) & "
        f"exec {build.path} init --max-age-ms 6000"
    )
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script],
        stdout=subprocess.PIPE,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"reaped\n")


@pytest.mark.parametrize("arguments", [["--max-age-ms"], ["nonsense"], ["--max-age-ms", "1", "2"]])
def test_an_init_with_wrong_arguments_says_so(build: Build, arguments: list[str]) -> None:
    done = subprocess.run(
        [build.path, "init", *arguments], stderr=subprocess.PIPE, timeout=50, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"warden: usage: warden init")
