"""A sandbox made for one command, against a hardened one-shot bwrap of the same command."""

from __future__ import annotations

import subprocess
import time

import anyio

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.config import BubblewrapConfig
from ringfence.models import Command

from ..floors import OneShots, one_shots
from ..hardening import check_one_shots, check_sandbox
from ..measure import TOTAL, Side, Times, alternate, check
from ..report import Line, compare
from ..settings import Settings

__all__ = ("bwrap_side", "cold_side", "run", "spare_ready")

_SPARE_SECONDS = 10.0
_TRUE = Command(["/bin/true"])


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure a one-shot with a spare at hand, and a cold create with a command."""
    with one_shots() as bwrap:
        check_one_shots(bwrap)
        if bwrap.no_filter:
            not_run.append(f"the system call filter on the one-shot bwrap: {bwrap.no_filter}")
        spare = await _with_spare(settings, bwrap)
        return [*spare, await _cold(settings, bwrap)]


async def _with_spare(settings: Settings, bwrap: OneShots) -> list[Line]:
    sides = {"hardened one-shot bwrap": bwrap_side(bwrap), "bare bwrap": bare_side(bwrap)}
    async with BubblewrapBackend() as backend:
        await spare_ready(backend)
        async with await backend._one_shot(None) as sandbox:  # a spare, to look at from inside
            await check_sandbox(sandbox)
        taken = await alternate(
            {"ours": spare_side(backend), **sides}, settings.rounds(100), pause=settings.pause
        )
    what = "execute() with a spare at hand"
    bare = taken.pop("bare bwrap")
    return [
        compare(
            what,
            taken,
            limit=0.25,
            note="the spare is waited for between two goes; the empty sandbox is killed before the "
            "end, and cleared away after it",
        ),
        compare(
            what,
            {"ours": taken["ours"], "bare bwrap": bare},
            note="bwrap --unshare-all alone: no filter, no limits, no private uid, no file "
            "systems of its own but /proc and /dev",
        ),
    ]


async def _cold(settings: Settings, bwrap: OneShots) -> Line:
    async with BubblewrapBackend(BubblewrapConfig(spares=0)) as backend:
        async with await backend.create() as sandbox:
            await check_sandbox(sandbox)
        taken = await alternate(
            {"ours": cold_side(backend), "hardened one-shot bwrap": bwrap_side(bwrap)},
            settings.rounds(100),
            pause=settings.pause,
        )
    return compare(
        "create() and exec",
        taken,
        limit=1.5,
        note="aclose() is not in the total; a one-shot bwrap's end is",
    )


def spare_side(backend: BubblewrapBackend) -> Side:
    """Return a side that runs one command in a sandbox that is up already."""

    async def side() -> Times:
        await spare_ready(backend)
        began = time.perf_counter()
        result = await backend.execute(_TRUE)
        took = time.perf_counter() - began
        check(result.ok and not result.stdout, f"execute() gave {result}")
        return {TOTAL: took}

    return side


def cold_side(backend: BubblewrapBackend) -> Side:
    """Return a side that makes a sandbox and runs one command in it."""

    async def side() -> Times:
        began = time.perf_counter()
        sandbox = await backend.create()
        created = time.perf_counter()
        result = await sandbox.exec(_TRUE)
        done = time.perf_counter()
        await sandbox.aclose()
        closed = time.perf_counter()
        check(result.ok and not result.stdout, f"exec() gave {result}")
        return {
            TOTAL: done - began,
            "create": created - began,
            "exec": done - created,
            "aclose": closed - done,
        }

    return side


def bwrap_side(bwrap: OneShots) -> Side:
    """Return a side that runs one command in a hardened bwrap."""

    async def side() -> Times:
        return bwrap.run_true()

    return side


def bare_side(bwrap: OneShots) -> Side:
    """Return a side that runs one command in a bwrap with nothing but namespaces."""
    system = [word for option in bwrap.jail.system for word in option]
    argv = [bwrap.jail.bwrap, "--unshare-all", *system, "--proc", "/proc", "--dev", "/dev"]

    async def side() -> Times:
        began = time.perf_counter()
        done = subprocess.run([*argv, "/bin/true"], stdin=subprocess.DEVNULL, capture_output=True)
        took = time.perf_counter() - began
        check(done.returncode == 0, f"a bare bwrap failed: {done.stderr.decode()}")
        return {TOTAL: took}

    return side


async def spare_ready(backend: BubblewrapBackend) -> None:
    """Wait until a spare is up, which nothing public tells."""
    with anyio.fail_after(_SPARE_SECONDS):
        while backend._spares is None or not backend._spares.is_ready:
            await anyio.sleep(0.002)
