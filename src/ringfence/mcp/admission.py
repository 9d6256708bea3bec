"""How many calls run at a time, and how many may wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from ..errors import LimitError

__all__ = ("Admission",)


class Admission:
    """Lets a number of calls run, lets some more wait in their order, and refuses the rest.

    Args:
        at_once: How many run.
        waiting: How many wait.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._at_once = at_once
        self._waiting = waiting
        self._inside = 0
        self._free = anyio.Semaphore(at_once, fast_acquire=True)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place while a call runs; wait for one if need be.

        Raises:
            LimitError: As many wait as may.
        """
        if self._inside >= self._at_once + self._waiting:
            raise LimitError(
                "calls",
                f"{self._at_once} calls run and {self._waiting} wait, which is all that may",
                hint="wait for answers, and call again",
            )
        self._inside += 1
        try:
            async with self._free:
                yield
        finally:
            self._inside -= 1
