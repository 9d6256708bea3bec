"""When the process that made a sandbox dies, nothing of the sandbox lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..machine import SOON, new_mark, processes_with, until_gone

PROGRAM = """
import sys
import anyio
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.process import ProcessBackend
from ringfence.models import Command

BACKENDS = {"bubblewrap": BubblewrapBackend, "process": ProcessBackend}

async def main(name, marker):
    async with BACKENDS[name]() as backend, await backend.create() as sandbox:
        script = f"(setsid sleep {marker} &) ; sleep {marker} & trap '' TERM; sleep {marker}; wait"
        await sandbox.start(Command(["sh", "-c", script]))
        print("started", flush=True)
        await backend.execute("sleep", [marker])

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.parametrize("name", ["process", "bubblewrap"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_its_host(name: str, number: signal.Signals, tmp_path: Path) -> None:
    marker = new_mark()
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, name, marker],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # files outlive a host that was killed
    ) as host:
        assert host.stdout
        assert host.stdout.readline() == b"started\n"
        deadline = time.monotonic() + SOON
        while len(_running(marker, host.pid)) < 4:
            assert time.monotonic() < deadline, "the commands did not start"
            time.sleep(0.05)
        host.send_signal(number)
        host.wait(SOON)
    assert until_gone(_running(marker, host.pid)) == []


def _running(marker: str, host: int) -> list[int]:
    return [pid for pid in processes_with(marker) if pid != host]
