"""The warden never signals everybody outside of a PID namespace of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from . import wire
from .conftest import Build
from .trees import hostile_program
from .wire import RawWarden

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(300)]

# Ends whatever calls kill(-1, ...) with SIGSYS, and then becomes the program that is named.
FORBID_KILL_ALL = """
import ctypes, os, platform, struct, sys
kill = {"x86_64": 62, "aarch64": 129}[platform.machine()]
program = b"".join(
    struct.pack("<HBBI", *step)
    for step in (
        (0x20, 0, 0, 0),  # the call's number
        (0x15, 0, 3, kill),
        (0x20, 0, 0, 16),  # its first argument, the low half
        (0x15, 0, 1, 0xFFFFFFFF),
        (0x06, 0, 0, 0x80000000),  # end the process
        (0x06, 0, 0, 0x7FFF0000),  # go on
    )
)
buffer = ctypes.create_string_buffer(program)
filter = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", 6, ctypes.addressof(buffer)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, filter, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def forbidding(tmp_path: Path, build: Build) -> str:
    """Return a program that is the warden, under a filter."""
    script = tmp_path / "forbid.py"
    script.write_text(FORBID_KILL_ALL)
    starter = tmp_path / "starter"
    starter.write_text(f'#!/bin/sh\nexec {sys.executable} {script} {build.path} "$@"\n')
    starter.chmod(0o755)
    return str(starter)


def test_the_filter_would_tell(tmp_path: Path) -> None:
    """Signal 0 reaches nobody, so this is harmless where the filter does not work."""
    script = tmp_path / "forbid.py"
    script.write_text(FORBID_KILL_ALL)
    call = [sys.executable, str(script), sys.executable, "-c", "import os; os.kill(-1, 0)"]
    assert subprocess.run(call).returncode == -signal.SIGSYS
    call[-1] = "import os; os.kill(os.getpid(), 0)"
    assert subprocess.run(call).returncode == 0


def test_kills_reach_nobody_else(forbidding: str, workspace: Path) -> None:
    program = workspace / "hostile"
    program.write_bytes(hostile_program())
    program.chmod(0o755)
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        with RawWarden(forbidding, workspace) as raw:
            raw.expect(wire.HELLO)
            for channel in range(1, 51):
                kind = (b"daemons", b"ignoring", b"zombies", b"threads", b"execs")[channel % 5]
                raw.send(wire.start(channel, [b"./hostile", kind, b"mark"]))
                while (found := raw.next_frame()) and found[0] != wire.STDOUT:
                    pass
                raw.send(wire.kill(channel))
                assert raw.until_exit(channel).kill_incomplete == 0
        assert raw.process.returncode == 0, "the filter has ended it"
        told = os.WSTOPPED | os.WCONTINUED | os.WEXITED | os.WNOHANG
        assert os.waitid(os.P_PID, bystander.pid, told) is None, "the bystander was signalled"
    finally:
        bystander.kill()
        bystander.wait()
