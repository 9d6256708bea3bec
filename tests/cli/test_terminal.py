"""With a terminal at the other end: what is typed, Ctrl-C, and pipes that don't block."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .conftest import Cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="terminals differ"),
]


class Terminal:
    """The far end of a terminal that the command has as its own."""

    def __init__(self, far: int, process: subprocess.Popen[bytes]) -> None:
        self.far = far
        self.process = process
        self.seen = b""

    def read_until(self, text: bytes) -> bytes:
        while text not in self.seen:
            self.seen += os.read(self.far, 4096)
        return self.seen

    def type(self, text: bytes) -> None:
        os.write(self.far, text)


@contextmanager
def terminal(cli: Cli, *args: str) -> Iterator[Terminal]:
    far, near = os.openpty()

    def take_control() -> None:
        os.setsid()
        fcntl.ioctl(near, termios.TIOCSCTTY, 0)

    ends = {"stdin": near, "stdout": near, "stderr": near}
    with cli.started(*args, preexec_fn=take_control, **ends) as process:
        os.close(near)
        yield Terminal(far, process)
    os.close(far)


def test_a_program_reads_end_of_file_where_we_have_a_terminal(cli: Cli) -> None:
    with terminal(cli, "run", "--", "sh", "-c", "cat; tty; echo ended") as term:
        assert b"not a tty\r\nended\r\n" in term.read_until(b"ended")
        assert term.process.wait(30) == 0


def test_a_script_can_be_typed(cli: Cli) -> None:
    with terminal(cli, "run", "-") as term:
        term.type(b"print(6 * 7)\n\x04")
        assert b"42\r\n" in term.read_until(b"42\r\n")
        assert term.process.wait(30) == 0


def test_ctrl_c_ends_it_with_130_and_without_a_word(cli: Cli, backend: str) -> None:
    script = "trap '' INT TERM; echo ready; sleep 60"
    with terminal(cli, "run", "--backend", backend, "--", "sh", "-c", script) as term:
        term.read_until(b"ready\r\n")
        term.type(b"\x03")
        assert term.process.wait(30) == 130
        assert term.seen == b"ready\r\n"


def test_our_own_lines_begin_a_line(cli: Cli) -> None:
    for timeout in ("0.3", "10"):
        args = ("run", "--timeout", timeout, "--", "sh", "-c", "printf x; sleep 60")
        with terminal(cli, *args) as term:
            said = term.read_until(b"timed out")
            assert term.process.wait(30) == 124
        if said.startswith(b"x"):  # a busy machine may not have come to it in the shorter time
            break
    assert b"x\r\nringfence: timed out" in said


def test_pipes_that_do_not_block_lose_nothing(cli: Cli) -> None:
    data = os.urandom(1_000_000)
    (in_read, in_write), (out_read, out_write) = os.pipe(), os.pipe()
    for end in (in_read, out_write):
        os.set_blocking(end, False)

    def feed() -> None:
        with os.fdopen(in_write, "wb") as file:
            for start in range(0, len(data), 100_000):
                time.sleep(0.02)  # so that it finds nothing to read now and then
                file.write(data[start : start + 100_000])
                file.flush()

    threading.Thread(target=feed).start()
    with cli.started("run", "--", "cat", stdin=in_read, stdout=out_write) as process:
        os.close(in_read)
        os.close(out_write)
        time.sleep(1.0)  # by now what we don't read is full
        with os.fdopen(out_read, "rb") as file:
            received = file.read()
        assert process.stderr
        assert (process.stderr.read(), process.wait(30)) == (b"", 0)
    assert received == data
