"""What tenants may still put into stores, counted together by the exports of all workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from ..errors import LeaseStoreError
from ..export import Room
from ..leases import Hold
from ..policy import Plan
from ..storage import ArtifactStore, key_prefix
from .home import Home

__all__ = ("Rooms", "size_below")

COUNT_SECONDS = 120.0
"""How long an export waits for another worker that counts what is there."""

_LOOK_SECONDS = 0.1
_LIMIT = "storage_bytes"


@dataclass
class _Shared:
    """A room while exports of one tenant into one store go on in this worker."""

    users: int = 0
    room: Room | None = None
    hold: Hold | None = None
    changing: anyio.Lock = field(default_factory=anyio.Lock)


class Rooms:
    """The rooms of this worker's exports.

    While a worker exports for a tenant into a store, it holds a lease for that, and what the
    tenant has there is counted in a ledger of the store of leases. It is the artifact store that
    is asked first, when nobody exports for the tenant: so what was deleted counts no more.

    Args:
        home: Whose.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._shared: dict[str, _Shared] = {}

    @asynccontextmanager
    async def room(
        self, store: ArtifactStore, tenant_id: str, bound: int, plan: Plan
    ) -> AsyncIterator[Room]:
        """Give an export its tenant's room while a block runs.

        Raises:
            StoreError: The store can't be listed.
            LeaseStoreError: The store of leases does not answer, or another worker counts for
                longer than two minutes.
        """
        name = f"storage {tenant_id} {store.place}"  # no tenant's name has a space
        shared = self._shared.setdefault(name, _Shared())
        shared.users += 1
        try:
            async with shared.changing:
                if shared.room is None:
                    await self._enter(shared, name, store, tenant_id, bound, plan)
            assert shared.room is not None
            yield shared.room
        finally:
            shared.users -= 1
            with anyio.CancelScope(shield=True):
                async with shared.changing:
                    if not shared.users:
                        await self._leave(shared)
                    # Another may have come meanwhile, or have begun anew.
                    if not shared.users and self._shared.get(name) is shared:
                        del self._shared[name]

    async def _enter(
        self,
        shared: _Shared,
        name: str,
        store: ArtifactStore,
        tenant_id: str,
        bound: int,
        plan: Plan,
    ) -> None:
        shared.hold = hold = await self._home.hold(name)
        token = hold.lease.token
        with anyio.move_on_after(COUNT_SECONDS) as waiting:
            joined = await self._home.use_ledger(hold, lambda ledger: ledger.join(token))
            while joined == "wait":
                await anyio.sleep(_LOOK_SECONDS)
                joined = await self._home.use_ledger(hold, lambda ledger: ledger.join(token))
        if waiting.cancelled_caught:
            raise LeaseStoreError(
                f"another worker has counted for {COUNT_SECONDS:g} s what tenant {tenant_id!r} has"
                f" in {store.name}",
                hint="try again",
            )
        if joined == "count":
            used = await size_below(store, key_prefix(tenant_id))
            await self._home.use_ledger(hold, lambda ledger: ledger.count(token, used))
        draw = partial(self._draw, hold, bound)
        shared.room = Room(bound, bound, limit=_LIMIT, plan=plan.name, draw=draw)

    async def _draw(self, hold: Hold, bound: int, lacking: int) -> int:
        token = hold.lease.token
        return await self._home.use_ledger(hold, lambda ledger: ledger.draw(token, lacking, bound))

    async def _leave(self, shared: _Shared) -> None:
        """Give back what is left; what can't be told to the store of leases runs out by itself."""
        room, hold = shared.room, shared.hold
        shared.room = shared.hold = None
        if hold is None:
            return
        token, unused = hold.lease.token, 0 if room is None else room.left
        try:
            await self._home.use_ledger(hold, lambda ledger: ledger.leave(token, unused))
        except LeaseStoreError:
            return
        finally:
            await self._home.release(hold)


async def size_below(store: ArtifactStore, prefix: str) -> int:
    """Return the bytes of all objects below a prefix."""
    return sum([item.size async for item in store.list(prefix)])
