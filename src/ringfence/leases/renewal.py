"""The thread that renews an owner's leases.

It is a thread and no task, so that an event loop that is blocked for a while loses nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..errors import LeaseStoreError
from .store import Lease, LeaseStore

__all__ = ("RENEWALS_PER_TTL", "Hold", "Renewal")

_log = logging.getLogger(__name__)

RENEWALS_PER_TTL = 3
"""How many times a lease is renewed before it would run out: every 10 of 30 seconds."""


class Hold:
    """A lease in our hands.

    Attributes:
        lease: What was acquired.
        lost: Whether it has been taken over meanwhile; set by the renewal's thread.
    """

    __slots__ = ("lease", "lost")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.lost = False


class Renewal:
    """Renews what one owner holds until it is stopped.

    Args:
        store: Where the leases are.
        owner: Whose they are.
        clock: Seconds that never go back.

    Attributes:
        confirmed_until: Up to when, by our own clock, nobody can have taken what we hold. It is
            counted from before the store was asked, so no delay on the way can make it too late.
    """

    def __init__(
        self, store: LeaseStore, owner: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.owner = owner
        self.confirmed_until = clock() + store.ttl  # there is nothing to lose yet
        self._clock = clock
        self._holds: dict[Lease, Hold] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to renew, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="ringfence-leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no more; waits for a renewal that is on its way, which is bounded."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def add(self, lease: Lease) -> Hold:
        """Note a lease that was acquired."""
        with self._lock:
            hold = self._holds[lease] = Hold(lease)
        return hold

    def find(self, tenant_id: str, execution_id: str) -> Hold | None:
        """Return what we hold of an execution, or None."""
        for hold in self.holds():
            if (hold.lease.tenant_id, hold.lease.execution_id) == (tenant_id, execution_id):
                return hold
        return None

    def holds(self) -> list[Hold]:
        """Return all that we hold."""
        with self._lock:
            return list(self._holds.values())

    def discard(self, hold: Hold) -> None:
        """Forget a lease that is given up. Safe to call again."""
        with self._lock:
            self._holds.pop(hold.lease, None)

    def renew(self) -> None:
        """Renew once, and mark what was taken from us.

        Raises:
            LeaseStoreError: The store does not answer.
        """
        with self._lock:
            # What is acquired from here on is not expected in the answer.
            before = dict(self._holds)
        asked = self._clock()
        held = self.store.renew(self.owner)
        self.confirmed_until = asked + self.store.ttl
        for lease, hold in before.items():
            if lease not in held:
                hold.lost = True
                self.discard(hold)

    def _run(self) -> None:
        while not self._stop.wait(self.store.ttl / RENEWALS_PER_TTL):
            try:
                self.renew()
            except LeaseStoreError as error:
                _log.warning("leases of sandboxes could not be renewed: %s", error)
