"""Time to first command done: in sequence, staggered, and in a burst."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from statistics import median

import anyio

from ringfence.backend import Backend
from ringfence.backends.bubblewrap import BubblewrapBackend

from ..floors import OneShots, one_shots
from ..hardening import check_one_shots, check_sandbox
from ..measure import check, percentile, ratios, summarize
from ..report import Line
from ..settings import Settings
from .many import patient_config

__all__ = ("run",)

_STAGGER = 0.1  # seconds between two starts

One = Callable[[], Awaitable[float]]
"""Makes a sandbox and runs a command in it, then clears it away; returns the seconds to the end of
the command."""


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure `create()` and a first command, all cold, against one-shot bwraps alike."""
    with one_shots() as bwrap:
        check_one_shots(bwrap)
        async with BubblewrapBackend(patient_config()) as backend:
            async with await backend.create() as sandbox:
                await check_sandbox(sandbox)
            sides = {"ours": ours(backend), "one-shot bwraps, no cgroup": theirs(bwrap)}
            return [
                await _line("in sequence", sides, settings, settings.rounds(50), 1),
                await _line(
                    f"staggered by {_STAGGER * 1e3:.0f} ms",
                    sides,
                    settings,
                    settings.rounds(5, 1),
                    settings.rounds(20, 5),
                    apart=_STAGGER,
                ),
                await _line(
                    "in a burst", sides, settings, settings.rounds(3, 1), settings.rounds(100, 10)
                ),
            ]


def ours(backend: Backend) -> One:
    async def one() -> float:
        began = time.perf_counter()
        async with await backend.create() as sandbox:
            result = await sandbox.exec("/bin/true")
            took = time.perf_counter() - began
        check(result.ok, f"a first command ended with {result.exit_code}")
        return took

    return one


def theirs(bwrap: OneShots) -> One:
    async def one() -> float:
        began = time.perf_counter()
        await bwrap.start_true()
        return time.perf_counter() - began

    return one


async def _started(one: One, count: int, apart: float) -> list[float]:
    """Start many, seconds apart or all at once, and return what each took."""
    took: list[float] = []

    async def run_one() -> None:
        took.append(await one())

    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(run_one)
            if apart:
                await anyio.sleep(apart)
    return took


async def _line(
    how: str,
    sides: dict[str, One],
    settings: Settings,
    rounds: int,
    count: int,
    apart: float = 0.0,
) -> Line:
    """Measure rounds of `count`, the sides in turn; the ratio is of each round's medians."""
    took: dict[str, list[float]] = {name: [] for name in sides}
    medians: dict[str, list[float]] = {name: [] for name in sides}
    walls: list[float] = []
    for _ in range(rounds):
        for name, one in sides.items():
            await anyio.sleep(settings.pause * min(10, count))
            began = time.perf_counter()
            found = await _started(one, count, apart)
            if name == "ours":
                walls.append(time.perf_counter() - began)
            took[name] += found
            medians[name].append(median(found))
    first, against = took["ours"], next(name for name in took if name != "ours")
    note = f"p99 {percentile(first, 0.99) * 1e3:.1f} ms, and {against} "
    note += f"{percentile(took[against], 0.99) * 1e3:.1f} ms; {len(first)} of {rounds * count} "
    note += "succeeded"
    if count > 1 and not apart:
        note += f"; a round took {median(walls):.2f} s with closing"
    return Line(
        f"{rounds * count} {how}" if rounds == 1 or count == 1 else f"{rounds} x {count} {how}",
        summarize(first),
        against=against,
        other=summarize(took[against]),
        ratio=summarize(ratios(medians["ours"], medians[against])),
        note=note,
    )
