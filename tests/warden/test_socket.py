"""A warden that connects to a socket of its host's, and one whose host does not answer there."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import wire
from .conftest import Build
from .wire import RawWarden

pytestmark = pytest.mark.slow


@contextmanager
def listening(place: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(place))
        sock.listen(1)
        sock.settimeout(wire.SOON)
        yield sock


def test_it_takes_the_socket_before_what_it_was_started_with(
    build: Build, workspace: Path, tmp_path: Path
) -> None:
    place = tmp_path / "s"
    with (
        listening(place) as sock,
        RawWarden(str(build.path), workspace, "--pipes", "--socket", str(place)) as raw,
    ):
        unused, (raw.socket, _) = raw.socket, sock.accept()
        raw.socket.settimeout(wire.SOON)
        raw.expect(wire.HELLO, 0)
        unused.close()  # which it does not look at
        flags = wire.HAS_STDIN | wire.STDIN_COMPLETE
        ended = raw.run(1, [b"/bin/cat"], flags=flags, stdin=b"past the engine")
        assert (ended.value, ended.stdout) == (0, b"past the engine")
        # Its commands have neither the socket nor what it was started with.
        listed = raw.run(2, [b"/bin/sh", b"-c", b"readlink /proc/self/fd/* | grep -c socket"])
        assert listed.stdout == b"0\n"
        raw.socket.close()
        assert raw.has_ended() == 0


@pytest.mark.parametrize("there", ["nothing", "nobody", "a file", "a name too long"])
def test_where_nobody_answers_it_takes_what_it_was_started_with(
    build: Build, workspace: Path, tmp_path: Path, there: str
) -> None:
    place = tmp_path / "s"
    if there == "nobody":
        with listening(place):
            pass
    elif there == "a file":
        place.touch()
    elif there == "a name too long":
        place = tmp_path / ("s" * 120)
    with RawWarden(str(build.path), workspace, "--socket", str(place)) as raw:
        raw.expect(wire.HELLO, 0)
        assert raw.run(1, [b"/bin/true"]).value == 0
        raw.socket.close()


def test_why_it_can_not_start_is_on_its_stderr_all_the_same(build: Build, tmp_path: Path) -> None:
    place = tmp_path / "s"
    with listening(place):
        done = subprocess.run(
            [build.path, "serve", "--workspace", "/nowhere", "--socket", place],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=wire.SOON,
            check=False,
        )
    assert done.returncode == 1
    assert b"can't open the workspace: /nowhere" in done.stderr
