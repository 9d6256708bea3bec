"""When a host process dies at any moment, what it had is gone, and reaping finds the rest."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringfence import inventory

from ..machine import CGROUPS, new_mark, processes_with, until_gone
from .conftest import usable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Makes and closes sandboxes for ever, with something running in most of them.
BUSY = """
import sys
import anyio
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.process import ProcessBackend
from ringfence.models import Command

BACKENDS = {"bubblewrap": BubblewrapBackend, "process": ProcessBackend}

async def worker(backend, mark):
    while True:
        async with await backend.create() as sandbox:
            await sandbox.start(Command(["sh", "-c", f"(setsid sleep {mark} &) ; sleep {mark}"]))
            await sandbox.write_file("x", b"x" * 100_000)
            await sandbox.exec("true")
            await backend.execute("true")

async def main(name, mark):
    async with BACKENDS[name]() as backend, anyio.create_task_group() as group:
        print("ready", flush=True)
        for _ in range(3):
            group.start_soon(worker, backend, mark)

anyio.run(main, *sys.argv[1:])
"""


@pytest.mark.parametrize("name", ["process", "bubblewrap"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_host_that_dies_at_any_moment(
    name: str, number: signal.Signals, own_places: Path
) -> None:
    usable(name)
    rng = random.Random()
    for _ in range(8):
        mark = new_mark()
        with subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", BUSY, name, mark],
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(own_places / "tmp")},
        ) as host:
            assert host.stdout is not None
            assert host.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0, 0.3))
            host.send_signal(number)
        assert until_gone(processes_with(mark)) == []
    inventory.reap()
    assert [found for found in inventory.scan() if not found.alive] == []
    assert remains(own_places) == []


def remains(place: Path) -> list[str]:
    """Return the directories of sandboxes that no live process of ours accounts for."""
    live = {found.entry.id for found in inventory.scan()}
    scratch = (place / "tmp").glob("ringfence-rf-*")
    return sorted(
        str(path)
        for path in (*scratch, *cgroups_of_ours())
        if not any(name in path.name for name in live)
    )


def cgroups_of_ours() -> list[Path]:
    found: list[Path] = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if path == "/":  # others' are there too
            continue
        for controller in controllers.split(","):
            found += (CGROUPS / controller / path.strip("/") / "ringfence").glob("rf-*")
    return found
