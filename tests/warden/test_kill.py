"""No tree survives its kill, and nobody beside it notices."""

from __future__ import annotations

import os

import anyio
import pytest

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.process import ProcessBackend
from ringfence.config import BubblewrapConfig, ProcessConfig

from .trees import LIMITS, kill_many

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(600)]

TRIALS = int(os.environ.get("RINGFENCE_TEST_KILLS", "200"))

KINDS = (
    "children",
    "sessions",
    "daemons",
    "ignoring",
    "trapping",
    "bomb",
    "hoppers",
    "stopped",
    "keeper-killer",
    "keeper-stopper",
    "threads",
    "headless",
    "zombies",
    "execs",
    "wakers",
    "vforks",
    "traced",
)
# Without a PID namespace a tree that forks faster than it can be walked can get away.
OUTRUNNING = {"bomb", "hoppers", "stopped", "keeper-killer", "headless", "trapping", "wakers"}
# Each takes all of the processors that it is given, and what is killed beside it has to wait.
SPINNING = {"bomb", "hoppers", "headless"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_tree_survives_in_a_jail(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def kill() -> None:
        async with BubblewrapBackend(BubblewrapConfig(spares=0)) as backend:
            side_by_side = 2 if kind in SPINNING else 4
            trials = await kill_many(backend, kind, TRIALS, side_by_side=side_by_side)
        with capsys.disabled():
            print(f"\n  bubblewrap {trials}", end="")

    anyio.run(kill)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OUTRUNNING])
def test_no_tree_that_can_be_walked_survives_as_processes(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def kill() -> None:
        config = ProcessConfig(kill_grace=LIMITS.kill_grace)
        async with ProcessBackend(config) as backend:
            trials = await kill_many(backend, kind, TRIALS)
        with capsys.disabled():
            print(f"\n  process {trials}", end="")

    anyio.run(kill)
