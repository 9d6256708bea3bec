"""Workers that are killed at any moment: nothing of theirs stays, and nothing of others goes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ringfence import inventory
from ringfence.backend import Backend
from ringfence.export import read_manifest
from ringfence.export.manifest import MANIFEST
from ringfence.leases import SqliteLeases
from ringfence.registry import open_backend
from ringfence.sessions import SessionManager
from ringfence.storage import LocalStore
from scripts.services.engine import Engine

from ..container.seen import Left, Seen
from ..faults.conftest import usable
from ..faults.test_dead_hosts import remains
from ..machine import processes_with, until_gone
from .worker import CALLS, content

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONFIGS = {
    "bubblewrap": '{"backend": "bubblewrap"}',
    "process": '"process"',  # the name alone: a directory of its own for each sandbox
    "container": '{"backend": "container", "image": "ringfence-test:minimal"}',
}

STORE = "exported"
WORKERS = 3
KILLS = int(os.environ.get("RINGFENCE_TEST_KILLS", "10"))
"""How many workers are killed; each time another one takes its place."""


class Worker:
    """One worker process, and what it has said so far."""

    def __init__(self, backend: str, mark: str, place: Path) -> None:
        self.said: list[dict[str, Any]] = []
        self.ready = threading.Event()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-W", "ignore", "-m", "tests.sessions.worker"),
                *(CONFIGS[backend], mark, str(place / STORE)),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent.parent,
            env={**os.environ, "TMPDIR": str(place / "tmp")},
        )
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("}\n"):
                return  # it was killed while it spoke
            self.said.append(json.loads(line))
            if "ready" in self.said[-1]:
                self.ready.set()

    @property
    def done(self) -> int:
        return sum("done" in line for line in self.said)

    @property
    def faults(self) -> list[dict[str, Any]]:
        return [line for line in self.said if "fault" in line]

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait()
        self.listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def ended(workers: list[Worker]) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                worker.end(signal.SIGKILL)


BACKENDS = pytest.mark.parametrize(
    "name", ["bubblewrap", "process", pytest.param("container", marks=pytest.mark.container)]
)


@BACKENDS
def test_workers_that_are_killed_at_any_moment(name: str, own_places: Path) -> None:
    """Catches whatever is left behind, and any sweep that takes a live worker's sandbox."""
    factory = usable_backend(name)
    rng = random.Random()
    mark = f"86396.{rng.randrange(10**9)}"
    every: list[Worker] = []

    def start() -> Worker:
        every.append(Worker(name, mark, own_places))
        return every[-1]

    with ended(every):
        live = [start() for _ in range(WORKERS)]
        for _ in range(KILLS):
            victim = live.pop(rng.randrange(len(live)))
            assert victim.ready.wait(60)
            time.sleep(rng.uniform(0, 0.5))
            victim.end(signal.SIGKILL)
            live.append(start())
        progress(live)
        for worker in live:
            worker.end(signal.SIGKILL)
    assert [fault for worker in every for fault in worker.faults] == []
    anyio.run(one_sweep, factory())
    assert until_gone(processes_with(mark)) == []
    assert [found for found in inventory.scan() if not found.alive] == []
    nothing_left(name, own_places)
    anyio.run(exported_whole, own_places / STORE)


async def exported_whole(directory: Path) -> None:
    """Look at everything that was exported, also by workers that were killed while they did it."""
    store = LocalStore(directory)  # which removes what they had not finished
    files = [path for path in directory.rglob("*") if path.is_file()]
    prefixes = {path.parent for path in files if path.name == MANIFEST}
    assert prefixes
    for path in files:
        if path.name == MANIFEST:
            continue
        execution, name = path.parent.parent.name, path.name
        wanted = execution.encode() if name == "own" else content(execution, int(name[5:]))
        assert path.read_bytes() == wanted, path
    for prefix in prefixes:
        report = await read_manifest(store, str(prefix.relative_to(directory)))
        assert len(report.files) == CALLS + 1
        for file in report.files:
            assert (await store.head(file.key)).sha256 == file.sha256


def progress(workers: list[Worker]) -> None:
    """Wait until each of the last workers has brought sessions to their end."""
    deadline = time.monotonic() + 120
    while any(worker.done < 3 for worker in workers):
        assert time.monotonic() < deadline, [worker.said[-3:] for worker in workers]
        assert all(worker.process.poll() is None for worker in workers)
        time.sleep(0.05)


async def one_sweep(backend: Backend) -> None:
    """Open a manager, which sweeps once, and find no lease."""
    async with backend, SessionManager(backend) as sessions:
        store = SqliteLeases()
        assert store.live() == []
        assert store.take_over("somebody") == []
        store.close()
        assert (await sessions.exec("after", "echo ok")).stdout == b"ok\n"


def usable_backend(name: str) -> Callable[[], Backend]:
    if name != "container":
        return usable(name)
    return lambda: open_backend(json.loads(CONFIGS[name]))


def nothing_left(name: str, place: Path) -> None:
    assert remains(place) == []
    assert mounts_of_ours(place) == []
    if name == "container":
        seen = Seen(Engine().address.removeprefix("unix://"))
        deadline = time.monotonic() + 60
        while seen.left() != Left() and time.monotonic() < deadline:
            # The engine goes on with what a worker asked for before it died, maybe after a sweep.
            anyio.run(sweep, usable_backend(name)())
        seen.nothing_left()


async def sweep(backend: Backend) -> None:
    async with backend, SessionManager(backend) as sessions:
        await sessions.cleanup_stale()


def mounts_of_ours(place: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(place) in line]


@BACKENDS
def test_a_dead_worker_s_sandbox_is_reaped_and_a_live_one_s_is_not(
    name: str, own_places: Path
) -> None:
    """One manager looks while the other lives, and again when it has been killed."""
    factory = usable_backend(name)
    mark = f"86395.{random.randrange(10**9)}"
    worker = Worker(name, mark, own_places)
    with ended([worker]):
        assert worker.ready.wait(60)
        progress([worker])

        async def look() -> None:
            async with factory() as backend, SessionManager(backend) as sessions:
                for _ in range(3):
                    assert await sessions.cleanup_stale() == 0
                before = worker.done
                while worker.done < before + SESSIONS_MORE:
                    await anyio.sleep(0.05)
                assert worker.faults == []
                worker.end(signal.SIGKILL)
                await sessions.cleanup_stale()
                assert [found for found in inventory.scan() if not found.alive] == []

        anyio.run(look)
    assert until_gone(processes_with(mark)) == []
    nothing_left(name, own_places)


SESSIONS_MORE = 6
