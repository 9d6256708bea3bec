"""Pydantic AI's own rules for the backend of a workspace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from ringfence import SessionManager
from ringfence.adapters.pydantic_ai import RingfenceWorkspace


class TestConformance(WorkspaceBackendSuite):
    @pytest.fixture
    async def backend(self, sessions: SessionManager) -> WorkspaceBackend:
        return RingfenceWorkspace(sessions)

    @pytest.fixture
    def fresh_backend(self, sessions: SessionManager) -> Callable[[], WorkspaceBackend]:
        return lambda: RingfenceWorkspace(sessions)

    @pytest.fixture
    def attach_backend(
        self, sessions: SessionManager
    ) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: RingfenceWorkspace(sessions, ref)

    @pytest.fixture
    def destroy_environment(
        self, sessions: SessionManager
    ) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await sessions.destroy_execution(backend.ref.id)

        return destroy
