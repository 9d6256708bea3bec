"""Threads that programs run on, one that watches the clock, and a way back to the event loop.

A program is a call that lasts until it ends, so it needs a thread of its own. Threads are kept a
while for the next program: handing a job to one that waits costs a tenth of starting one. All are
daemons; when this process ends, whatever still runs is stopped first, for a thread that comes
back from a program into a Python that is gone takes the process down.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..warden.stream import Turn

__all__ = ("STACK_BYTES", "Signal", "alarms", "submit")

STACK_BYTES = 16 * 1024 * 1024
"""The stack of a thread: a program's own, what the host puts on top, and room to spare."""

_IDLE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class _Workers:
    """Threads that take jobs; one more is started where none waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._free = 0

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._free -= 1
            is_short = self._free < 0
            if is_short:
                self._free += 1
        if is_short:
            _start(self._work, job)
        else:
            self._jobs.put(job)

    def _work(self, job: Callable[[], None]) -> None:
        while True:
            job()
            del job  # what it holds must not live as long as this thread
            with self._lock:
                self._free += 1
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._free > 0:
                        self._free -= 1
                        return
                job = self._jobs.get()  # one was promised this thread in that instant


def _start(work: Callable[[Callable[[], None]], None], job: Callable[[], None]) -> None:
    with _stack_lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=work, args=(job,), name="ringfence-wasm", daemon=True).start()
        finally:
            threading.stack_size(before)


class Alarms:
    """Calls that are made when their time has come, on one thread for all of them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: dict[int, tuple[float, Callable[[], None]]] = {}
        self._keys = itertools.count(1)
        self._next = float("inf")
        self._thread: threading.Thread | None = None

    def set(self, seconds: float, call: Callable[[], None]) -> int:
        """Let `call` be made after so many seconds; it must not block."""
        at = time.monotonic() + seconds
        with self._changed:
            key = next(self._keys)
            self._pending[key] = at, call
            if at < self._next:
                self._next = at
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="ringfence-wasm-clock", daemon=True
                )
                self._thread.start()
        return key

    def cancel(self, key: int) -> None:
        """Forget a call; one that has been made or forgotten is fine."""
        self._pending.pop(key, None)  # the thread wakes in vain at most once for it

    def _watch(self) -> None:
        while True:
            with self._changed:
                while (wait := self._next - time.monotonic()) > 0:
                    self._changed.wait(min(wait, threading.TIMEOUT_MAX))
                now = time.monotonic()
                pending = list(self._pending.items())
                due = [key for key, (at, _) in pending if at <= now]
                calls = [self._pending.pop(key)[1] for key in due if key in self._pending]
                self._next = min((at for key, (at, _) in pending if at > now), default=float("inf"))
            for call in calls:
                try:
                    call()
                except Exception:  # noqa: BLE001 - the clock of all programs must not stop for one
                    _log.exception("a deadline could not be held")


class Signal:
    """Tells tasks of one event loop, from any thread, to look again at what they wait for.

    Attributes:
        loop: The event loop, if it is asyncio's.
    """

    def __init__(self) -> None:
        self._wakes: list[Callable[[], object]] = []
        try:
            self.loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self.loop = None

    def set(self) -> None:
        """Let every task that waits look again."""
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                wake()

    async def wait(self, is_ready: Callable[[], bool]) -> None:
        """Return when `is_ready`, which is asked now and at each signal."""
        while not is_ready():
            if self.loop is not None:
                await self._wait_asyncio(self.loop, is_ready)
            else:
                await self._wait_trio(is_ready)

    async def _wait_asyncio(
        self, loop: asyncio.AbstractEventLoop, is_ready: Callable[[], bool]
    ) -> None:
        waiter = Turn(loop=loop)
        self._wakes.append(lambda: loop.call_soon_threadsafe(waiter.begin))
        if not is_ready():  # asked again: a signal in between had nobody to wake
            await waiter

    async def _wait_trio(self, is_ready: Callable[[], bool]) -> None:
        import trio

        token, event = trio.lowlevel.current_trio_token(), trio.Event()
        self._wakes.append(lambda: token.run_sync_soon(event.set))
        if not is_ready():
            await event.wait()


_stack_lock = threading.Lock()
_workers = _Workers()
_alarms = Alarms()
_running: dict[int, Callable[[], Any]] = {}
_keys = itertools.count(1)


def submit(job: Callable[[], None], stop: Callable[[], Any]) -> None:
    """Run a job on a thread of its own.

    Args:
        job: What to do; it must not raise.
        stop: Ends the job soon; called if this process ends before it.
    """
    key = next(_keys)

    def work() -> None:
        try:
            job()
        finally:
            _running.pop(key, None)

    _running[key] = stop
    _workers.submit(work)


def alarms() -> Alarms:
    """Return the clock of this process."""
    return _alarms


def _stop_all() -> None:
    deadline = time.monotonic() + 2.0
    for stop in list(_running.values()):
        stop()
    while _running and time.monotonic() < deadline:
        time.sleep(0.001)


def _renew() -> None:
    # In a forked child the threads are gone, and locks may be held by one of them for ever.
    global _workers, _alarms, _stack_lock
    _workers, _alarms, _stack_lock = _Workers(), Alarms(), threading.Lock()
    _running.clear()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
