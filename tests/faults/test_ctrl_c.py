"""Ctrl-C in the host's terminal is for the host alone: what it holds goes on until it says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import usable

pytestmark = [pytest.mark.slow]

# A terminal sends Ctrl-C to the whole group of the program in front. This one takes no notice.
SENDS_CTRL_C = """
import os, signal, sys
import anyio
from ringfence.config import BackendConfig
from ringfence.models import Command
from ringfence.registry import open_backend

SAY = Command(["sh", "-c", "echo alive"])

async def main(name):
    async with open_backend(BackendConfig(backend=name)) as backend:
        async with await backend.create() as sandbox:
            await anyio.sleep(0.3)  # what is made ahead is up then
            for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGINT):
                os.killpg(0, number)
                print((await sandbox.exec(SAY)).stdout.decode().strip())
        print((await backend.execute(SAY)).stdout.decode().strip())

signal.signal(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGTSTP, lambda *_: None)
anyio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize("name", ["process", "bubblewrap"])
def test_signals_of_the_hosts_terminal_do_not_reach_a_sandbox(name: str) -> None:
    usable(name)
    done = subprocess.run(
        [sys.executable, "-c", SENDS_CTRL_C, name],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["alive"] * 4
