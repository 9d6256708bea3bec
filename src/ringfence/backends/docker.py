"""A hardened container of a Docker-compatible engine, with a warden as its PID 1.

Theory of operation. The engine is spoken to over its API; no command line tool is needed. A sandbox
is one container: numeric user, no capability, no-new-privileges, the engine's system call filter
and the warden's own on top of it, read-only root, sized memory file systems, cgroup limits without
swap, no network. Its entry point is the warden, a static program that comes from a read-only
volume, so any image will do, also one without a shell. Commands go over one stream to it: nothing
of the engine is asked for them. On an engine of this machine that is a socket, which goes past the
engine (see `_docker_socket`); else the container's own stdin and stdout, attached before it starts.
(With `transport="exec"` PID 1 is an init, and each command an exec with a warden of its own: see
`_docker_exec_box`.)

    this process ============================= warden (PID 1) --- keepers --- commands
           +==== engine === shim (one a container) ====+

Who kills: the warden a command's tree, on deadline or request; the kernel everything, when PID 1
ends; PID 1 ends when its stream does (its host process died), at its maximum age, or when it is
told to. The engine removes a container by itself when it has ended, and `reap` what nobody owns.
What happens to containers from outside is heard in the engine's stream of events.

What survives: within a sandbox, the workspace and left-overs; between two, nothing. One volume with
the warden stays for each version of it.

What this does not protect against: faults of the kernel's system call interface, which all
containers share with the host (with the runtime `runsc` that is gVisor's instead); the engine
itself, and whoever may talk to it; side channels between containers; and on `bridge`, where each
sandbox has one of its own, whatever else the machine can reach, such as its own network's hosts.
Only the machine itself, link-local addresses and clouds' metadata are kept from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio

from ..backend import Backend, Sandbox
from ..config import ContainerConfig
from ..errors import SandboxClosedError, SandboxError
from ..models import Capabilities, Limits, Probe, SandboxSpec, new_sandbox_id
from ._docker_checks import checked_limits
from ._docker_endpoint import find_endpoint
from ._docker_engine import Engine
from ._docker_facts import Facts
from ._docker_maker import Maker
from ._docker_reach import reach
from ._docker_reap import reap_engine
from ._undo import made_or_undone

__all__ = ("ContainerBackend",)

_MIB = 1 << 20

DEFAULT_LIMITS = Limits(
    memory_bytes=256 * _MIB,
    cpus=0.5,
    pids=128,
    open_files=1024,
    workspace_bytes=128 * _MIB,  # in memory, and so below its limit
    workspace_files=50_000,
    tmp_bytes=64 * _MIB,
)


class ContainerBackend(Backend):
    """Runs commands in containers.

    Args:
        config: Its settings.
        on_progress: See below.

    Attributes:
        on_progress: Called with a line of text for each step of fetching an image, or None.
    """

    name = "container"

    def __init__(
        self,
        config: ContainerConfig | None = None,
        on_progress: Callable[[str], Any] | None = None,
    ) -> None:
        self._config = config or ContainerConfig()
        self.on_progress = on_progress
        self._facts = Facts()
        self._maker: Maker | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._facts.capabilities(self._config)

    @property
    def default_limits(self) -> Limits:
        return self._config.limits.over(DEFAULT_LIMITS)

    def _asked(self) -> frozenset[str]:
        return self._config.limits.asked()

    async def probe(self) -> Probe:
        try:
            reached = await reach(self._config, self.on_progress)
        except SandboxError as error:
            return Probe(False, error.message, error.hint or "")
        with anyio.CancelScope(shield=True):
            await reached.engine.aclose()
        where = {"address": reached.engine.endpoint.url, "image": self._config.image}
        return Probe(True, details={**reached.facts.details, **where})

    async def _open(self) -> None:
        reached = await reach(self._config, self.on_progress)
        self._facts = reached.facts
        self._maker = Maker(self._config, reached)
        try:
            await self._maker.prepare()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

    def _resolve(self, spec: SandboxSpec | None) -> tuple[SandboxSpec, Limits]:
        wanted, limits = super()._resolve(spec)
        asked = wanted.limits.asked() | self._asked()
        return wanted, checked_limits(limits, asked, self._config.workspace_storage)

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        return await self._begin(spec, limits, sandbox_id, self._config.reconnect_timeout)

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        return await self._begin(*self._resolve(spec), new_sandbox_id(), 0.0)

    async def _begin(
        self, spec: SandboxSpec, limits: Limits, sandbox_id: str, patience: float
    ) -> Sandbox:
        """Make a sandbox that outlives the end of its stream by so much."""
        maker = self._maker
        if maker is None:
            raise SandboxClosedError("the backend is not open", backend=self.name)
        work = maker.make(spec, limits, sandbox_id, patience)
        return await made_or_undone(maker.engine.tasks, work, cuts=False)

    async def reap(self) -> int:
        if self._maker is not None:
            return await reap_engine(self._maker.engine)
        engine = Engine(find_endpoint(self._config))
        try:
            await engine.open()
            return await reap_engine(engine)
        finally:
            await engine.aclose()

    async def aclose(self) -> None:
        maker, self._maker = self._maker, None
        if maker is not None:
            with anyio.CancelScope(shield=True):
                await maker.aclose()
