"""A worker that is killed with sandboxes alive; and whatever is not its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ..machine import processes_with, until_gone
from .conftest import MINIMAL, containers
from .seen import LABEL, Left, Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

MARK = "86397.75"

PROGRAM = """
import json, sys
import anyio
from ringfence import inventory
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.models import Command

async def main(settings, marker):
    config = ContainerConfig.model_validate(json.loads(settings))
    async with ContainerBackend(config) as backend:
        boxes = [await backend.create() for _ in range(3)]
        for box in boxes:
            await box.start(Command(("sleep", marker), timeout=200))
        print(json.dumps([inventory.store_id(), *(box.id for box in boxes)]), flush=True)
        await anyio.sleep(600)

anyio.run(main, *sys.argv[1:])
"""


def started(socket: str, **environment: str) -> tuple[subprocess.Popen[bytes], list[str]]:
    """Start a worker with three sandboxes and return it, its store and their names."""
    settings = json.dumps({"image": MINIMAL, "socket_path": socket})
    worker = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, settings, MARK],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert worker.stdout is not None
    return worker, json.loads(worker.stdout.readline())


@pytest.fixture
def foreign(seen: Seen) -> Iterator[str]:
    """A container of somebody else's, with a name and labels like ours."""
    name = "rf-0123456789ab"
    labels = {f"{LABEL}sandbox": name, f"{LABEL}owner": "1@elsewhere"}
    body = {"Image": MINIMAL, "Cmd": ["true"], "Labels": labels}
    seen.call("POST", "/containers/create", body, name=name)
    yield name
    assert seen.inspect(name) is not None
    seen.remove(name)


def test_a_killed_worker_s_sandboxes_end(seen: Seen, foreign: str) -> None:
    """They end by themselves or with the next backend that is opened, and others' stay."""
    worker, (store, *names) = started(seen.socket)
    try:
        assert len(seen.left(store).containers) == 3
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.communicate()

    async def main() -> None:
        async with containers(seen.socket) as backend:
            await backend.execute("true")

    anyio.run(main)
    seen.nothing_left()
    assert [seen.inspect(name) for name in names] == [None] * 3
    assert not until_gone(processes_with(MARK))


def test_another_store_s_sandboxes_are_left_alone(seen: Seen, foreign: str, tmp_path: Path) -> None:
    """Somebody else's inventory can't be read from here: who lives in it is not known."""
    worker, (store, *names) = started(seen.socket, RINGFENCE_STATE_DIR=str(tmp_path / "state"))
    try:

        async def main() -> None:
            async with containers(seen.socket) as backend:
                await backend.execute("true")
                assert await backend.reap() == 0

        anyio.run(main)
        assert seen.left() == Left()
        assert seen.left(store).containers == tuple(sorted(names))
        assert len(processes_with(MARK)) >= 3
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate()
        for name in names:  # they end by themselves, later
            seen.remove_quietly(name)
    assert not until_gone(processes_with(MARK))
