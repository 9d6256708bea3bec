"""Who reaps in the very moment in which an owner dies must not get in the way of its wardens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence import inventory

from ..machine import new_mark, processes_with, until_gone
from .conftest import usable
from .test_dead_hosts import remains

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOST = """
import sys
import anyio
from ringfence.models import Command
from ringfence.registry import open_backend

async def main(name, mark):
    async with open_backend(name) as backend:
        for _ in range(4):
            sandbox = await backend.create()
            for _ in range(5):
                await sandbox.start(Command(["sh", "-c", f"(setsid sleep {mark} &); sleep {mark}"]))
        print("ready", flush=True)
        await anyio.sleep(100)

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.parametrize("name", ["process", "bubblewrap"])
def test_nothing_is_set_free(name: str, own_places: Path) -> None:
    """Catches a reaper that kills a warden while it is killing, and leaves a stopped tree."""
    usable(name)
    for _ in range(4):
        mark = new_mark()
        with subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", HOST, name, mark],
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(own_places / "tmp")},
        ) as host:
            assert host.stdout is not None
            assert host.stdout.readline() == b"ready\n"
            host.send_signal(signal.SIGKILL)
            host.wait()
            inventory.reap()
        assert until_gone(processes_with(mark)) == []
    assert remains(own_places) == []
