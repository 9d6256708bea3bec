"""What a sandbox costs in memory while nothing runs in it."""

from __future__ import annotations

import anyio

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.config import BubblewrapConfig

from ..hardening import check_sandbox
from ..measure import check, summarize
from ..processes import pss_mib, sandbox_pids
from ..report import Line
from ..settings import Settings

__all__ = ("run",)

_LIMIT = 1.0  # MiB


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure the proportional share (PSS) of all of a sandbox's processes together."""
    found = []
    processes = 0
    async with BubblewrapBackend(BubblewrapConfig(spares=0)) as backend:
        for _ in range(settings.rounds(10)):
            async with await backend.create() as sandbox:
                await check_sandbox(sandbox)  # and it has run something
                await anyio.sleep(settings.pause)
                pids = sandbox_pids(sandbox.id)
                check(len(pids) >= 2, f"a sandbox has its bwrap and its warden, not {pids}")
                processes = len(pids)
                try:
                    found.append(sum(map(pss_mib, pids)))
                except PermissionError:
                    not_run.append("a sandbox's memory: only root may read a warden's")
                    return []
    note = f"PSS of {processes} processes together, after a command; one sandbox alive"
    return [
        Line("an idle live sandbox", summarize(found), unit="MiB", limit=_LIMIT, note=note),
    ]
