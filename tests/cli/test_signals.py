"""Whatever ends the command, nothing of what it ran lives on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..machine import SOON, new_mark
from .conftest import Cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc"),
]

STUBBORN = """
trap '' TERM INT HUP
(setsid sh -c 'trap "" TERM INT HUP; exec sleep {mark}' &)
echo ready
sleep {mark}
"""


def running(mark: str) -> list[str]:
    """Return the processes whose command line has the mark, sandboxed ones too."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark.encode() in words and path.name != str(os.getpid()):
            found.append(path.name)
    return found


def wait_until_gone(mark: str) -> list[str]:
    deadline = time.monotonic() + SOON
    while running(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    return running(mark)


def wait_until_running(mark: str) -> None:
    deadline = time.monotonic() + SOON
    while not running(mark):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def read_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_ends_the_whole_tree(cli: Cli, backend: str, number: signal.Signals) -> None:
    mark = new_mark()
    script = STUBBORN.format(mark=mark)
    with cli.started("run", "--backend", backend, "--", "sh", "-c", script) as process:
        read_ready(process)
        wait_until_running(mark)
        process.send_signal(number)
        code = process.wait(SOON)
        assert code == (-9 if number is signal.SIGKILL else 128 + number)
        assert wait_until_gone(mark) == []
        assert process.stderr
        assert process.stderr.read() == b""


def wait_until_begun(process: subprocess.Popen[bytes], mark: str) -> None:
    """Wait until the command itself, and no longer Python, has Ctrl-C in its hands."""
    was_caught = False
    deadline = time.monotonic() + SOON
    for turn in itertools.count():
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        is_caught = bool(caught & 1 << (signal.SIGINT - 1))
        if was_caught and not is_caught:
            return
        if turn % 100 == 99 and len(running(mark)) > 1:
            return  # we have missed it, and it runs its program already
        assert time.monotonic() < deadline, "it does not begin"
        was_caught = is_caught
        time.sleep(0.001)


@pytest.mark.parametrize("times", [1, 5])
def test_a_signal_while_it_starts_leaves_nothing(cli: Cli, times: int) -> None:
    mark = new_mark()
    for step in range(6):
        with cli.started("run", "--", "sleep", mark) as process:
            wait_until_begun(process, mark)
            time.sleep(step * 0.04)
            for _ in range(times):
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=SOON)
            assert (out, err) == (b"", b"")
            assert process.returncode in (130, -signal.SIGINT)  # the same to a shell
    assert wait_until_gone(mark) == []


def test_a_signal_is_heard_while_nobody_reads_the_output(cli: Cli) -> None:
    mark = new_mark()
    script = f"echo ready; sleep {mark} & exec cat /dev/zero"
    with cli.started("run", "--", "sh", "-c", script) as process:
        read_ready(process)
        time.sleep(0.5)  # by now every buffer up to the pipe that we don't read is full
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == 143
    assert wait_until_gone(mark) == []


def test_a_signal_that_is_ignored_stays_so(cli: Cli) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    script = "echo ready; read line; echo $line"
    with cli.started("run", "--", "sh", "-c", script, preexec_fn=ignore) as process:
        read_ready(process)
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(b"went on\n", timeout=SOON)
        assert (process.returncode, out) == (0, b"went on\n")


def test_left_over_children_end_with_the_command(cli: Cli, backend: str) -> None:
    mark = new_mark()
    done = cli("run", "--backend", backend, "--", "sh", "-c", f"setsid sleep {mark} & echo ready")
    assert (done.code, done.out) == (0, b"ready\n")
    assert wait_until_gone(mark) == []
