"""Commands with a terminal, started over the protocol by an implementation that is not ours."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import time
from pathlib import Path

import pytest

from ringfence.warden.binary import warden_path

from . import wire
from .conftest import Build
from .wire import Ended, RawWarden

pytestmark = pytest.mark.timeout(120)

SIZE = (24, 80)


def sh(script: str) -> list[bytes]:
    return [b"/bin/sh", b"-c", script.encode()]


def start(script: str, **options: object) -> bytes:
    given = {"numbers": SIZE, "flags": wire.TERMINAL | wire.HAS_STDIN, **options}
    return wire.start(1, sh(script), **given)  # type: ignore[arg-type]


def run(warden: RawWarden, script: str, **options: object) -> Ended:
    warden.send(start(script, **options))
    return warden.until_exit(1)


def read_until(warden: RawWarden, wanted: bytes) -> bytes:
    """Return a terminal's output up to and with some text."""
    seen = b""
    while wanted not in seen:
        found = warden.next_frame()
        assert found is not None, seen
        kind, _, payload = found
        assert kind != wire.EXIT, seen
        seen += payload if kind == wire.STDOUT else b""
    return seen


def test_hello_says_that_there_are_terminals(build: Build, workspace: Path) -> None:
    with RawWarden(str(build.path), workspace) as raw:
        features = struct.unpack_from("<IIII", raw.expect(wire.HELLO, 0))[2]
    assert features & 8


def test_stdio_is_one_terminal_that_controls_its_session(warden: RawWarden) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && stty size </dev/tty && echo err >&2; exit 7"
    end = run(warden, script, numbers=(33, 101))
    assert (end.outcome, end.value) == (wire.EXITED, 7)
    assert end.stdout.replace(b"^D\b\b", b"") == b"33 101\r\nerr\r\n"
    assert end.stderr == b""


def test_no_other_descriptor_is_handed_down(warden: RawWarden) -> None:
    end = run(warden, "exec ls /proc/self/fd")
    assert sorted(end.stdout.split()) == [b"0", b"1", b"2", b"3"]  # the last is the directory


def test_what_is_typed_arrives_and_a_key_interrupts(warden: RawWarden) -> None:
    # Short sleeps: a shell that is interrupted just before one begins looks after it.
    wait = "while :; do sleep 0.1; done"
    script = f"trap 'echo caught; exit 9' INT; read line; echo got $line; echo ready; {wait}"
    warden.send(start(script), wire.frame(wire.STDIN, 1, b"words\n"))
    assert b"got words\r\n" in read_until(warden, b"ready\r\n")
    warden.send(wire.frame(wire.STDIN, 1, b"\x03"))
    end = warden.until_exit(1)
    assert (end.outcome, end.value) == (wire.EXITED, 9)
    assert b"caught" in end.stdout


def test_a_new_size_is_told_to_the_program(warden: RawWarden) -> None:
    script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
    warden.send(start(script))
    read_until(warden, b"ready\r\n")
    warden.send(wire.resize(1, 50, 132))
    assert b"50 132\r\n" in warden.until_exit(1).stdout


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (65536, 80), (24, 2**32 - 1)])
def test_an_impossible_size_changes_nothing(warden: RawWarden, size: tuple[int, int]) -> None:
    warden.send(start("read x; stty size"), wire.resize(1, *size), wire.frame(wire.STDIN, 1, b"\n"))
    assert b"24 80\r\n" in warden.until_exit(1).stdout


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (65536, 80), (2**63, 2**63)])
def test_no_terminal_is_started_with_an_impossible_size(
    build: Build, workspace: Path, size: tuple[int, int]
) -> None:
    with RawWarden(str(build.path), workspace) as raw:
        raw.expect(wire.HELLO, 0)
        raw.send(start("true", numbers=size))
        assert struct.unpack_from("<I", raw.expect(wire.FAULT, 0)) == (1,)


def test_a_file_operation_has_no_terminal(build: Build, workspace: Path) -> None:
    with RawWarden(str(build.path), workspace) as raw:
        raw.expect(wire.HELLO, 0)
        raw.send(
            wire.start(1, [b"."], operation=wire.LIST, flags=wire.TERMINAL, numbers=SIZE, env=())
        )
        assert struct.unpack_from("<I", raw.expect(wire.FAULT, 0)) == (1,)


