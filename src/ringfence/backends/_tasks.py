"""What goes on behind the callers' backs, and is finished before the backend is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

__all__ = ("Tasks",)

_log = logging.getLogger(__name__)
_DRAIN_SECONDS = 20.0


class Tasks:
    """Tasks that nobody waits for, or not for ever.

    Args:
        about: What they are done for, to be named where one fails: `a container`.
    """

    def __init__(self, about: str) -> None:
        self._about = about
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done; `drain` waits for it."""
        self._keep(asyncio.get_running_loop().create_task(work))

    def task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """As `spawn`, for who wants to wait for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._keep(task)
        return task

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("what was left to do for %s failed", self._about, exc_info=error)

    async def drain(self, seconds: float = _DRAIN_SECONDS) -> None:
        """Wait until nothing is left to do, and end what takes too long."""
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)
        left = set(self._running)
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
