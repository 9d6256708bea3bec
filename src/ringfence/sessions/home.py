"""What all sessions of one manager share: the backend, the leases, and whoever is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from weakref import WeakSet

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from ..backend import BASE_LIMITS, Backend, Sandbox
from ..errors import (
    LeaseStoreError,
    LimitError,
    PoolTimeoutError,
    SandboxClosedError,
    SessionElsewhereError,
)
from ..events import Events
from ..leases import Hold, Lease, LeaseStore, Ledger, Renewal, owner_name
from ..models import Limits, SandboxSpec
from ..policy import Plan
from ..pool import Pool

__all__ = ("LABEL", "Home")

_READY_SECONDS = 2.0

_Value = TypeVar("_Value")

LABEL = "ringfence."
"""How the names of our labels begin."""


class Home:
    """Where sandboxes of sessions come from and go to.

    Args:
        backend: Makes them; open.
        store: Knows who holds which execution.
        events: Is told.
    """

    def __init__(self, backend: Backend, store: LeaseStore, events: Events) -> None:
        self.backend = backend
        self.store = store
        self.events = events
        self.owner = owner_name()
        self._tasks: TaskGroup | None = None
        self.renewal = Renewal(store, self.owner)
        # Its own, so that a slow disk does not wait behind other work of the program.
        self._threads = anyio.CapacityLimiter(4)
        self._suspects: set[Hold] = set()
        self._rooms: set[Hold] = set()  # of no session
        self._pool: Pool | None = None
        self._pooled: WeakSet[Sandbox] = WeakSet()
        self._plain = SandboxSpec()

    def take_from(self, pool: Pool, spec: SandboxSpec) -> None:
        """Take sandboxes of a spec from a pool that makes them, when it has one ready."""
        self._pool, self._plain = pool, spec

    @property
    def tasks(self) -> TaskGroup:
        """Where what outlives a call runs: as long as the manager.

        Raises:
            SandboxClosedError: The manager is not open.
        """
        if self._tasks is None:
            raise SandboxClosedError("the manager is not open", backend=self.backend.name)
        return self._tasks

    @tasks.setter
    def tasks(self, tasks: TaskGroup) -> None:
        self._tasks = tasks

    def limits(self, spec: SandboxSpec) -> Limits:
        """Return the limits that a sandbox of this spec will have."""
        return spec.limits.over(self.backend.default_limits).over(BASE_LIMITS)

    def is_confirmed(self) -> bool:
        """Whether nobody can have taken what we hold."""
        return time.monotonic() < self.renewal.confirmed_until

    def check_confirmed(self) -> None:
        """Refuse to work while what we hold may be another's.

        Raises:
            LeaseStoreError: The leases could not be renewed in time.
        """
        if not self.is_confirmed():
            raise LeaseStoreError(
                "leases could not be renewed for so long that another worker may have taken them",
                backend=self.backend.name,
                hint="the calls go on when the store answers again",
            )

    async def acquire(self, tenant_id: str, execution_id: str, plan: Plan) -> Hold:
        """Take an execution into our hands.

        Raises:
            SessionElsewhereError: Another live worker holds it.
            LimitError: The tenant has as many sandboxes as its plan allows.
            LeaseStoreError: The store does not answer.
        """
        try:
            return await self._acquire(tenant_id, execution_id, plan.max_sandboxes)
        except LimitError as error:
            error.plan = plan.name
            raise

    async def hold(self, name: str) -> Hold:
        """Hold, beside other workers, what all of them may share under a name.

        Raises:
            LeaseStoreError: The store does not answer.
        """
        hold = await self._acquire(name, self.owner, None)
        self._rooms.add(hold)
        return hold

    async def use_ledger(self, hold: Hold, use: Callable[[Ledger], _Value]) -> _Value:
        """Let a function read and change the ledger of what is held by `hold`, in a thread.

        Raises:
            LeaseStoreError: The store does not answer.
        """
        return await anyio.to_thread.run_sync(
            self.store.use_ledger, hold.lease, use, limiter=self._threads
        )

    async def _acquire(self, tenant_id: str, execution_id: str, quota: int | None) -> Hold:
        def take() -> Hold:
            # In the thread, so that what is taken is noted even if nobody waits for it any more.
            try:
                lease = self.store.acquire(tenant_id, execution_id, self.owner, quota=quota)
            except SessionElsewhereError as error:
                ours = self.renewal.find(tenant_id, execution_id)
                if error.owner == self.owner and ours is not None:
                    return ours
                raise
            return self.renewal.add(lease)

        return await anyio.to_thread.run_sync(take, limiter=self._threads)

    async def release(self, hold: Hold) -> None:
        """Give an execution up; what can't be told to the store runs out by itself."""
        self.renewal.discard(hold)
        self._rooms.discard(hold)
        hold.lost = True
        try:
            await self._call(hold.lease)
        except LeaseStoreError:
            return

    async def _call(self, lease: Lease) -> None:
        await anyio.to_thread.run_sync(self.store.release, lease, limiter=self._threads)

    async def release_orphans(self, known: Collection[Hold]) -> None:
        """Give up what no session knows of: who asked for it was cancelled meanwhile.

        One that is on its way to its session looks the same, so it is looked at twice.
        """
        unknown = set(self.renewal.holds()).difference(known, self._rooms)
        for hold in unknown & self._suspects:
            await self.release(hold)
        self._suspects = unknown

    async def aclose(self) -> None:
        """Renew no more, and give up what is still held."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.renewal.stop, limiter=self._threads)
            for hold in self.renewal.holds():
                await self.release(hold)

    async def make(self, spec: SandboxSpec, labels: Mapping[str, str]) -> Sandbox:
        """Make a sandbox with labels that say whose it is, or take a plain one that is ready.

        One that was made ahead has the labels of this worker alone.
        """
        if self._pool is not None and self._pool.ready and spec == self._plain:
            with suppress(PoolTimeoutError):  # they were ready and are dead
                ready = await self._pool.acquire(timeout=_READY_SECONDS)
                self._pooled.add(ready)
                return ready
        return await self.backend.create(replace(spec, labels={**spec.labels, **labels}))

    async def make_ahead(self, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox for whoever will be the first to need it."""
        labels = self.worker_labels(self.limits(spec).max_age)
        return await self.backend.create(replace(spec, labels=labels))

    async def unmake(self, sandbox: Sandbox) -> None:
        """End a sandbox, whatever happens to the caller."""
        with anyio.CancelScope(shield=True):
            await sandbox.aclose()
            if self._pool is not None and sandbox in self._pooled:
                await self._pool.release(sandbox)

    def worker_labels(self, max_age: float | None) -> dict[str, str]:
        """Return the labels of a sandbox that this worker makes now, for whomever."""
        now = time.time()
        values = {
            "owner": self.owner,
            "store": self.store.id,
            "created": str(int(now)),
            "expires": str(int(now + (max_age or 0))),
        }
        return {LABEL + name: value for name, value in values.items()}

    def labels(self, hold: Hold, max_age: float | None) -> dict[str, str]:
        """Return the labels of a sandbox that is made now for an execution."""
        return self.worker_labels(max_age) | {
            f"{LABEL}execution_id": hold.lease.execution_id,
            f"{LABEL}tenant_id": hold.lease.tenant_id,
            f"{LABEL}lease": str(hold.lease.token),
        }

    async def reap(self) -> int:
        """Remove what dead workers left, and return how many sandboxes that was.

        Raises:
            LeaseStoreError: The store does not answer.
        """
        with self.events.operation("sandbox.reap", {"backend": self.backend.name}) as told:
            taken = await anyio.to_thread.run_sync(
                self.store.take_over, self.owner, limiter=self._threads
            )
            count = await self.backend.reap()
            for lease in taken:
                await self._call(lease)
            told |= {"sandboxes": count, "leases": len(taken)}
        return count
