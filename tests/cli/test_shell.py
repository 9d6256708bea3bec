"""A person's terminal in a sandbox: raw, of the right size, and put back on every way out."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ringfence.backends.process import ProcessBackend
from ringfence.cli.shell import check_terminals
from ringfence.config import ProcessConfig
from ringfence.errors import UnsupportedError

from .conftest import Cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="there are no terminals to give"),
]

BACKENDS = [
    ("--backend", "process"),
    ("--backend", "bubblewrap"),
    pytest.param(
        ("--backend", "container", "--image", "ringfence-test:minimal"),
        marks=pytest.mark.container,
    ),
]


class Person:
    """Who sits in front of the command's terminal."""

    def __init__(self, far: int, near: int, process: subprocess.Popen[bytes]) -> None:
        self.far = far
        self.near = near
        self.process = process
        self.seen = b""

    def read_until(self, text: bytes) -> bytes:
        """Return what is shown up to a text, which is then behind us."""
        while text not in self.seen:
            try:
                self.seen += os.read(self.far, 4096)
            except OSError as error:
                raise AssertionError(f"it ended after {self.seen!r}") from error
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text: bytes) -> None:
        os.write(self.far, text)

    def modes(self) -> list[object]:
        return termios.tcgetattr(self.near)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.near, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def at_a_shell(cli: Cli, *args: str) -> Iterator[Person]:
    """Start `ringfence shell`, and see in the end that its terminal is as it was."""
    far, near = os.openpty()
    fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))

    def take_control() -> None:
        os.setsid()
        fcntl.ioctl(near, termios.TIOCSCTTY, 0)

    before = termios.tcgetattr(near)
    ends = {"stdin": near, "stdout": near, "stderr": near}
    with cli.started("shell", *args, preexec_fn=take_control, **ends) as process:
        yield Person(far, near, process)
        assert termios.tcgetattr(near) == before
    os.close(near)
    os.close(far)


@pytest.fixture(params=BACKENDS, ids=lambda args: args[1])
def where(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


PROMPT = ("--env", "PS1=ready> ", "--command", "sh")


def test_a_person_works_in_a_shell(cli: Cli, where: tuple[str, ...]) -> None:
    with at_a_shell(cli, *where, *PROMPT) as person:
        person.read_until(b"ready> ")
        person.type(b"stty size; echo $TERM; tty\r")
        person.read_until(b"31 97\r\n")
        assert b"/dev/pts/" in person.read_until(b"ready> ")
        person.resize(50, 120)
        person.process.send_signal(signal.SIGWINCH)  # which the kernel sends by itself too
        person.type(b"echo changed; stty size\r")
        while b"50 120" not in person.read_until(b"ready> "):
            person.type(b"stty size\r")
        person.type(b"sh -c \"echo u''p; exec sleep 300\"\r")
        person.read_until(b"up\r\n")
        person.type(b"\x03")
        person.read_until(b"ready> ")
        person.type(b"exit 7\r")
        assert person.process.wait(20) == 7


def test_the_end_of_input_is_a_key_too(cli: Cli, where: tuple[str, ...]) -> None:
    with at_a_shell(cli, *where, *PROMPT) as person:
        person.read_until(b"ready> ")
        person.type(b"\x04")
        assert person.process.wait(20) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_the_terminal_is_put_back_when_a_signal_ends_us(cli: Cli, number: signal.Signals) -> None:
    script = 'sh -c \'trap "" HUP TERM INT; echo u""p; sleep 300\''
    with at_a_shell(cli, "--backend", "process", "--command", script) as person:
        person.read_until(b"up\r\n")
        raw = person.modes()
        person.process.send_signal(number)
        code = person.process.wait(20)
        assert raw != person.modes()
        assert code in (128 + number, 137)


def test_what_a_program_switched_on_is_switched_off(cli: Cli) -> None:
    script = "printf '\\033[?1000h\\033[?25lshown'"
    with at_a_shell(cli, "--backend", "process", "--command", f'sh -c "{script}"') as person:
        assert person.process.wait(20) == 0
        person.read_until(b"shown")
        assert b"\x1b[?25h\x1b[?1000l" in person.read_until(b"\x1b[0m")


def test_a_program_that_is_not_there_is_said_on_a_line(cli: Cli) -> None:
    with at_a_shell(cli, "--backend", "process", "--command", "no-such-program x") as person:
        assert person.process.wait(20) == 127
        person.read_until(b"ringfence: no-such-program: command not found\r\n")


def test_files_are_copied_and_variables_are_there(cli: Cli) -> None:
    cli.write("data.txt", "from here\n")
    args = ("--file", "data.txt", "--env", "WORD=said", "--command", "sh -c 'cat data.txt; env'")
    with at_a_shell(cli, "--backend", "bubblewrap", *args) as person:
        person.read_until(b"from here\r\n")
        person.read_until(b"WORD=said")
        assert person.process.wait(20) == 0


def test_without_a_terminal_it_is_refused_in_one_line(cli: Cli) -> None:
    done = cli("shell", "--backend", "process")
    assert (done.code, done.out) == (125, b"")
    assert done.err.startswith("ringfence: a shell needs a terminal, and stdin is none")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "says"), [("'open", "can't be read"), ("", "name of a program")]
)
def test_a_command_that_is_none_is_refused(cli: Cli, command: str, says: str) -> None:
    done = cli("shell", "--command", command)
    assert done.code == 125
    assert says in done.err
    assert done.err.count("\n") == 1


def test_a_backend_without_terminals_is_refused_in_one_line(cli: Cli) -> None:
    with at_a_shell(cli, "--backend", "wasm") as person:
        assert person.process.wait(30) == 125
        person.read_until(b"ringfence: 'bash' can't be run by the wasm backend")
    with pytest.raises(UnsupportedError, match="process has no terminals"):
        check_terminals(ProcessBackend(ProcessConfig(portable=True)))
