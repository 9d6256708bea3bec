"""Watches that nothing holds the event loop up."""

from __future__ import annotations

import contextlib
import threading
import time

import anyio

from . import _expect as expect

__all__ = ("Heartbeat",)

_BEAT = 0.01


class Heartbeat:
    """Requires the event loop to go on beating while the block runs.

    What a busy machine delays is not counted: that for which the loop's thread was ready to run and
    waited for a processor, as Linux tells, and what delays a thread that beats beside it.

    Args:
        longest: Seconds for which the loop may be held up.
        what: What is done in the block.
    """

    def __init__(self, longest: float, what: str) -> None:
        self._longest = longest
        self._what = what
        self._worst = 0.0
        self._last = 0.0
        self._machine_worst = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_beside, name="heartbeat")

    async def __aenter__(self) -> None:
        self._thread.start()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._last = _now()
        self._group.start_soon(self._beat)

    async def __aexit__(self, *exc: object) -> None:
        self._note(0.0)  # a loop that was never let go has not beaten at all
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        self._over.set()
        self._thread.join()
        if exc[0] is None:
            gap = f"{self._what} held the event loop for {self._worst:.2f} s"
            expect.true(self._worst < self._longest + self._machine_worst, gap)

    async def _beat(self) -> None:
        while True:
            await anyio.sleep(_BEAT)
            self._note(_BEAT)

    def _note(self, pause: float) -> None:
        now = _now()
        self._worst = max(self._worst, now - self._last - pause)
        self._last = now

    def _beat_beside(self) -> None:
        last = time.monotonic()
        while not self._over.wait(_BEAT):
            now = time.monotonic()
            self._machine_worst = max(self._machine_worst, now - last - _BEAT)
            last = now


def _now() -> float:
    """Return the time without that for which this thread has waited for a processor."""
    waited = 0
    with contextlib.suppress(OSError), open("/proc/thread-self/schedstat") as file:
        waited = int(file.read().split()[1])
    return time.monotonic() - waited / 1e9