def test_a_resize_is_passed_over_without_a_terminal(warden: RawWarden) -> None:
    warden.send(wire.resize(99, 10, 10), wire.frame(wire.RESIZE, 1, b""))
    warden.send(wire.start(1, sh("read x; echo $x"), flags=wire.HAS_STDIN))
    warden.send(wire.resize(1, 10, 10), wire.frame(wire.STDIN, 1, b"on\n"))
    assert warden.until_exit(1).stdout == b"on\n"


@pytest.mark.parametrize(
    ("typed", "got"), [(b"", b""), (b"line\n", b"line\n"), (b"open", b"open"), (b"cr\r", b"cr\n")]
)
def test_the_end_of_input_is_typed(warden: RawWarden, typed: bytes, got: bytes) -> None:
    warden.send(start("stty -echo; echo ready; cat >file; echo done; cat file"))
    read_until(warden, b"ready\r\n")
    warden.send(wire.frame(wire.STDIN, 1, typed), wire.frame(wire.STDIN_END, 1))
    end = warden.until_exit(1)
    assert end.stdout == b"done\r\n" + got.replace(b"\n", b"\r\n")


def test_without_stdin_its_end_comes_at_once(warden: RawWarden) -> None:
    assert b"over" in run(warden, "cat; echo over", flags=wire.TERMINAL).stdout


def test_stdin_in_the_start_is_typed_with_its_end(warden: RawWarden) -> None:
    flags = wire.TERMINAL | wire.HAS_STDIN | wire.STDIN_COMPLETE
    end = run(warden, "stty -echo; cat | wc -c", flags=flags, stdin=b"a line\n" * 100)
    assert b"700" in end.stdout


def test_all_of_the_input_arrives_and_is_acknowledged(warden: RawWarden) -> None:
    line = b"x" * 99 + b"\n"
    data = line * 3000
    warden.send(start("stty -echo; echo ready; wc -c"))
    read_until(warden, b"ready\r\n")
    at = under_way = 0
    while at < len(data) or under_way:
        if at < len(data) and under_way < 32_000:
            piece = data[at : at + 16_000]
            warden.send(wire.frame(wire.STDIN, 1, piece))
            at += len(piece)
            under_way += len(piece)
        else:
            (taken,) = struct.unpack("<I", warden.expect(wire.STDIN_ACK, 1))
            under_way -= taken
    warden.send(wire.frame(wire.STDIN_END, 1))
    assert str(len(data)).encode() in warden.until_exit(1).stdout


def test_all_of_the_output_arrives_with_credit_as_for_others(warden: RawWarden) -> None:
    warden.send(start("seq 20000; echo end", window=1000))
    seen = b""
    while not seen.endswith(b"end\r\n"):
        kind, _, payload = warden.next_frame() or (0, 0, b"")
        assert kind in (wire.STARTED, wire.STDOUT)
        seen += payload if kind == wire.STDOUT else b""
        assert kind != wire.STDOUT or len(payload) <= 1000
        if kind == wire.STDOUT:
            warden.send(wire.credit(1, len(payload), 0))
    assert seen.split() == [*[str(n).encode() for n in range(1, 20001)], b"end"]
    assert warden.until_exit(1).stdout_total == len(seen)


def test_output_past_its_cap_is_counted(warden: RawWarden) -> None:
    end = run(warden, "seq 20000", cap=100)
    assert len(end.stdout) == 100
    assert end.stdout_total == sum(len(str(n)) + 2 for n in range(1, 20001))


@pytest.mark.parametrize(
    "rest",
    [
        "sleep 300 & echo $! >pid",
        "(trap '' HUP; while :; do echo x; done) & echo $! >pid",
        "setsid sleep 300 & echo $! >pid",
        "(trap '' HUP TERM; exec sleep 300 0<&1) & echo $! >pid",
    ],
)
@pytest.mark.parametrize("flags", [0, wire.KILL_LEFTOVERS])
def test_the_end_is_the_main_process_s_whoever_keeps_the_terminal(
    warden: RawWarden, rest: str, flags: int
) -> None:
    end = run(warden, f"{rest}; echo last", flags=flags | wire.TERMINAL | wire.HAS_STDIN)
    assert (end.outcome, end.value, end.kill_incomplete) == (wire.EXITED, 0, 0)
    assert b"last" in end.stdout


