"""Programs that are hostile to terminals, and places that have none to give."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.backends import process
from ringfence.backends.process import ProcessBackend
from ringfence.config import ProcessConfig
from ringfence.errors import LimitError, UnsupportedError
from ringfence.models import Command, Result, TerminalSize
from ringfence.process import Process
from ringfence.warden.binary import warden_path

from ..machine import SOON
from .conftest import Factory

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(300)]

PYTHON = "/usr/bin/python3"

HOG = """
import os, time
held = []
try:
    while True:
        held.append(os.openpty())
except OSError as error:
    print("full", len(held), error, flush=True)
time.sleep(300)
"""

# What a terminal's program can change of it, without an end.
TURN = """
import fcntl, os, pty, signal, struct, termios, time
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("up", flush=True)
ends = time.monotonic() + 2
while time.monotonic() < ends:
    modes = termios.tcgetattr(0)
    for index in range(4):
        modes[index] = int.from_bytes(os.urandom(2), "little") & ~termios.TOSTOP
    modes[6][termios.VEOF] = os.urandom(1)
    try:
        termios.tcsetattr(0, termios.TCSANOW, modes)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *os.urandom(4), 0, 0)[:8])
        fcntl.ioctl(0, termios.TCXONC, termios.TCOOFF)
        fcntl.ioctl(0, termios.TCXONC, termios.TCOON)
        fcntl.ioctl(0, termios.TCFLSH, termios.TCIOFLUSH)
        fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), termios.TIOCEXCL)
    except (OSError, termios.error):
        pass
os._exit(6)
"""


def in_terminal(*argv: str, timeout: float = 60.0) -> Command:
    return Command(argv, terminal=TerminalSize(), timeout=timeout)


async def is_sound(sandbox: Sandbox) -> None:
    with anyio.fail_after(SOON):
        result = await sandbox.exec(in_terminal("sh", "-c", "stty size; exit 3"))
        assert (result.exit_code, result.stdout[:5]) == (3, b"24 80")


async def read_until(running: Process, wanted: bytes) -> None:
    seen = b""
    with anyio.fail_after(SOON):
        while wanted not in seen:
            chunk = await running.receive()
            assert chunk is not None, seen
            seen += chunk.data


def test_a_program_that_takes_all_terminals_it_can(jails: Factory) -> None:
    async def main() -> None:
        async with jails() as backend, await backend.create() as sandbox:
            hog = await sandbox.start(in_terminal(PYTHON, "-c", HOG, timeout=200))
            await read_until(hog, b"full")
            await is_sound(sandbox)
            async with await backend.create() as other:
                await is_sound(other)
            await hog.kill()
            await hog.wait()
            await is_sound(sandbox)

    anyio.run(main)


def test_a_program_that_changes_its_terminal_without_an_end(factory: Factory) -> None:
    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            # Once the key that stops output has come, its last words may wait until its time is up.
            turning = in_terminal(PYTHON, "-c", TURN, timeout=5)
            running = await sandbox.start(turning, stdin_open=True)
            await read_until(running, b"up")
            for size in range(1, 40):
                await running.resize(size, 2 * size)
                with anyio.move_on_after(0.05):  # one that reads nothing takes 64 KiB
                    await running.write_stdin(b"typed\n\x03\x13" * 100)
            await running.close_stdin()
            with anyio.fail_after(SOON):
                await running.wait()  # by itself, by the key that interrupts, or in time
            await is_sound(sandbox)

    anyio.run(main)


def test_what_is_left_behind_can_flood_its_terminal_in_vain(factory: Factory) -> None:
    script = "(trap '' HUP; while :; do echo flood; done) & (trap '' HUP; sleep 300) & echo last"

    async def main() -> Result:
        async with factory() as backend, await backend.create() as sandbox:
            with anyio.fail_after(SOON):
                result = await sandbox.exec(in_terminal("sh", "-c", script))
            await is_sound(sandbox)
            return result

    assert b"last" in anyio.run(main).stdout


# Where there is none to be had.


def launcher(directory: Path, setup: str) -> Path:
    """Return a program that is the warden, in a mount namespace that was made ready for it."""
    path = directory / "warden"
    real = warden_path()
    path.write_text(
        "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin; export PATH\n"
        f'if [ "$1" = launch ]; then exec {real} "$@"; fi\n'
        f'exec unshare -m sh -c \'{setup} && exec {real} "$@"\' sh "$@"\n'
    )
    path.chmod(0o755)
    return path


@asynccontextmanager
async def a_sandbox_where(
    setup: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sandbox]:
    monkeypatch.setattr(process, "warden_path", lambda: launcher(tmp_path, setup))
    backend = ProcessBackend(ProcessConfig(kill_grace=0.05))
    async with backend, await backend.create() as sandbox:
        yield sandbox


def test_without_the_device_it_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = (
        "mount -t tmpfs none /mnt && touch /mnt/null && mount --bind /dev/null /mnt/null"
        " && mount --move /mnt /dev"
    )

    async def main() -> None:
        async with a_sandbox_where(setup, tmp_path, monkeypatch) as sandbox:
            with pytest.raises(UnsupportedError, match="no terminal could be opened"):
                await sandbox.exec(in_terminal("true"))
            assert (await sandbox.exec("echo", ["on"])).stdout == b"on\n"

    anyio.run(main)


def test_when_there_is_none_left_it_is_a_typed_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = (
        "mount -t devpts -o newinstance,ptmxmode=0666,max=2 none /dev/pts"
        " && mount --bind /dev/pts/ptmx /dev/ptmx"
    )

    async def main() -> None:
        async with a_sandbox_where(setup, tmp_path, monkeypatch) as sandbox:
            held = [await sandbox.start(in_terminal("sleep", "300")) for _ in range(2)]
            for _ in range(3):
                with pytest.raises(LimitError, match="no terminal could be opened") as caught:
                    await sandbox.exec(in_terminal("true"))
                assert caught.value.limit == "terminals"
            await held[0].kill()
            await held[0].wait()
            await is_sound(sandbox)

    anyio.run(main)
