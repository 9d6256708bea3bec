"""Sandboxes made, used and closed in a row: how fast, and that nothing of them stays."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from ringfence import cgroups, inventory
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.process import ProcessBackend
from ringfence.warden.spawner import drain

from ..measure import check, summarize
from ..processes import descendants
from ..report import Line
from ..settings import Settings
from .many import patient_config

__all__ = ("run",)


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure both backends, and look for processes, descriptors, mounts, cgroups and files."""
    count = settings.rounds(1000, 10)
    return [
        await _row(BubblewrapBackend(patient_config()), count),
        await _row(ProcessBackend(), count // 5),
    ]


async def _row(backend: BubblewrapBackend | ProcessBackend, count: int) -> Line:
    took = []
    names = []
    async with backend:
        async with await backend.create() as first:  # what is made once is no left-over
            await first.exec("/bin/true")
        await drain()  # the outer process and the cgroup are freed in the background
        before = _held()
        began = time.perf_counter()
        for _ in range(count):
            gone = time.perf_counter()
            async with await backend.create() as sandbox:
                names.append(sandbox.id)
                result = await sandbox.exec("/bin/true")
                check(result.ok, f"one of {count} ended with {result.exit_code}")
            took.append(time.perf_counter() - gone)
        whole = time.perf_counter() - began
        await drain()
        _check(before, _held())
    left = list(_traces(names))
    check(not left, f"{count} sandboxes left {left[:5]}")
    note = f"{count / whole:.0f} a second; no process, descriptor, mount, cgroup or file was left"
    return Line(f"{backend.name}: create(), exec and aclose()", summarize(took), note=note)


def _held() -> dict[str, set[str]]:
    """Return what this process holds that a sandbox could leave with it."""
    mounts = Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines()
    return {
        "processes": set(map(str, descendants(os.getpid()))),
        "descriptors": set(os.listdir("/proc/self/fd")),
        "mounts": {line for line in mounts if "ringfence" in line},
    }


def _check(before: dict[str, set[str]], after: dict[str, set[str]]) -> None:
    for what, held in after.items():
        more = held - before[what]
        # A descriptor's number says nothing; their count does.
        gained = len(held) > len(before[what]) if what == "descriptors" else bool(more)
        check(not gained, f"{what} were left: {sorted(more)[:5]}")


def _traces(names: Iterable[str]) -> Iterable[str]:
    """Yield the paths that bear the name of a sandbox that is closed."""
    wanted = set(names)
    found = cgroups.probe()
    parents = set(found.parents.values()) if isinstance(found, cgroups.Hierarchy) else set()
    for parent in parents:
        yield from (f"{parent}/{name}" for name in os.listdir(parent) if name in wanted)
    yield from (item.entry.id for item in inventory.scan() if item.entry.id in wanted)
    temporary = tempfile.gettempdir()
    for name in os.listdir(temporary):
        if name.startswith("ringfence-") and any(one in name for one in wanted):
            yield f"{temporary}/{name}"
