"""Many sandboxes at once, and whether one costs the same beside many others."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio

from ringfence.backend import Backend, Sandbox
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.config import BubblewrapConfig

from ..floors import OneShots, one_shots
from ..hardening import check_one_shots, check_sandbox
from ..measure import TOTAL, Side, Times, alternate, check, ratios, summarize
from ..report import Line, compare
from ..settings import Settings

__all__ = ("patient_config", "run")

_FLAT = 1.5  # the most that one may cost beside 200, over what it costs beside none


def patient_config() -> BubblewrapConfig:
    """Return settings with which a slow machine is slow, and no failure."""
    return BubblewrapConfig(spares=0, start_timeout=120.0)


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure a crowd against as many one-shot bwraps in sequence, and the cost as it grows."""
    count = 10 if settings.quick else 200
    with one_shots() as bwrap:
        check_one_shots(bwrap)
        async with BubblewrapBackend(patient_config()) as backend:
            taken = await alternate(
                {
                    "ours": crowd_side(backend, count),
                    f"{count} hardened one-shot bwraps in sequence": sequence_side(bwrap, count),
                },
                settings.rounds(3, 1),
                pause=settings.pause * 10,
                warm_up=0,
            )
            lines = await _growth(settings, backend, count)
    note = f"all {count} succeeded in every round; the total includes closing them"
    return [compare(f"{count} opened, used and closed", taken, limit=1.0, note=note), *lines]


def crowd_side(backend: Backend, count: int) -> Side:
    """Return a side that has many sandboxes open at the same time and uses each."""

    async def side() -> Times:
        sandboxes: list[Sandbox] = []

        async def open_one() -> None:
            sandboxes.append(await backend.create())

        async def use(sandbox: Sandbox) -> None:
            result = await sandbox.exec("/bin/true")
            check(result.ok, f"one of {count} ended with {result.exit_code}")

        began = time.perf_counter()
        try:
            async with anyio.create_task_group() as group:
                for _ in range(count):
                    group.start_soon(open_one)
            opened = time.perf_counter()
            async with anyio.create_task_group() as group:
                for sandbox in sandboxes:
                    group.start_soon(use, sandbox)
            used = time.perf_counter()
            await check_sandbox(sandboxes[-1])
            checked = time.perf_counter()
        finally:
            async with anyio.create_task_group() as group:
                for sandbox in sandboxes:
                    group.start_soon(sandbox.aclose)
        closed = time.perf_counter()
        check(len(sandboxes) == count, f"{len(sandboxes)} of {count} could be opened")
        parts = {"open": opened - began, "use": used - opened, "close": closed - checked}
        return {TOTAL: sum(parts.values()), **parts}

    return side


def sequence_side(bwrap: OneShots, count: int) -> Side:
    """Return a side that runs as many one-shot bwraps, one after the other."""

    async def side() -> Times:
        return {TOTAL: sum(bwrap.run_true()[TOTAL] for _ in range(count))}

    return side


async def _growth(settings: Settings, backend: Backend, count: int) -> list[Line]:
    """Measure what making and using one more takes beside ever more live ones."""
    levels = [1, count // 4, count // 2, count]
    goes = settings.rounds(30)
    times: dict[int, list[float]] = {}
    async with AsyncExitStack() as stack:
        live = 0
        for level in levels:
            while live < level - 1:
                await stack.enter_async_context(await backend.create())
                live += 1
            await anyio.sleep(settings.pause * 5)
            times[level] = []
            for _ in range(goes):
                began = time.perf_counter()
                async with await backend.create() as sandbox:
                    result = await sandbox.exec("/bin/true")
                    times[level].append(time.perf_counter() - began)
                    check(result.ok, f"beside {live} others, one ended with {result.exit_code}")
                await anyio.sleep(settings.pause)
    first = times[levels[0]]
    return [
        Line(
            f"create() and exec as one of {level}",
            summarize(times[level]),
            against="as the only one" if level > 1 else "",
            other=summarize(first) if level > 1 else None,
            ratio=summarize(ratios(times[level], first)) if level > 1 else None,
            limit=_FLAT if level == count else None,
        )
        for level in levels
    ]
