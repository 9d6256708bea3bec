"""Sandboxes for the OpenAI Agents SDK: `SandboxRunConfig(client=RingfenceSandboxClient(sessions))`.

A session of the SDK is an execution of ringfence's `SessionManager`, whose name is in the session's
state. The state can be written as JSON and taken up again: by the worker that has the sandbox, with
all that is in it; by any other once that sandbox is gone, from the SDK's snapshot, or not at all.
Closing a session keeps its sandbox: it ends with `client.delete`, the manager's idle time, or the
manager.
"""

from __future__ import annotations

import uuid
from typing import Literal

from ._missing import missing

try:
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session import (
        BaseSandboxClient,
        BaseSandboxClientOptions,
        Instrumentation,
        SandboxSession,
        SandboxSessionState,
    )
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
except ModuleNotFoundError as error:
    raise missing("openai-agents", error) from error


from .. import sync
from ..errors import ConfigError, LimitError, UnsupportedError
from ..sessions import DEFAULT_TENANT, SessionManager
from .openai_agents_life import AnyManager, RingfenceSandboxSessionState, misconfigured
from .openai_agents_session import RingfenceSandboxSession

__all__ = (
    "RingfenceSandboxClient",
    "RingfenceSandboxClientOptions",
    "RingfenceSandboxSession",
    "RingfenceSandboxSessionState",
)


class RingfenceSandboxClientOptions(BaseSandboxClientOptions):
    """What a sandbox is made with.

    Attributes:
        tenant_id: Whose it is.
        plan: What the tenant may have; default: the policy's default plan.
        profile: What the sandbox gets where nothing else is said.
    """

    type: Literal["ringfence"] = "ringfence"
    tenant_id: str = DEFAULT_TENANT
    plan: str | None = None
    profile: str = "session"


class RingfenceSandboxClient(BaseSandboxClient[RingfenceSandboxClientOptions | None]):
    """Makes sessions of the SDK, each in a sandbox of its own.

    Args:
        sessions: An open manager of this event loop, or one of `ringfence.sync`, which works from
            any, as `Runner.run_sync` needs it. Its sandboxes end with it.
        instrumentation: Who is told of what sessions do.

    Raises:
        ConfigError: `sessions` is something else.
    """

    backend_id = "ringfence"
    supports_default_options = True

    def __init__(
        self, sessions: AnyManager, *, instrumentation: Instrumentation | None = None
    ) -> None:
        if not isinstance(sessions, SessionManager | sync.SessionManager):
            raise ConfigError(f"sessions is a SessionManager, not {type(sessions).__name__}")
        self._sessions = sessions
        self._instrumentation = instrumentation

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: RingfenceSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Return a new session; its sandbox is made when it is started.

        Args:
            snapshot: Where its workspace is kept when it is closed; default: nowhere.
            manifest: What its workspace begins with.
            options: What the sandbox is made with.

        Raises:
            ConfigurationError: The manifest asks for users, mounts, or paths outside; or a name
                in the options is malformed or unknown.
        """
        wanted = options or RingfenceSandboxClientOptions()
        content = self._validate_manifest_for_create(manifest or Manifest())
        _check_manifest(content)
        if content.root != Manifest().root:
            raise misconfigured(UnsupportedError(f"a manifest's root is {Manifest().root} here"))
        session_id = uuid.uuid4()
        state = RingfenceSandboxSessionState(
            session_id=session_id,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            manifest=content,
            execution_id=f"openai-{session_id.hex}",
            tenant_id=wanted.tenant_id,
            plan=wanted.plan,
            profile=wanted.profile,
        )
        return self._session(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return a session for a state; what is left of it shows when it is started.

        Starting it raises `WorkspaceStartError` if it can't be had: because of `SandboxLostError`
        if its sandbox is gone and there is no snapshot, of `SessionElsewhereError` while another
        live worker has it.

        Raises:
            ConfigurationError: The state is of another client, or as from `create`.
        """
        if not isinstance(state, RingfenceSandboxSessionState):
            raise misconfigured(ConfigError(f"the state is of another client: {state.type!r:.80}"))
        state.assert_path_grants_rebound()
        _check_manifest(state.manifest)
        return self._session(state)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a session's sandbox. Safe to call again.

        Raises:
            ConfigurationError: The session is of another client.
        """
        inner = session._inner
        if not isinstance(inner, RingfenceSandboxSession):
            raise misconfigured(
                ConfigError(f"the session is of another client: {type(inner).__name__}")
            )
        await inner.destroy()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return the state that `serialize_session_state` has written."""
        return self._deserialize_session_state_payload(payload, RingfenceSandboxSessionState)

    def _session(self, state: RingfenceSandboxSessionState) -> SandboxSession:
        try:
            inner = RingfenceSandboxSession(state, self._sessions)
        except (ConfigError, LimitError) as error:
            raise misconfigured(error) from error
        return self._wrap_session(inner, instrumentation=self._instrumentation)


def _check_manifest(manifest: Manifest) -> None:
    """Refuse what no sandbox here has."""
    asked = {
        "users or groups": manifest.users or manifest.groups,
        "paths outside of the workspace": manifest.extra_path_grants,
        "mounts": manifest.mount_targets(),
    }
    for what, given in asked.items():
        if given:
            raise misconfigured(UnsupportedError(f"a manifest can't ask for {what} here"))
