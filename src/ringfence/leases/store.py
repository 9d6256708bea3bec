"""The interface of a store of leases, and the one in memory.

A store does plain blocking calls, each bounded, from any thread: an event loop calls it in a
worker thread, and the renewal has a thread of its own, so that a loop that is busy for half a
minute does not lose what it holds.
"""

from __future__ import annotations

import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from ..errors import LimitError, SessionElsewhereError
from .ledger import Ledger
from .owner import is_known_dead

__all__ = ("DEFAULT_TTL", "Lease", "LeaseStore", "MemoryLeases", "held_elsewhere", "over_quota")

_Value = TypeVar("_Value")

DEFAULT_TTL = 30.0
"""Seconds that a lease lives without being renewed."""


@dataclass(frozen=True)
class Lease:
    """One execution in one owner's hands.

    Attributes:
        tenant_id: Whose execution it is.
        execution_id: Which one.
        owner: The name of the owner.
        token: A number that no earlier lease of the store has reached.
        taken_over: Whether an earlier owner lost it: what it had made is gone or going.
    """

    tenant_id: str
    execution_id: str
    owner: str
    token: int
    taken_over: bool = False


class LeaseStore(ABC):
    """Where leases are kept. Safe to use from several threads at once.

    Attributes:
        id: What tells this store from all others; resources carry it as a label.
        ttl: Seconds that a lease lives without being renewed, by the store's own clock.
    """

    id: str
    ttl: float

    @abstractmethod
    def acquire(
        self, tenant_id: str, execution_id: str, owner: str, *, quota: int | None = None
    ) -> Lease:
        """Take an execution that nobody holds, or whose owner has lost it.

        Args:
            tenant_id: Whose execution it is.
            execution_id: Which one.
            owner: Who takes it.
            quota: How many live leases the tenant may have with this one; None for no bound.

        Raises:
            SessionElsewhereError: An owner holds it that is not known to be dead.
            LimitError: The tenant has as many as `quota` already.
            LeaseStoreError: The store does not answer.
        """

    @abstractmethod
    def renew(self, owner: str) -> frozenset[Lease]:
        """Let all that the owner holds live for another `ttl`, and return it.

        A lease that has run out and that nobody has taken is still the owner's. One that is
        missing from the answer has been taken over or released.

        Raises:
            LeaseStoreError: The store does not answer.
        """

    @abstractmethod
    def release(self, lease: Lease) -> bool:
        """Give a lease up; return whether it was still this owner's.

        Raises:
            LeaseStoreError: The store does not answer.
        """

    @abstractmethod
    def take_over(self, owner: str) -> list[Lease]:
        """Take all leases that have run out or whose owner is known to be dead; return them.

        No two callers are given the same lease. One that dies before it has released what it
        was given loses it like any other owner.

        Raises:
            LeaseStoreError: The store does not answer.
        """

    @abstractmethod
    def use_ledger(self, lease: Lease, use: Callable[[Ledger], _Value]) -> _Value:
        """Let a function read and change, in one step, the ledger of a lease's tenant.

        Args:
            lease: One that its caller holds.
            use: What to do; it gets the ledger with the tokens of live leases alone. What it
                raises is raised, and changes nothing.

        Raises:
            LeaseStoreError: The store does not answer.
        """

    @abstractmethod
    def live(self) -> list[Lease]:
        """Return the leases that have not run out.

        Raises:
            LeaseStoreError: The store does not answer.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the store holds in this process. Safe to call again."""


def held_elsewhere(execution_id: str, owner: str) -> SessionElsewhereError:
    """Return the error of an execution that another owner holds."""
    return SessionElsewhereError(
        f"execution {execution_id!r} is held by another worker",
        owner=owner,
        hint="send the call to that worker, or wait for the end of its lease",
    )


def over_quota(tenant_id: str, quota: int) -> LimitError:
    """Return the error of a tenant that has all the sandboxes that it may have."""
    return LimitError(
        "max_sandboxes",
        f"tenant {tenant_id!r} has {quota} sandboxes, which is all that it may have at once",
        hint="destroy one, or let it end",
    )


class MemoryLeases(LeaseStore):
    """Leases in the memory of one process, for tests and for a process that shares nothing.

    Args:
        ttl: Seconds that a lease lives without being renewed.
        clock: Seconds that never go back.
    """

    def __init__(
        self, *, ttl: float = DEFAULT_TTL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.id = f"memory-{secrets.token_hex(8)}"
        self.ttl = ttl
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[tuple[str, str], tuple[Lease, float]] = {}
        self._ledgers: dict[str, str] = {}
        self._token = 0

    def acquire(
        self, tenant_id: str, execution_id: str, owner: str, *, quota: int | None = None
    ) -> Lease:
        key = (tenant_id, execution_id)
        with self._lock:
            found = self._leases.get(key)
            if found is not None and not self._is_lost(found):
                raise held_elsewhere(execution_id, found[0].owner)
            if quota is not None:
                others = sum(
                    other[0] == tenant_id and other != key and not self._is_lost(entry)
                    for other, entry in self._leases.items()
                )
                if others >= quota:
                    raise over_quota(tenant_id, quota)
            taken = found is not None
            return self._put(Lease(tenant_id, execution_id, owner, 0, taken_over=taken))

    def renew(self, owner: str) -> frozenset[Lease]:
        with self._lock:
            end = self._clock() + self.ttl
            held = [lease for lease, _ in self._leases.values() if lease.owner == owner]
            for lease in held:
                self._leases[lease.tenant_id, lease.execution_id] = lease, end
            return frozenset(held)

    def release(self, lease: Lease) -> bool:
        key = (lease.tenant_id, lease.execution_id)
        with self._lock:
            found = self._leases.get(key)
            if found is None or found[0].token != lease.token:
                return False
            del self._leases[key]
            return True

    def take_over(self, owner: str) -> list[Lease]:
        with self._lock:
            lost = [lease for lease, end in self._leases.values() if self._is_lost((lease, end))]
            return [self._put(replace(lease, owner=owner, taken_over=True)) for lease in lost]

    def use_ledger(self, lease: Lease, use: Callable[[Ledger], _Value]) -> _Value:
        name = lease.tenant_id
        with self._lock:
            live = {
                other.token
                for (tenant, _), (other, end) in self._leases.items()
                if tenant == name and not self._is_lost((other, end))
            }
            ledger = Ledger.decode(self._ledgers.get(name, ""), live)
            value = use(ledger)
            self._ledgers[name] = ledger.encode()
            if not self._ledgers[name]:
                del self._ledgers[name]
            return value

    def live(self) -> list[Lease]:
        with self._lock:
            return [lease for lease, end in self._leases.values() if end > self._clock()]

    def close(self) -> None:
        return None

    def _is_lost(self, entry: tuple[Lease, float]) -> bool:
        lease, end = entry
        return end <= self._clock() or is_known_dead(lease.owner)

    def _put(self, lease: Lease) -> Lease:
        self._token += 1
        lease = replace(lease, token=self._token)
        self._leases[lease.tenant_id, lease.execution_id] = lease, self._clock() + self.ttl
        return lease
