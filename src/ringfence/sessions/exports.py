"""Exports of sessions: where they go, and what a tenant may still put into a store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from ..events import Events, Value
from ..export import ExportEvent, ExportLimits, ExportReport, Room, export_workspace
from ..policy import Plan
from ..storage import ArtifactStore, key_prefix
from .session import Session

__all__ = ("Exports",)

_LIMIT = "storage_bytes"


@dataclass
class _Shared:
    """A room while exports of one tenant into one store go on."""

    users: int = 0
    room: Room | None = None
    counting: anyio.Lock = field(default_factory=anyio.Lock)


class Exports:
    """Exports workspaces, and counts what tenants have in stores.

    The bound of a plan is over all of a tenant's executions. The store itself is asked when an
    export begins, so what other workers have put there counts, and what was deleted does not. Two
    workers that export for one tenant in the same moment do not see each other's bytes before the
    next export does.

    Args:
        events: Is told.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._shared: dict[tuple[int, str], _Shared] = {}

    async def export(
        self,
        session: Session,
        target: str | os.PathLike[str] | ArtifactStore,
        limits: ExportLimits | None,
        on_progress: Callable[[ExportEvent], Any] | None,
    ) -> ExportReport:
        """Copy a session's workspace, as far as its plan allows; see `SessionManager.export`."""
        plan, tenant, execution = session.plan, session.tenant_id, session.execution_id
        allowed = limits or ExportLimits()
        if plan.storage_bytes is not None:
            allowed = replace(allowed, total_bytes=min(allowed.total_bytes, plan.storage_bytes))
        keeping: AbstractAsyncContextManager[Room | None] = nullcontext()
        prefix = ""
        if isinstance(target, ArtifactStore):
            prefix = key_prefix(tenant, execution)
            keeping = self._room(target, tenant, execution, plan)
        about: dict[str, Value] = {
            "backend": session.backend,
            "tenant_id": tenant,
            "execution_id": execution,
        }
        with self._events.operation("sandbox.export", about):
            async with keeping as room:
                report = await export_workspace(
                    session, target, allowed, prefix=prefix, on_progress=on_progress, room=room
                )
            about |= {
                "files": len(report.files),
                "bytes": report.total_bytes,
                "skipped": report.skipped_count,
            }
        return report

    @asynccontextmanager
    async def _room(
        self, store: ArtifactStore, tenant_id: str, execution_id: str, plan: Plan
    ) -> AsyncIterator[Room | None]:
        """Give an export its tenant's room while a block runs; None where nothing bounds it.

        Raises:
            LimitError: The tenant has as much as its plan allows, and nothing of this execution
                that could be replaced.
            StoreError: The store can't be listed.
        """
        if plan.storage_bytes is None:
            yield None
            return
        key = (id(store), tenant_id)
        shared = self._shared.setdefault(key, _Shared())
        shared.users += 1
        try:
            async with shared.counting:
                if shared.room is None:
                    used = await _size(store, key_prefix(tenant_id))
                    shared.room = Room(plan.storage_bytes, used, limit=_LIMIT, plan=plan.name)
            room = shared.room
            if room.left <= 0 and not await _size(store, key_prefix(tenant_id, execution_id)):
                raise room.over()
            yield room
        finally:
            shared.users -= 1
            if not shared.users:
                del self._shared[key]


async def _size(store: ArtifactStore, prefix: str) -> int:
    return sum([item.size async for item in store.list(prefix)])
