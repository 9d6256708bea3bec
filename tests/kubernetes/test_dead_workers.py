"""Workers of one namespace that are killed at any moment, each with sessions that go on."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import anyio
import pytest

from ringfence import inventory
from scripts.services.kubernetes import Kubernetes
from scripts.services.steps import until

from ..machine import processes_with
from ..own_places import own_places
from ..sessions import test_sudden_deaths
from ..sessions.test_sudden_deaths import Worker, ended, one_sweep
from .conftest import PATIENCE, Cluster
from .pods import config, names, nothing_left, pods

__all__ = ("own_places",)

pytestmark = pytest.mark.timeout(5 * PATIENCE)

WORKERS, KILLS = 3, 3
KEPT = ("kube-root-ca.crt", "ringfence-warden-")
"""ConfigMaps that stay: the namespace's own, and the warden's binary."""


@pytest.fixture(autouse=True)
def owner(own_places: Path) -> None:
    """Be an owner already: its file stays open from the first time to the end of this process."""
    inventory.owner()


def test_one_sweep_takes_what_killed_workers_left_and_nothing_of_live_ones(
    cluster: Cluster,
    namespace: str,
    own_parts: Kubernetes,
    own_places: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = json.loads(config(cluster, namespace).model_dump_json(exclude_defaults=True))
    text = json.dumps({"backend": "kubernetes", **settings})
    monkeypatch.setitem(test_sudden_deaths.CONFIGS, "kubernetes", text)
    mark = f"86394.{random.randrange(10**9)}"
    every: list[Worker] = []

    def start() -> Worker:
        every.append(Worker("kubernetes", mark, own_places))
        return every[-1]

    with ended(every):
        live = [start() for _ in range(WORKERS)]
        for _ in range(KILLS):
            victim = live.pop(random.randrange(len(live)))
            assert victim.ready.wait(PATIENCE)
            time.sleep(random.uniform(0, 6))  # at any moment: while pods are made, or used
            victim.end(signal.SIGKILL)
            live.append(start())
        for worker in live:  # those that were there all the time, and those that came after
            until(lambda one=worker: one.done >= 2, seconds=PATIENCE, what="two sessions")  # type: ignore[misc]
        until(lambda: bool(names(cluster, namespace, "jobs")), seconds=PATIENCE, what="a sandbox")
        for worker in live:
            worker.end(signal.SIGKILL)
    assert [fault for worker in every for fault in worker.faults] == []

    anyio.run(one_sweep, pods(cluster, namespace))
    assert names(cluster, namespace, "jobs") == []
    assert names(cluster, namespace, "leases") == []
    kept = names(cluster, namespace, "configmaps")
    assert [name for name in kept if not name.startswith(KEPT)] == []
    assert [found for found in inventory.scan() if not found.alive] == []
    nothing_left(cluster, namespace)
    until(lambda: not processes_with(mark), seconds=PATIENCE, what="no process of theirs")
