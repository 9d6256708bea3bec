"""What a session adds to a command: the same command in its sandbox and through it, in turn."""

from __future__ import annotations

import time
from statistics import median

from ringfence.backend import Sandbox
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.leases import MemoryLeases
from ringfence.models import Command
from ringfence.sessions import SessionManager

from ..measure import TOTAL, Side, Times, alternate, check, summarize, totals
from ..report import Line, compare
from ..settings import Settings

__all__ = ("run",)

_TRUE = Command(["/bin/true"])
_GROUPS = 10
_LIMIT = 0.0003  # seconds


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure `/bin/true`, with as many executions beside it as a busy worker has."""
    made: list[Sandbox] = []

    class Noted(BubblewrapBackend):
        async def _create(self, *args: object, **kwargs: object) -> Sandbox:
            made.append(await super()._create(*args, **kwargs))  # type: ignore[arg-type]
            return made[-1]

    async with Noted() as backend, SessionManager(backend, leases=MemoryLeases()) as sessions:
        session = sessions.session("measured", plan="enterprise")
        await session.ensure()
        inner = made[-1]
        for number in range(settings.rounds(50, 2)):
            await sessions.session(f"beside-{number}", plan="enterprise").ensure()
        taken = await alternate(
            {"ours": side(session), "its sandbox's own exec": side(inner)},
            settings.rounds(1000, 2 * _GROUPS),
            warm_up=5,
        )
    return [compare("exec of /bin/true through a session", taken), added(taken)]


def side(sandbox: Sandbox) -> Side:
    async def once() -> Times:
        began = time.perf_counter()
        result = await sandbox.exec(_TRUE)
        took = time.perf_counter() - began
        check(result.ok, f"true ended with {result.exit_code}")
        return {TOTAL: took}

    return once


def added(taken: dict[str, list[Times]]) -> Line:
    """Return what a session adds, as the median of each tenth of the rounds."""
    ours, other = (totals(times) for times in taken.values())
    more = [a - b for a, b in zip(ours, other, strict=True)]
    size = max(1, len(more) // _GROUPS)
    groups = [median(more[at : at + size]) for at in range(0, len(more), size)]
    return Line("what a session adds to exec", summarize(groups), limit=_LIMIT)
