"""Sandboxes that are up before they are asked for, each for one command.

They are started and heard of in the spawner's thread; whatever else can be done before somebody
waits is done on the event loop when one has come up.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial

from ..errors import SandboxError
from ..warden.boot import Boot
from ..warden.connection import Connection
from ..warden.sandbox import WardenSandbox
from ..warden.spawner import submit
from ..warden.stream import asyncio_loop

__all__ = ("Spares",)

_MAX_AGE = 1800.0
_START_TIMEOUT = 2.0
_REFILL_DELAY = 0.005  # a spare is made after the command that took one has begun


class Spares:
    """The spares of one backend. Made on the event loop on which they are taken.

    Args:
        start: Starts one, in the spawner's thread.
        adopt: Makes a sandbox of one that is fresh and its connection.
    """

    def __init__(
        self, start: Callable[[], Boot], adopt: Callable[[Boot, Connection], WardenSandbox]
    ) -> None:
        self._start = start
        self._adopt = adopt
        self._loop = asyncio_loop()
        self._boots: deque[Boot] = deque()
        self._adopted: dict[Boot, WardenSandbox] = {}
        self._missing = 0
        self._closed = False

    def fill(self, count: int) -> None:
        """Have so many more made, in the background."""
        for _ in range(count):
            submit(self._add)

    @property
    def is_ready(self) -> bool:
        """Whether one can be taken at once."""
        return any(boot.is_fresh(_MAX_AGE) for boot in list(self._adopted or self._boots))

    def _add(self) -> None:
        if not self._closed:
            boot = self._start()
            self._boots.append(boot)
            submit(partial(self._hear, boot))

    def _hear(self, boot: Boot) -> None:
        boot.await_hello(_START_TIMEOUT)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._prepare, boot)

    def _prepare(self, boot: Boot) -> None:
        if boot in self._boots and boot.is_fresh(_MAX_AGE):
            self._adopted_of(boot)

    def _adopted_of(self, boot: Boot) -> WardenSandbox | None:
        """Return the sandbox of a fresh one; one that can't be used is ended."""
        if boot not in self._adopted:
            try:
                self._adopted[boot] = self._adopt(boot, boot.connect_now(self._loop))
            except SandboxError:  # whoever needs one makes it, and is told what is wrong
                self._drop(boot)
        return self._adopted.get(boot)

    def _drop(self, boot: Boot) -> None:
        self._remove(boot)
        boot.abandon()

    def _remove(self, boot: Boot) -> None:
        self._boots.remove(boot)
        self._adopted.pop(boot, None)
        self._missing += 1

    def take(self) -> WardenSandbox | None:
        """Return one that is up, if there is one, and see to it that there will be another."""
        found = None
        for boot in list(self._boots):
            if boot.is_fresh(_MAX_AGE):
                if (found := self._adopted_of(boot)) is not None:
                    self._remove(boot)
                    break
            elif boot.is_dead(_MAX_AGE):
                self._drop(boot)
        if self._missing:
            self._refill()
        return found

    def _refill(self) -> None:
        """Have spares made, a moment later: now it would take the processor from the command."""
        count, self._missing = self._missing, 0
        if self._loop is None:
            self.fill(count)
        else:
            self._loop.call_later(_REFILL_DELAY, self.fill, count)

    def stop(self) -> None:
        """Let no more be made."""
        self._closed = True

    def abandon(self) -> None:
        """End all that there are, in the background."""
        while self._boots:
            self._drop(self._boots[0])
