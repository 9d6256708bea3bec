"""What a manager looks for now and then: what must end, and what dead workers have left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from ..errors import SandboxError
from .home import Home
from .session import Session

__all__ = ("LOOK_SECONDS", "Sweep", "each")

_log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often sessions are looked at; a look at one that need not end costs a microsecond."""

CLOSED_AFTER = 3600.0
"""Seconds without use and without a sandbox, after which a session is forgotten."""

_SWEEPS_PER_TTL = 2
_AT_ONCE = 16


class Sweep:
    """Ends sessions that are overdue, and reaps, until it is stopped.

    Args:
        home: Whose sessions.
        sessions: Those that there are, by whatever key.
        look_seconds: How often they are looked at.
    """

    def __init__(
        self, home: Home, sessions: Mapping[tuple[str, str], Session], look_seconds: float
    ) -> None:
        self._home = home
        self._sessions = sessions
        self._look_seconds = look_seconds

    async def run(self, stop: anyio.Event) -> None:
        """Look, and look again, until the event is set."""
        pause = self._home.store.ttl / _SWEEPS_PER_TTL
        with anyio.CancelScope(shield=True):
            due = anyio.current_time() + pause
            while not stop.is_set():
                with anyio.move_on_after(self._look_seconds):
                    await stop.wait()
                    return
                await self._end_overdue()
                if anyio.current_time() >= due:
                    await self._reap()
                    due = anyio.current_time() + pause

    async def _end_overdue(self) -> None:
        now = time.monotonic()
        sessions = list(self._sessions.values())
        await each([one for one in sessions if one.overdue(now)], Session.end_if_overdue)
        # Who still has one of these is told that it is closed, and asks for it again.
        old = [one for one in sessions if one.hold is None and now - one.last_used >= CLOSED_AFTER]
        await each(old, Session.aclose)

    async def _reap(self) -> None:
        try:
            await self._home.reap()
        except SandboxError as error:
            _log.warning("what dead workers left could not be removed: %s", error)
        known = {session.hold for session in self._sessions.values() if session.hold}
        await self._home.release_orphans(known)


async def each(sessions: list[Session], action: Callable[[Session], Any]) -> None:
    """Do something to several sessions at once, and let one's fault be no other's."""
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def one(session: Session) -> None:
        async with limit:
            try:
                await action(session)
            except SandboxError as error:
                _log.warning("the sandbox of %r did not end well: %s", session, error)

    async with anyio.create_task_group() as group:
        for session in sessions:
            group.start_soon(one, session)