def test_one_that_gives_its_terminal_up_ends_too(warden: RawWarden, workspace: Path) -> None:
    (workspace / "give.py").write_text(
        "import fcntl, os, termios, signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "fcntl.ioctl(0, termios.TIOCNOTTY)\n"
        "if not os.fork():\n"
        "    while True: os.write(1, b'x' * 4096)\n"
        "os._exit(5)\n"
    )
    end = run(warden, "exec /usr/bin/env python3 give.py")
    assert (end.outcome, end.value) == (wire.EXITED, 5)


def test_kills_and_deadlines_hold(warden: RawWarden) -> None:
    script = "trap '' TERM HUP INT; echo on; while :; do sleep 1; done"
    for limit_ms in (100, 5000):
        end = run(warden, script, timeout_ms=limit_ms, grace_ms=50)
        assert end.timed_out
        if end.stdout:  # a busy machine may not come to it in the shorter time
            break
    assert (end.outcome, end.value) == (wire.SIGNALED, 9)
    warden.send(start("stty raw -isig; echo up; yes", window=1000))
    read_until(warden, b"up")
    warden.send(wire.kill(1), wire.credit(1, 1 << 20, 0))
    assert warden.until_exit(1).outcome == wire.SIGNALED


def test_one_that_stops_its_own_output_can_be_killed(warden: RawWarden) -> None:
    warden.send(start("echo up; while :; do echo more; done"))
    read_until(warden, b"up")
    warden.send(wire.frame(wire.STDIN, 1, b"\x13"), wire.kill(1))
    assert warden.until_exit(1).outcome == wire.SIGNALED


def test_input_that_nobody_reads_is_acknowledged_at_the_end(warden: RawWarden) -> None:
    warden.send(start("stty raw -echo; echo up; sleep 300"))
    read_until(warden, b"up")
    warden.send(wire.frame(wire.STDIN, 1, b"x" * 60_000), wire.frame(wire.STDIN_END, 1))
    warden.send(wire.frame(wire.PING, 0, b"12345678"))
    kinds = set()
    while wire.PONG not in kinds:
        found = warden.next_frame()
        assert found is not None
        kinds.add(found[0])
    warden.send(wire.kill(1))
    assert warden.until_exit(1).outcome == wire.SIGNALED


def test_a_warden_that_waits_for_a_terminal_is_idle(warden: RawWarden) -> None:
    warden.send(start("stty raw -echo; echo up; sleep 300"))
    read_until(warden, b"up")
    warden.send(wire.frame(wire.STDIN, 1, b"x" * 60_000), wire.frame(wire.STDIN_END, 1))

    def ticks() -> int:
        fields = Path(f"/proc/{warden.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    warden.run(2, sh("sleep 0.3"))  # whatever there was to do is done
    before = ticks()
    warden.run(3, sh("sleep 1"))
    assert ticks() - before < os.sysconf("SC_CLK_TCK") / 4
    warden.send(wire.kill(1))
    warden.until_exit(1)


def test_many_terminals_leave_no_descriptor(warden: RawWarden) -> None:
    def descriptors() -> int:
        return len(os.listdir(f"/proc/{warden.process.pid}/fd"))

    warden.run(2, sh("true"))
    before = descriptors()
    for _ in range(50):
        assert run(warden, "true").outcome == wire.EXITED
    deadline = time.monotonic() + wire.SOON
    while descriptors() > before + 5:  # a spare has or has not been made
        assert time.monotonic() < deadline
        warden.run(2, sh("sleep 0.1"))  # and the keepers are buried


@pytest.mark.hostile
def test_without_a_device_there_is_no_terminal(workspace: Path) -> None:
    """In a mount namespace whose /dev has a null and nothing else."""
    script = (
        "mount -t tmpfs none /mnt && touch /mnt/null && mount --bind /dev/null /mnt/null && "
        f"mount --move /mnt /dev && exec {warden_path()} serve --workspace {workspace}"
    )
    unshare = shutil.which("unshare")
    assert unshare is not None
    launcher = workspace.parent / "launcher"
    launcher.write_text(f"#!/bin/sh\nexec {unshare} -m sh -c '{script}'\n")
    launcher.chmod(0o755)
    with RawWarden(str(launcher), workspace) as raw:
        raw.expect(wire.HELLO, 0)
        end = run(raw, "true")
        assert (end.outcome, end.stage, end.value) == (wire.NOT_STARTED, 5, errno.ENOENT)
        assert raw.run(2, sh("echo on")).stdout == b"on\n"
