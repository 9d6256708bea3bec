"""The manager: which sessions there are in this worker, and when they end.

Theory of operation. A session acquires the lease of its execution from a store that all workers
share, and only then makes a sandbox; so every sandbox has a lease, and an execution has one worker
at a time. A thread renews the leases. A task looks every second for sessions that are idle, too
old, or taken over, and now and then for what dead workers have left: their leases are taken over,
the backend removes their sandboxes, and the leases are released. No call waits for any of this,
and a call to a session that has its sandbox touches neither the store nor a lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from inspect import isawaitable
from typing import Any

import anyio
import anyio.to_thread

from ..backend import Backend
from ..errors import ConfigError, SandboxClosedError
from ..events import Events, Observer
from ..export import ExportEvent, ExportLimits, ExportReport
from ..leases import LeaseStore, SqliteLeases
from ..models import Chunk, Command, Result, SandboxSpec
from ..opened import Opened
from ..policy import Policy
from ..storage import ArtifactStore
from .exports import Exports
from .home import Home
from .session import Session
from .streaming import StreamedRun, as_script
from .sweep import LOOK_SECONDS, Sweep, each
from .tenure import checked_idle, checked_name
from .warm import checked_count, pool_of, warm_up

__all__ = ("DEFAULT_IDLE_TIMEOUT", "DEFAULT_TENANT", "SessionManager")

DEFAULT_IDLE_TIMEOUT = 600.0
"""Seconds until a sandbox that nobody uses is ended, where the plan does not say."""

DEFAULT_TENANT = "default"


class SessionManager(Opened):
    """One sandbox for each execution, on any backend. Use it with `async with`.

    Leaving the block destroys the sandboxes of this worker; those of others stay.

    Args:
        backend: Makes the sandboxes; it must be open, and stays so.
        leases: Who holds which execution. Default: a file that all workers of this machine and
            user share. It is not closed with the manager if it was given.
        policy: Profiles and plans; default: those of this package.
        idle_timeout: Seconds until a sandbox that nobody uses is ended; a plan's own is an upper
            bound to it.
        observers: Who is told of what happens; see `ringfence.events`.
        warm: How many sandboxes to keep ready for sessions that ask for nothing of their own.
            They count for no plan until they are used, and have the labels of the worker alone.
        python_ahead: Whether a session's sandbox has a Python up before the next program comes
            that `python3 -` is to run, as `run_code` of the tools has it; see `sessions.ahead`. It
            takes the memory of an idle interpreter in each sandbox that has run one.
    """

    _what = "a manager"

    def __init__(
        self,
        backend: Backend,
        *,
        leases: LeaseStore | None = None,
        policy: Policy | None = None,
        idle_timeout: float = DEFAULT_IDLE_TIMEOUT,
        observers: Iterable[Observer] = (),
        warm: int = 0,
        python_ahead: bool = False,
    ) -> None:
        self.backend = backend
        self.policy = policy or Policy()
        self._leases = leases
        self._idle_timeout = checked_idle(idle_timeout)
        self._warm = checked_count(warm)
        self._python_ahead = python_ahead
        self._events = Events(observers)
        self._exports: Exports | None = None
        self._home: Home | None = None
        self._sessions: dict[tuple[str, str], Session] = {}
        self._asked: dict[tuple[str, str], object] = {}
        self._stop: anyio.Event | None = None

    @property
    def owner(self) -> str:
        """The name under which this worker holds its leases."""
        return self._open_home().owner

    @property
    def sessions(self) -> list[Session]:
        """The sessions that have a sandbox in this worker."""
        return [session for session in self._sessions.values() if session.is_live]

    def session(
        self,
        execution_id: str,
        *,
        tenant_id: str = DEFAULT_TENANT,
        plan: str | None = None,
        profile: str = "session",
        spec: SandboxSpec | None = None,
    ) -> Session:
        """Return the session of an execution; nothing is made before its first use.

        Args:
            execution_id: Which execution: letters, digits and `._:@/+-`, at most 128.
            tenant_id: Whose it is, in the same form. Two tenants can use one id; they never meet.
            plan: What the tenant may have; default: the policy's default plan.
            profile: What the sandbox gets where nothing else is said.
            spec: What is asked for beyond the profile: limits, network, variables, mounts.

        Raises:
            ConfigError: A name is malformed or unknown, or the session exists and something else
                is asked for now.
            LimitError: More is asked for than the plan allows.
            SandboxClosedError: The manager is not open.
        """
        home = self._open_home()
        key = (checked_name("tenant_id", tenant_id), checked_name("execution_id", execution_id))
        asked = (plan, profile, spec)
        if (found := self._sessions.get(key)) is not None:
            if asked not in ((None, "session", None), self._asked[key]):
                raise ConfigError(
                    f"execution {execution_id!r} has a session with other settings",
                    hint="destroy it first, or leave the settings out",
                )
            return found
        allowed = self.policy.plan(plan)
        wanted = self.policy.spec(
            allowed, self.policy.profile(profile), self.backend.capabilities, spec
        )
        idle = min(self._idle_timeout, allowed.idle_timeout or self._idle_timeout)
        made = Session(
            home,
            *key,
            plan=allowed,
            spec=wanted,
            idle_timeout=idle,
            forget=self._forgotten,
            python_ahead=self._python_ahead,
        )
        self._sessions[key], self._asked[key] = made, asked
        return made

    async def exec(
        self,
        execution_id: str,
        command: Command | str,
        *,
        tenant_id: str = DEFAULT_TENANT,
        timeout: float | None = None,
        on_output: Callable[[Chunk], Any] | None = None,
    ) -> Result:
        """Run a command in an execution's sandbox and return what it did.

        Args:
            execution_id: Which execution.
            command: A script for `bash -c` (`sh -c` where there is no bash), or a `Command`.
            tenant_id: Whose execution it is.
            timeout: Seconds; default 30, clamped to 300 or the plan's maximum.
            on_output: Called with each chunk, decoded; may be async. It may be slow, for
                the command does not wait. An exception from it stops the command and reaches
                the caller.

        Raises:
            CommandError: The command can't be run anywhere.
            SandboxError: As from `Session.ensure`, or the sandbox could not run it.
        """
        if on_output is None:
            session, wanted = self._session(execution_id, tenant_id), as_script(command, timeout)
            with session.in_use():
                await session.ensure()  # before its clock starts
                return await session.exec(wanted)
        run = self.exec_streaming(execution_id, command, tenant_id=tenant_id, timeout=timeout)
        async with run:
            async for chunk in run:
                if isawaitable(outcome := on_output(chunk)):
                    await outcome
            return run.result

    def exec_streaming(
        self,
        execution_id: str,
        command: Command | str,
        *,
        tenant_id: str = DEFAULT_TENANT,
        timeout: float | None = None,
    ) -> StreamedRun:
        """Run a command and hand out its output as it arrives, to a reader who may be slow.

        Use it as `async with sessions.exec_streaming(...) as run`, iterate over `run` for decoded
        chunks, and read `run.result` after the last one. Leaving the block early kills it.
        """
        session = self._session(execution_id, tenant_id)
        return StreamedRun(session.stream(as_script(command, timeout)), session.ensure)

    async def export(
        self,
        execution_id: str,
        target: str | os.PathLike[str] | ArtifactStore,
        *,
        tenant_id: str = DEFAULT_TENANT,
        limits: ExportLimits | None = None,
        on_progress: Callable[[ExportEvent], Any] | None = None,
    ) -> ExportReport:
        """Copy an execution's workspace into a directory or a store.

        In a store the keys begin with the tenant and the execution.

        Args:
            execution_id: Which execution.
            target: A directory, made if need be, or a store.
            tenant_id: Whose execution it is.
            limits: How much; in all never more than the plan's `storage_bytes`, which in a store
                bounds all that the tenant has there: what would exceed it is skipped.
            on_progress: As for `export_workspace`.

        Raises:
            LimitError: The tenant has all the `storage_bytes` of its plan in the store, and nothing
                of this execution.
            SandboxError: As from `Session.ensure`, or from `export_workspace`.
        """
        session = self._session(execution_id, tenant_id)
        assert self._exports is not None  # there is a session
        return await self._exports.export(session, target, limits, on_progress)

    async def destroy_execution(
        self, execution_id: str, *, tenant_id: str = DEFAULT_TENANT
    ) -> None:
        """End an execution's sandbox, if this worker has it. Safe to call again."""
        key = (checked_name("tenant_id", tenant_id), checked_name("execution_id", execution_id))
        if (session := self._sessions.get(key)) is not None:
            await session.aclose()

    async def cleanup_stale(self) -> int:
        """Remove what workers left that have died, and return how many sandboxes that was.

        Happens by itself when the manager is opened and every few seconds from then on.

        Raises:
            LeaseStoreError: The store of leases does not answer.
        """
        return await self._open_home().reap()

    async def aclose(self) -> None:
        """Destroy the sandboxes of this worker. Safe to call again, and shielded."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await each(list(self._sessions.values()), Session.aclose)
            if self._stop is not None:
                self._stop.set()

    async def _open(self, stack: AsyncExitStack) -> None:
        store = self._leases
        if store is None:
            store = await anyio.to_thread.run_sync(SqliteLeases)
            stack.callback(store.close)
        home = Home(self.backend, store, self._events)
        stack.push_async_callback(home.aclose)
        home.renewal.start()
        await home.reap()
        pool = pool_of(home, self.policy, self._warm) if self._warm else None
        if pool is not None:
            await stack.enter_async_context(pool)
        self._home, self._exports, self._stop = home, Exports(home), anyio.Event()
        home.tasks = await stack.enter_async_context(anyio.create_task_group())
        if pool is not None:
            home.tasks.start_soon(warm_up, pool, self._warm)
        sweep = Sweep(home, self._sessions, min(LOOK_SECONDS, self._idle_timeout))
        home.tasks.start_soon(sweep.run, self._stop)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "new" if self._home is None else "open"
        return f"<SessionManager {state}: {len(self.sessions)} live on {self.backend.name}>"

    # What follows.

    def _session(self, execution_id: str, tenant_id: str) -> Session:
        found = self._sessions.get((tenant_id, execution_id))
        return found or self.session(execution_id, tenant_id=tenant_id)

    def _open_home(self) -> Home:
        if self._home is None or self._closed:
            raise SandboxClosedError("the manager is not open", hint="use it with `async with`")
        return self._home

    def _forgotten(self, session: Session) -> None:
        key = (session.tenant_id, session.execution_id)
        if self._sessions.get(key) is session:
            del self._sessions[key], self._asked[key]
