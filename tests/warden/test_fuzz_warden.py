"""Whatever the host's end says, the warden answers, faults or ends: it never crashes or leaks."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..machine import children_of, until_gone
from . import wire
from .conftest import Build
from .mutations import damaged, seeded
from .wire import RawWarden

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(900)]

FRAMES = {"release": 40_000, "sanitized": 15_000}
SUBREAPER = 36


@pytest.fixture
def orphans() -> Iterator[None]:
    """Have all that a warden leaves come to this process, and see that there is nothing."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(SUBREAPER, 1, 0, 0, 0) == 0
    before = set(children_of(os.getpid()))
    yield
    left = set(children_of(os.getpid())) - before
    libc.prctl(SUBREAPER, 0, 0, 0, 0)
    assert not until_gone(left), "wardens left processes behind"


def sessions() -> list[list[bytes]]:
    """Rows of frames that are right. What they run is harmless, however it is damaged."""
    complete = wire.HAS_STDIN | wire.STDIN_COMPLETE
    sleeping = wire.start(2, [b"/bin/sleep", b"60"], timeout_ms=50, grace_ms=5)
    fed = wire.start(3, [b"/bin/cat"], flags=wire.HAS_STDIN, stdin=b"begin", window=4)
    leaving = wire.start(4, [b"/bin/sh", b"-c", b"/bin/sleep 60 & "], flags=wire.KILL_LEFTOVERS)
    listing = wire.start(6, [b"."], env=(), operation=wire.LIST, window=30)
    writing = wire.start(
        5,
        [b"a/file"],
        env=(),
        operation=wire.WRITE,
        flags=complete,
        stdin=b"data",
        numbers=(wire.NO_MODE, 0),
    )
    reading = wire.start(7, [b"a/file"], env=(), operation=wire.READ, numbers=(0, 1 << 20))
    many = wire.start(
        10, [b"a/file", b"none", b"a"], env=(), operation=wire.READ_MANY, numbers=(9, 0)
    )
    several = wire.start(
        12,
        [b"m/1", b"a", b"m/1/2", b"m/3"],
        env=(),
        operation=wire.WRITE_MANY,
        flags=wire.HAS_STDIN,
        stdin=b"".join(wire.new_file(b"x" * size, 0o640) for size in (3, 900, 0)) + b"\1",
    )
    rest = wire.new_file(b"y" * 50_000)[1:]
    following = [wire.frame(wire.STDIN, 12, rest), wire.frame(wire.STDIN_END, 12)]
    moving = wire.start(8, [b"a/file", b"a/other"], env=(), operation=wire.MOVE)
    removing = wire.start(9, [b"a"], env=(), operation=wire.REMOVE)
    ping = wire.frame(wire.PING, 9, b"ping")
    more = [wire.frame(wire.STDIN, 3, b"x" * size) for size in (1, 1000, 60_000)]
    end = wire.frame(wire.STDIN_END, 3)
    big = wire.start(1, [b"/bin/true", *[b"x" * 1000] * 90])
    in_terminal = wire.start(
        11,
        [b"/bin/cat"],
        flags=wire.TERMINAL | wire.HAS_STDIN,
        numbers=(24, 80),
        timeout_ms=50,
        window=100,
    )
    typing = [wire.frame(wire.STDIN, 11, data) for data in (b"a\n", b"x" * 9000, b"\x13\x03\x04")]
    lifetime = wire.frame(wire.LIFETIME, 0, struct.pack("<Q", 60_000))
    return [
        [wire.start(1, [b"/bin/true"]), ping],
        [sleeping, wire.kill(2), ping, wire.kill(2, 9)],
        [fed, *more, wire.credit(3, 50_000, 0), end, wire.credit(3, 50_000, 50_000)],
        [leaving, lifetime, ping],
        [sleeping, wire.limit(2, 60_000), fed, wire.limit(3, 1), wire.limit(2, 0), ping],
        [writing, reading, many, listing, wire.credit(6, 1000, 0), moving, removing],
        [writing, several, *following, listing],
        [big, wire.start(2, [b"missing"], fallback=b"/bin/true"), ping],
        [sleeping, fed, writing, wire.kill(3, 15), wire.kill(2)],
        [wire.start(n, [b"/bin/true"], timeout_ms=1000) for n in range(1, 20)],
        [in_terminal, *typing, wire.resize(11, 50, 132), wire.credit(11, 1000, 0), ping],
        [in_terminal, typing[1], wire.frame(wire.STDIN_END, 11), wire.kill(11, 1), wire.kill(11)],
    ]


def answers(raw: RawWarden, row: list[bytes]) -> Counter[int]:
    """Send a row, read until the warden has nothing more to say, and return what it said."""
    said: Counter[int] = Counter()
    for frame in row:
        raw.try_send(frame)
        while select.select([raw.socket], [], [], 0)[0]:
            if (found := raw.next_frame()) is None:
                return said
            said[found[0]] += 1
    while select.select([raw.socket], [], [], 0.002)[0]:
        if (found := raw.next_frame()) is None:
            return said
        said[found[0]] += 1
    return said


@pytest.mark.usefixtures("orphans")
def test_damaged_frames_to_a_warden(
    build: Build,
    workspace: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng, seed = seeded()
    frames = FRAMES["release" if build.reports is None else "sanitized"]
    said: Counter[int] = Counter()
    count = wardens = 0
    known = sessions()
    while count < frames:
        with RawWarden(str(build.path), workspace) as raw:
            for _ in range(20):
                row = damaged(rng.choice(known), rng)
                count += len(row)
                said += answers(raw, row)
                if raw.process.poll() is not None:
                    break
        wardens += 1
        assert raw.process.returncode == 0, f"seed {seed}: {raw.process.returncode}"
        assert build.found() == "", f"seed {seed}"
    with capsys.disabled():
        shown = {hex(kind): number for kind, number in sorted(said.items())}
        print(f"\n  {count} frames to {wardens} wardens, seed {seed}: {shown}", end="")
    assert said[wire.FAULT] > 20
    assert said[wire.EXIT] > 20
