"""Who holds which execution's sandbox, told by leases that their owners renew.

A worker that wants an execution acquires its lease first and makes the sandbox after it, so every
sandbox of a session has a lease. The owner renews all its leases every few seconds. A lease that
was not renewed in time, or whose owner is known to be dead, may be taken over by anyone: that
gives it a new owner and a new token in one step, so the old owner can renew it no more and finds
out that it has lost it. Whoever takes a lease over removes what it stood for, then releases it.

The token is a number that grows with every acquisition in a store. A resource that carries it can
be told from an earlier one of the same execution.
"""

from .ledger import Joined, Ledger
from .owner import is_known_dead, owner_name
from .renewal import Hold, Renewal
from .sqlite import SqliteLeases
from .store import DEFAULT_TTL, Lease, LeaseStore, MemoryLeases

__all__ = (
    "DEFAULT_TTL",
    "Hold",
    "Joined",
    "Lease",
    "LeaseStore",
    "Ledger",
    "MemoryLeases",
    "Renewal",
    "SqliteLeases",
    "is_known_dead",
    "owner_name",
)
