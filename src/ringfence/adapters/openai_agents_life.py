"""Sessions of the OpenAI Agents SDK: their states and their life; see `openai_agents`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from agents.sandbox.errors import ConfigurationError, ErrorCode, WorkspaceStartError
from agents.sandbox.session import BaseSandboxSession, SandboxSessionState
from agents.sandbox.types import User

from .. import sync
from ..errors import SandboxError, SandboxLostError, UnsupportedError
from ..sessions import DEFAULT_TENANT, Session, SessionManager
from ._reach import Reach

__all__ = (
    "AnyManager",
    "PinnedSession",
    "RingfenceSandboxSessionState",
    "about",
    "check_user",
    "misconfigured",
)

AnyManager = SessionManager | sync.SessionManager

_Args = ParamSpec("_Args")
_Value = TypeVar("_Value")


class RingfenceSandboxSessionState(SandboxSessionState):
    """What it takes to take a session up again; holds no secret of ours.

    Attributes:
        execution_id: The execution whose sandbox it is.
        tenant_id, plan, profile: As in the options.
        sandbox_id: The sandbox that it has, once it has been started.
    """

    type: Literal["ringfence"] = "ringfence"
    execution_id: str
    tenant_id: str = DEFAULT_TENANT
    plan: str | None = None
    profile: str = "session"
    sandbox_id: str = ""


class PinnedSession(BaseSandboxSession):
    """A session of the SDK that is bound to one sandbox, from its start to its end.

    When its sandbox has ended, every call says so: it never goes on in an empty one unnoticed.
    """

    state: RingfenceSandboxSessionState

    def __init__(self, state: RingfenceSandboxSessionState, sessions: AnyManager) -> None:
        self.state = state
        found = sessions.session(
            state.execution_id, tenant_id=state.tenant_id, plan=state.plan, profile=state.profile
        )
        self._reach = Reach(found)
        assert isinstance(self._reach.sandbox, Session)
        self._box = self._reach.sandbox

    # Its life.

    async def _ensure_backend_started(self) -> None:
        is_there = self._is_there()
        has_been = bool(self.state.sandbox_id)
        can_be_restored = await self.state.snapshot.restorable(dependencies=self.dependencies)
        if has_been and not is_there and not can_be_restored:
            raise self._lost("there is no snapshot to make it again from")
        await self._ensure(may_be_told=has_been and not is_there)
        if self._box.has_restarted and not is_there and not can_be_restored:
            raise self._lost("its worker has died, and there is no snapshot")
        self.state.sandbox_id = self._box.id
        if self.state.manifest.root != self._box.workspace:
            update = {"root": self._box.workspace}
            self.state.manifest = self.state.manifest.model_copy(update=update)
        self._set_start_state_preserved(is_there)

    async def _ensure(self, *, may_be_told: bool) -> None:
        try:
            await self._reach.run(self._box.ensure)
        except SandboxLostError:
            if not may_be_told:
                raise
            await self._reach.run(self._box.ensure)  # that it has ended is known here

    async def _after_start_failed(self) -> None:
        if not self._workspace_state_preserved_on_start():
            await self.destroy()

    async def destroy(self) -> None:
        """End its sandbox. Safe to call again."""
        await self._reach.run(self._box.aclose)

    async def running(self) -> bool:
        """Whether its sandbox is there and answers."""
        try:
            await self._do(self._box.ping)
        except SandboxError:
            return False
        return True

    def _wrap_start_error(self, error: Exception) -> Exception:
        if not isinstance(error, SandboxError):
            return error
        return WorkspaceStartError(
            path=Path(self.state.manifest.root),
            message=str(error),
            context=about(error),
            cause=error,
            retryable=error.retryable,
        )

    def _is_there(self) -> bool:
        box, state = self._box, self.state
        if not state.sandbox_id and box.generation == 1 and box.is_live and not box.has_restarted:
            state.sandbox_id = box.id  # the state was written before it was started
        return box.is_live and box.id == state.sandbox_id

    def _lost(self, why: str) -> SandboxLostError:
        return SandboxLostError(
            f"the sandbox of execution {self.state.execution_id!r} is gone: {why}",
            cause="gone",
            backend=self._box.backend,
            hint="create a session anew, with a snapshot if it is to outlive its sandbox",
        )

    async def _do(
        self,
        function: Callable[_Args, Awaitable[_Value]],
        *args: _Args.args,
        **kwargs: _Args.kwargs,
    ) -> _Value:
        if not self._is_there():
            has_been = bool(self.state.sandbox_id)
            raise self._lost("it has ended" if has_been else "it has not been started")
        return await self._reach.run(function, *args, **kwargs)


def check_user(user: str | User | None) -> None:
    """Refuse to be anybody else."""
    if user is not None:
        raise misconfigured(
            UnsupportedError(
                "a sandbox has one user, and nothing in it runs as another", hint="leave `user` out"
            )
        )


def misconfigured(error: SandboxError) -> ConfigurationError:
    """Return the SDK's error for one of ours that no second try mends."""
    return ConfigurationError(
        message=str(error),
        error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
        op="start",
        context=about(error),
        cause=error,
        retryable=False,
    )


def about(error: SandboxError) -> dict[str, object]:
    """Return what an error of the SDK is told of one of ours."""
    return {"reason": error.code, "message": str(error)}
