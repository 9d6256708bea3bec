"""A backend whose every sandbox is a session: what the conformance suite is run on."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack

from ringfence.backend import Backend, Sandbox
from ringfence.models import Capabilities, Limits, Network, Probe, SandboxSpec
from ringfence.policy import Plan, Policy, Profile
from ringfence.sessions import SessionManager

ANYTHING = Policy(
    {"any": Plan("any", networks=("none", "bridge", "host"))},
    profiles=(Profile("session", Limits(), Network()),),
    default_plan="any",
)
"""A policy that leaves everything to the backend, whose own answers are looked at."""


class ThroughSessions(Backend):
    """Makes each sandbox by the first use of a new execution of a manager."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.name = inner.name  # type: ignore[misc]  # the suite knows it by that name
        self.sessions = SessionManager(inner, policy=ANYTHING)
        self._stack = AsyncExitStack()

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def default_limits(self) -> Limits:
        return self.inner.default_limits

    def _asked(self) -> frozenset[str]:
        return self.inner._asked()

    async def probe(self) -> Probe:
        return await self.inner.probe()

    async def _open(self) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.inner)
            await stack.enter_async_context(self.sessions)
            self._stack = stack.pop_all()

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        session = self.sessions.session(f"check-{secrets.token_hex(8)}", spec=spec)
        try:
            await session.ensure()
        except BaseException:
            await session.aclose()
            raise
        return session

    async def reap(self) -> int:
        return await self.sessions.cleanup_stale()

    async def aclose(self) -> None:
        await self._stack.aclose()
