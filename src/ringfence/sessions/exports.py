"""Exports of sessions: where they go, and what a tenant may still put into a store."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

from ..events import Value
from ..export import ExportEvent, ExportLimits, ExportReport, Room, export_workspace
from ..policy import Plan
from ..storage import ArtifactStore, key_prefix
from .home import Home
from .rooms import Rooms, size_below
from .session import Session

__all__ = ("Exports",)


class Exports:
    """Exports workspaces, as far as the plans of their tenants allow.

    The bound of a plan is over all of a tenant's executions, in whatever worker; see `Rooms`.

    Args:
        home: Of the sessions.
    """

    def __init__(self, home: Home) -> None:
        self._events = home.events
        self._rooms = Rooms(home)

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
            LeaseStoreError: The store of leases does not answer.
        """
        if plan.storage_bytes is None:
            yield None
            return
        async with self._rooms.room(store, tenant_id, plan.storage_bytes, plan) as room:
            if not await room.has(1) and not await size_below(
                store, key_prefix(tenant_id, execution_id)
            ):
                raise room.over()
            yield room
