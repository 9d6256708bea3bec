"""A stream that breaks, and its warden that is taken up again by who knows the token."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from . import wire
from .conftest import Build
from .wire import RawWarden

TOKEN = bytes(range(32))


@pytest.fixture
def raw(build: Build, workspace: Path) -> Iterator[RawWarden]:
    """A warden that waits to be taken up again, and is told to end in the end."""
    with RawWarden(str(build.path), workspace, "--orphan-ms", "60000") as warden:
        yield warden
        if warden.process.poll() is None:
            warden.try_send(wire.frame(wire.LIFETIME, 0, struct.pack("<Q", 1)))
            warden.process.wait(wire.SOON)


@contextmanager
def relay(build: Build, raw: RawWarden, token: bytes) -> Iterator[socket.socket]:
    """Run `warden connect` with a new stream and yield the host's end of that."""
    ours, theirs = socket.socketpair()
    ours.settimeout(wire.SOON)
    command = [str(build.path), "connect", str(raw.process.pid)]
    with subprocess.Popen(
        command, stdin=theirs.fileno(), stdout=theirs.fileno(), env={}
    ) as process:
        theirs.close()
        ours.sendall(token)
        yield ours
        assert process.wait(wire.SOON) == 0


def instance(raw: RawWarden) -> bytes:
    """Take a HELLO and return what tells this warden from all others."""
    return raw.expect(wire.HELLO, 0)[16:]


def end(raw: RawWarden) -> None:
    raw.send(wire.frame(wire.LIFETIME, 0, struct.pack("<Q", 1)))
    assert raw.process.wait(wire.SOON) == 0


@pytest.mark.parametrize("first_ends", [True, False])
def test_who_knows_the_token_takes_the_stream_up(
    build: Build, raw: RawWarden, first_ends: bool
) -> None:
    """What ran for the old stream is killed, and its channels are free."""
    known = instance(raw)
    raw.send(wire.frame(wire.TOKEN, 0, TOKEN), wire.start(1, [b"/bin/sleep", b"600"]))
    pid = struct.unpack("<I", raw.expect(wire.STARTED, 1))[0]
    old = raw.socket
    if first_ends:
        old.close()
    with relay(build, raw, TOKEN) as raw.socket:
        assert instance(raw) == known
        assert not os.path.exists(f"/proc/{pid}")
        assert raw.run(1, [b"/bin/sh", b"-c", b"exit 7"]).value == 7
        if not first_ends:
            assert old.recv(1) == b""
            old.close()
        end(raw)


def test_it_can_be_taken_up_again_and_again(build: Build, raw: RawWarden) -> None:
    known = instance(raw)
    raw.send(wire.frame(wire.TOKEN, 0, TOKEN))
    assert raw.run(1, [b"/bin/true"]).value == 0
    for _ in range(3):
        raw.socket.close()
        with relay(build, raw, TOKEN) as raw.socket:
            assert instance(raw) == known
            assert raw.run(1, [b"/bin/true"]).value == 0
            raw.socket.close()
    with relay(build, raw, TOKEN) as raw.socket:
        assert instance(raw) == known
        end(raw)


def test_what_a_command_left_behind_outlives_the_stream(build: Build, raw: RawWarden) -> None:
    instance(raw)
    raw.send(wire.frame(wire.TOKEN, 0, TOKEN))
    left = raw.run(1, [b"/bin/sh", b"-c", b"sleep 600 & echo $!"])
    raw.socket.close()
    with relay(build, raw, TOKEN) as raw.socket:
        instance(raw)
        assert os.path.exists(f"/proc/{int(left.stdout)}")
        end(raw)


@pytest.mark.parametrize("token", [bytes(32), TOKEN[:-1] + b"x"])
def test_a_stranger_gets_nothing_and_harms_nobody(
    build: Build, raw: RawWarden, token: bytes
) -> None:
    """Catches a token of which only the beginning, or nothing, is looked at."""
    instance(raw)
    raw.send(wire.frame(wire.TOKEN, 0, TOKEN))
    assert raw.run(1, [b"/bin/true"]).value == 0
    with relay(build, raw, token) as stranger:
        assert stranger.recv(1) == b""
        stranger.close()
    assert raw.run(2, [b"/bin/true"]).value == 0


def test_without_a_token_the_end_of_the_stream_is_the_end(raw: RawWarden) -> None:
    instance(raw)
    raw.socket.close()
    assert raw.process.wait(wire.SOON) == 0


def test_an_orphan_ends_when_its_time_is_up(build: Build, workspace: Path) -> None:
    with RawWarden(str(build.path), workspace, "--orphan-ms", "1") as warden:
        instance(warden)
        warden.send(wire.frame(wire.TOKEN, 0, TOKEN))
        assert warden.run(1, [b"/bin/true"]).value == 0
        warden.socket.close()
        assert warden.process.wait(wire.SOON) == 0


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_token_of_another_size_breaks_the_protocol(raw: RawWarden, size: int) -> None:
    instance(raw)
    raw.send(wire.frame(wire.TOKEN, 0, bytes(size)))
    assert raw.expect(wire.FAULT, 0)[:4] == b"\1\0\0\0"


def test_a_stream_of_two_pipes(build: Build, workspace: Path) -> None:
    command = [str(build.path), "serve", "--workspace", str(workspace), "--pipes"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        flags = wire.HAS_STDIN | wire.STDIN_COMPLETE
        process.stdin.write(wire.start(1, [b"/bin/cat"], flags=flags, stdin=b"through a pipe"))
        process.stdin.flush()
        said = b""
        while b"through a pipe" not in said:
            data = os.read(process.stdout.fileno(), 65536)
            assert data
            said += data
        process.stdin.close()
        assert process.wait(wire.SOON) == 0


@pytest.fixture
def waiting(build: Build, workspace: Path) -> Iterator[RawWarden]:
    """A warden that has no stream yet."""
    options = ("--await-ms", "60000", "--orphan-ms", "60000")
    with RawWarden(str(build.path), workspace, *options) as warden:
        warden.socket.close()  # which it does not look at
        yield warden
        if warden.process.poll() is None:
            warden.process.kill()


def test_whoever_comes_first_brings_the_stream_and_the_token(
    build: Build, waiting: RawWarden
) -> None:
    """Catches a warden that takes the next comer's token too, or ends without a first stream."""
    with relay(build, waiting, TOKEN) as waiting.socket:
        known = instance(waiting)
        assert waiting.run(1, [b"/bin/sh", b"-c", b"exit 7"]).value == 7
        with relay(build, waiting, bytes(32)) as stranger:
            assert stranger.recv(1) == b""
            stranger.close()
        assert waiting.run(1, [b"/bin/true"]).value == 0
        waiting.socket.close()
    with relay(build, waiting, TOKEN) as waiting.socket:
        assert instance(waiting) == known
        end(waiting)


def test_without_a_first_stream_it_ends(build: Build, workspace: Path) -> None:
    with RawWarden(str(build.path), workspace, "--await-ms", "50") as warden:
        assert warden.process.wait(wire.SOON) == 0
