"""The process backend, against asyncio's own way to run a process."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

from ringfence.backends.process import ProcessBackend
from ringfence.config import ProcessConfig

from ..floors import SPAWN, spawn_on_host
from ..measure import TOTAL, Side, Times, alternate, check
from ..report import Line, compare
from ..settings import Settings
from .live import exec_side

__all__ = ("run",)

_AT_ONCE = 16
_ASYNCIO = "asyncio.create_subprocess_exec"


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure latency and throughput of `/bin/true`."""
    rounds, crowds = settings.rounds(400, 5), settings.rounds(20)
    with tempfile.TemporaryDirectory() as work_dir:
        config = ProcessConfig(work_dir=Path(work_dir))
        async with ProcessBackend(config) as backend, await backend.create() as sandbox:

            async def execute() -> None:
                result = await backend.execute("/bin/true")
                check(result.ok and not result.stdout, f"execute() gave {result}")

            async def run_exec() -> None:
                result = await sandbox.exec("/bin/true")
                check(result.ok and not result.stdout, f"exec() gave {result}")

            live = exec_side(sandbox, ["/bin/true"])
            sides = {"live": live, "one-shot": one(execute), _ASYNCIO: one(run_bare)}
            taken = await alternate(sides, rounds, warm_up=5)
            crowd = await alternate(
                {"ours": many(run_exec), _ASYNCIO: many(run_bare), SPAWN: spawn_many},
                crowds,
                pause=0.05,
            )
    bare, floor = taken[_ASYNCIO], crowd.pop(SPAWN)
    what = f"{_COMMANDS} commands, {_AT_ONCE} at once"
    return [
        compare("exec in a live sandbox", {"ours": taken["live"], _ASYNCIO: bare}, limit=0.8),
        compare(
            "execute() with work_dir set", {"ours": taken["one-shot"], _ASYNCIO: bare}, limit=0.8
        ),
        compare(
            what,
            crowd,
            limit=0.5,
            note="half of the time is twice the throughput",
        ),
        compare(what, {"ours": crowd["ours"], SPAWN: floor}),
    ]


_COMMANDS = 8 * _AT_ONCE


async def run_bare() -> None:
    """Run `/bin/true` with its output caught, as asyncio's manual shows."""
    process = await asyncio.create_subprocess_exec(
        "/bin/true",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    check(process.returncode == 0 and not stdout + stderr, f"asyncio: {process.returncode}")


def one(command: Callable[[], Awaitable[None]]) -> Side:
    """Return a side that runs a command once."""

    async def side() -> Times:
        began = time.perf_counter()
        await command()
        return {TOTAL: time.perf_counter() - began}

    return side


async def spawn_many() -> Times:
    return spawn_on_host("/bin/true", _COMMANDS, _AT_ONCE)


def many(command: Callable[[], Awaitable[None]]) -> Side:
    """Return a side that runs a command many times, some at once."""

    async def worker() -> None:
        for _ in range(_COMMANDS // _AT_ONCE):
            await command()

    async def side() -> Times:
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(_AT_ONCE):
                group.start_soon(worker)
        return {TOTAL: time.perf_counter() - began}

    return side
