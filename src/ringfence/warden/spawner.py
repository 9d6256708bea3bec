"""The one thread that starts sandboxes, and ends those that nobody waits for.

bubblewrap's parent-death signal follows the thread that started it, and this thread lives as long
as the process; and a start (a cgroup, a record, a spawn) blocks for a millisecond, which no event
loop should.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable

import anyio.to_thread

__all__ = ("drain", "submit")

_log = logging.getLogger(__name__)

_DRAIN_SECONDS = 5.0


class _Spawner:
    """The thread and what it has to do."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._work, name="ringfence-spawner", daemon=True
                    )
                    self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                job()
            except Exception:  # every later start would wait for ever  # noqa: BLE001
                _log.exception("a sandbox could not be started or ended as it should")
            del job  # or what it was for would live until the next one comes


_spawner = _Spawner()


def _renew() -> None:
    # A forked child does not have the thread.
    global _spawner  # noqa: PLW0603
    _spawner = _Spawner()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def submit(job: Callable[[], None]) -> None:
    """Have the spawner's thread do something after what it was given before."""
    _spawner.submit(job)


async def drain() -> None:
    """Wait until the spawner has done all that it was given so far."""
    done = threading.Event()
    _spawner.submit(done.set)
    await anyio.to_thread.run_sync(done.wait, _DRAIN_SECONDS)
