"""Workspaces for Pydantic AI: `Agent(model, capabilities=[RingfenceWorkspaces(sessions)])`.

An environment is the sandbox of a session. It is made at its first use and outlives the run: who
holds its ref continues in it, until the session is destroyed or its manager ends it.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from ._missing import missing

try:
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        SupportsCommands,
        SupportsFilesystem,
        SupportsRealpath,
        WorkspaceBackend,
        WorkspaceCommand,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
except ModuleNotFoundError as error:
    raise missing("pydantic-ai", error) from error


from ..errors import FileMissingError, SandboxClosedError, SandboxLostError
from ..models import Result, SandboxSpec
from ..sessions import DEFAULT_TENANT, Session, SessionManager
from ._commands import absolute, command_in
from ._files import Entry, Files

__all__ = ("PROVIDER", "RingfenceWorkspace", "RingfenceWorkspaces")

PROVIDER = "ringfence"
"""The provider in the refs of these workspaces."""

MAX_FILE_BYTES = 64 << 20
"""What of a file is brought out at most; reading a larger one is an `OSError`."""

MAX_ENTRIES = 10_000
"""What a directory may have at most to be listed."""


class RingfenceWorkspace(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """One environment: the sandbox that a session has when it is first used, and no later one.

    Files are reached by any path that the sandbox's programs see. A command without a timeout may
    take as long as the session's plan allows.

    Args:
        sessions: Where sandboxes come from; open as long as the workspace is used.
        ref: Which environment to continue in. It must be live in this manager. Without it, one
            is made.
        tenant_id: Whose it is. A ref leads only to environments of the same tenant.
        plan: What the tenant may have, for a new environment.
        spec: What is asked for beyond the plan, for a new environment.

    Raises:
        ValueError: The ref is of another provider.
    """

    def __init__(
        self,
        sessions: SessionManager,
        ref: WorkspaceRef | None = None,
        *,
        tenant_id: str = DEFAULT_TENANT,
        plan: str | None = None,
        spec: SandboxSpec | None = None,
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"the ref is of {ref.provider!r}, and {PROVIDER!r} has no such one")
        self._sessions = sessions
        self._ref = ref
        self._tenant = tenant_id
        self._plan = plan
        self._spec = spec
        self._session: Session | None = None
        self._generation = 0
        self._working_dir = ""
        self._lock = anyio.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        """Its provider and the session's execution id; None until it is first used."""
        return self._ref

    async def working_dir(self) -> str:
        async with self._environment() as files:
            if not self._working_dir:
                self._working_dir = await files.real_path(".")
            return self._working_dir

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        argv = _argv(command, shell)
        async with self._environment():
            assert self._session is not None
            result = await self._session.exec(
                command_in(self._session, argv, env=env, timeout=timeout)
            )
        return _completed(result)

    async def read_bytes(self, path: str) -> bytes:
        async with self._environment() as files:
            return await files.read(path, MAX_FILE_BYTES)

    async def write_bytes(self, path: str, data: bytes) -> None:
        async with self._environment() as files:
            await files.write(path, data)

    async def stat(self, path: str) -> FileEntry:
        async with self._environment() as files:
            return _entry(await files.stat(path), path)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        async with self._environment() as files:
            entries = await files.list_dir(path, MAX_ENTRIES)
        return [_entry(entry, posixpath.join(path, entry.name)) for entry in entries]

    async def make_dir(self, path: str) -> None:
        async with self._environment() as files:
            await files.make_dir(path)

    async def remove(self, path: str) -> None:
        root = await self.working_dir()
        async with self._environment() as files:
            assert self._session is not None
            above, name = posixpath.split(posixpath.normpath(absolute(self._session, path)))
            target = posixpath.join(await files.real_path(above), name)
            if f"{root}/".startswith(f"{target.rstrip('/')}/"):
                raise ValueError(f"{path!r} is the working directory or above it")
            await files.remove(path)

    async def exists(self, path: str) -> bool:
        async with self._environment() as files:
            try:
                await files.stat(path)
            except FileMissingError:
                return False
            return True

    async def realpath(self, path: str) -> str:
        async with self._environment() as files:
            return await files.real_path(path)

    @asynccontextmanager
    async def _environment(self) -> AsyncGenerator[Files]:
        """Have the environment, and tell of its end in Pydantic AI's own words."""
        try:
            async with self._lock:
                if self._session is None:
                    self._session = await self._made() if self._ref is None else self._found()
                    self._generation = self._session.generation
            if not self._session.is_live or self._session.generation != self._generation:
                raise WorkspaceUnavailableError(f"the sandbox of {self._ref} has ended")
            yield Files(self._session)
        except (SandboxLostError, SandboxClosedError) as error:
            raise WorkspaceUnavailableError(str(error)) from error

    async def _made(self) -> Session:
        execution_id = f"pydantic-ai-{secrets.token_hex(8)}"
        session = self._sessions.session(
            execution_id, tenant_id=self._tenant, plan=self._plan, spec=self._spec
        )
        try:
            await session.ensure()
        except BaseException:
            await session.aclose()
            raise
        self._ref = WorkspaceRef(provider=PROVIDER, id=execution_id)
        return session

    def _found(self) -> Session:
        assert self._ref is not None
        for session in self._sessions.sessions:
            if (session.tenant_id, session.execution_id) == (self._tenant, self._ref.id):
                return session
        raise WorkspaceUnavailableError(f"there is no sandbox of {self._ref} here any more")


@dataclass
class RingfenceWorkspaces(AbstractCapability[Any]):
    """Gives each run of an agent a workspace of its own, or the one that its ref names.

    Attributes:
        sessions: Where sandboxes come from; open as long as the agent runs.
        tenant_id: Whose they are. A ref in a message history leads nowhere else.
        plan: What the tenant may have.
        spec: What is asked for beyond the plan.
    """

    sessions: SessionManager
    tenant_id: str = DEFAULT_TENANT
    plan: str | None = None
    spec: SandboxSpec | None = None

    def get_workspace(
        self, ctx: RunContext[Any], *, ref: WorkspaceRef | None
    ) -> WorkspaceBackend | None:
        """Return the workspace of a run, without making anything yet."""
        if ref is not None and ref.provider != PROVIDER:
            return None
        return RingfenceWorkspace(
            self.sessions, ref, tenant_id=self.tenant_id, plan=self.plan, spec=self.spec
        )


def _argv(command: WorkspaceCommand, is_script: bool) -> Sequence[str]:
    """Return the argv of either form.

    Raises:
        TypeError: A script without `shell=True`, or a list with it.
    """
    if isinstance(command, str) != is_script:
        raise TypeError("a text is run with shell=True, and a list of arguments without it")
    return ("/bin/sh", "-c", command) if isinstance(command, str) else command


def _completed(result: Result) -> CommandResult:
    if result.timed_out:
        raise WorkspaceTimeoutError(
            f"the command was ended after {result.timeout:g} s",
            stdout=result.stdout_text,
            stderr=result.stderr_text,
        )
    if result.stdout_truncated or result.stderr_truncated:
        limit = len(result.stdout if result.stdout_truncated else result.stderr)
        raise WorkspaceOutputLimitError(
            f"the command wrote more than the {limit} bytes that are kept of a stream",
            limit=limit,
            stdout=result.stdout_text,
            stderr=result.stderr_text,
        )
    return CommandResult(
        exit_code=result.exit_code, stdout=result.stdout_text, stderr=result.stderr_text
    )


def _entry(entry: Entry, path: str) -> FileEntry:
    return FileEntry(name=entry.name, path=path, is_dir=entry.is_dir, size=entry.size)
