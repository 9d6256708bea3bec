"""A hardened container of a Docker-compatible engine, with a warden as its PID 1.

Theory of operation. The engine is spoken to over its API; no command line tool is needed. A sandbox
is one container: numeric user, no capability, no-new-privileges, the engine's system call filter
and the warden's own on top of it, read-only root, sized memory file systems, cgroup limits without
swap, no network. Its entry point is the warden, a static program that comes from a read-only
volume, so any image will do, also one without a shell. Commands go over the container's own stdin
and stdout, attached before it starts: nothing of the engine is asked for them. (With
`transport="exec"` PID 1 is an init, and each command an exec with a warden of its own: see
`_docker_exec_box`.)

    this process === engine === shim (one a container) --- warden (PID 1) --- keepers --- commands

Who kills: the warden a command's tree, on deadline or request; the kernel everything, when PID 1
ends; PID 1 ends when its stdin does (its host process died), at its maximum age, or when it is told
to. The engine removes a container by itself when it has ended, and `reap` what nobody owns. What
happens to containers from outside is heard in the engine's stream of events.

What survives: within a sandbox, the workspace and left-overs; between two, nothing. One volume with
the warden stays for each version of it.

What this does not protect against: faults of the kernel's system call interface, which all
containers share with the host (with the runtime `runsc` that is gVisor's instead); the engine
itself, and whoever may talk to it; side channels between containers; and on `bridge`, where each
sandbox has one of its own, whatever else the machine can reach, such as its own network's hosts.
Only the machine itself, link-local addresses and clouds' metadata are kept from it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from .. import inventory
from ..backend import Backend, Sandbox
from ..config import ContainerConfig
from ..errors import (
    CreateError,
    SandboxClosedError,
    SandboxError,
    UnsupportedError,
)
from ..models import Capabilities, Limits, Probe, SandboxSpec, new_sandbox_id
from ..warden.connection import Connection
from ..warden.frames import Feature
from ..warden.sandbox import Host, WardenSandbox
from ..warden.stream import asyncio_loop
from ._docker_body import (
    LABEL,
    Plan,
    command_environment,
    container_body,
    own_labels,
    seccomp_json,
)
from ._docker_box import Box
from ._docker_checks import checked_limits, checked_mounts
from ._docker_endpoint import find_endpoint
from ._docker_engine import Engine
from ._docker_exec import ExecSandbox
from ._docker_exec_body import exec_container_body
from ._docker_exec_box import ExecBox
from ._docker_facts import Facts, engine_time, learn
from ._docker_guard import why_no_guard
from ._docker_image import Image, find_image
from ._docker_network import Network
from ._docker_reap import reap_engine
from ._docker_storage import Storage
from ._docker_warden import Door, load_warden, write_hosts
from ._docker_watch import Watch

__all__ = ("ContainerBackend",)

_MIB = 1 << 20
_UNDO_SECONDS = 5.0  # that a cancelled caller waits for it; then it goes on in the background

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
        self._engine: Engine | None = None
        self._facts = Facts()
        self._image: Image | None = None
        self._door: Door | None = None
        self._storage: Storage | None = None
        self._watch: Watch | None = None
        self._network: Network | None = None
        self._boxes: dict[str, Box] = {}
        self._env: Mapping[bytes, bytes] = {}
        self._store = ""

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
            engine, facts, _ = await self._reach()
        except SandboxError as error:
            return Probe(False, error.message, error.hint or "")
        with anyio.CancelScope(shield=True):
            await engine.aclose()
        where = {"address": engine.endpoint.url, "image": self._config.image}
        return Probe(True, details={**facts.details, **where})

    async def _reach(self) -> tuple[Engine, Facts, Image]:
        """Reach the engine and find out whether it can do what the config asks for."""
        config = self._config
        if asyncio_loop() is None:
            raise UnsupportedError(
                "the container backend runs on asyncio only, since its client library does",
                backend=self.name,
                hint="the bubblewrap backend runs on trio too",
            )
        if config.seccomp_profile:
            seccomp_json(config.seccomp_profile)  # which checks it
        engine = Engine(find_endpoint(config))
        try:
            await engine.open()
            api, local = engine.docker.api_version, engine.endpoint.is_local
            facts = learn(engine.info, engine.version, api=api, local=local)
            no_guard = await anyio.to_thread.run_sync(partial(why_no_guard, local=local))
            facts = replace(facts, no_guard=no_guard)
            facts.check(config)
            return engine, facts, await find_image(engine, config, self.on_progress)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await engine.aclose()
            raise

    async def _open(self) -> None:
        try:
            await self._prepare()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

    async def _prepare(self) -> None:
        engine, self._facts, self._image = await self._reach()
        self._engine = engine
        await anyio.to_thread.run_sync(inventory.owner)
        self._store = await anyio.to_thread.run_sync(inventory.store_id)
        await reap_engine(engine)
        binary = await anyio.to_thread.run_sync(load_warden, self._facts.architecture)
        hosts = write_hosts() if engine.endpoint.is_local else ""
        self._door = Door(engine, self._image.id, binary, hosts)
        await self._through(self._door, engine)
        self._storage = Storage(engine, self._config, self._image.id)
        self._storage.check()
        self._network = Network(engine, guarded=not self._facts.no_guard)
        if self._config.network not in ("none", "bridge"):
            await self._network.check(self._config.network)
        self._env = command_environment(self._image.env)
        self._watch = Watch(engine, f"{LABEL}store={self._store}", self._boxes)
        self._watch.start(engine_time(engine.info))

    async def _through(self, door: Door, engine: Engine) -> None:
        """Use a door, noted like a sandbox, so that it goes away if this process dies meanwhile."""
        name, owner = new_sandbox_id(), inventory.owner()
        labels = {"kind": "door"}
        owner.add(inventory.Entry(name, self.name, engine=engine.endpoint.url, labels=labels))
        try:
            await door.prepare(self._own_labels(name, Limits()))
        finally:
            owner.discard(name)

    def _resolve(self, spec: SandboxSpec | None) -> tuple[SandboxSpec, Limits]:
        wanted, limits = super()._resolve(spec)
        asked = wanted.limits.asked() | self._asked()
        return wanted, checked_limits(limits, asked, self._config.workspace_storage)

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        return await self._begin(spec, limits, sandbox_id, self._config.reconnect_timeout)

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        return await self._begin(*self._resolve(spec), new_sandbox_id(), 0.0)

    async def _begin(
        self, spec: SandboxSpec, limits: Limits, sandbox_id: str, orphan_seconds: float
    ) -> Sandbox:
        """Make a sandbox that outlives the end of its stream by so much."""
        engine = self._engine
        if engine is None or self._watch is None:
            raise SandboxClosedError("the backend is not open", backend=self.name)
        # A request that has reached the engine can't be taken back: for a caller that is cancelled,
        # what it began is finished and then removed.
        making = asyncio.ensure_future(self._make(engine, spec, limits, sandbox_id, orphan_seconds))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            undoing = engine.tasks.task(_undo(making))
            with anyio.move_on_after(_UNDO_SECONDS, shield=True):
                await asyncio.shield(undoing)
            raise

    async def _make(
        self,
        engine: Engine,
        spec: SandboxSpec,
        limits: Limits,
        sandbox_id: str,
        orphan_seconds: float,
    ) -> Sandbox:
        assert self._storage is not None
        entry = inventory.Entry(
            sandbox_id, self.name, engine=engine.endpoint.url, labels=dict(spec.labels)
        )
        inventory.owner().add(entry)
        labels = {**self._config.labels, **spec.labels, **self._own_labels(sandbox_id, limits)}
        box = self._boxes[sandbox_id] = self._box(
            engine, sandbox_id, limits, resumable=orphan_seconds > 0
        )
        try:
            workspace = await self._storage.make(sandbox_id, limits, labels)
            plan = await self._plan(spec, limits, sandbox_id, labels, workspace)
            plan = replace(plan, orphan_seconds=orphan_seconds)
            sandbox = await self._boot(box, plan, spec)
        except BaseException:
            await box.discard()
            raise
        weakref.finalize(sandbox, box.abandon, asyncio.get_running_loop()).atexit = False
        return sandbox

    def _box(self, engine: Engine, sandbox_id: str, limits: Limits, *, resumable: bool) -> Box:
        put_away = partial(self._put_away, sandbox_id)
        if self._config.transport == "exec":
            return ExecBox(engine, sandbox_id, put_away, self._config.user, limits)
        return Box(engine, sandbox_id, put_away, resumable=resumable)

    async def _boot(self, box: Box, plan: Plan, spec: SandboxSpec) -> Sandbox:
        """Make a container, start it and return the sandbox in it."""
        limits, able = plan.limits, self.capabilities
        timeout = limits.start_timeout or 10.0
        if isinstance(box, ExecBox):
            await box.make(exec_container_body(plan, self._config), timeout)
            return ExecSandbox(box, self._env, spec=spec, limits=limits, capabilities=able)
        connection = await box.make(container_body(plan, self._config), timeout)
        self._check_protection(connection)
        return WardenSandbox(
            connection,
            Host(box.aclose, None, self._env, resume=box.resume),
            backend=self.name,
            sandbox_id=plan.sandbox_id,
            spec=spec,
            limits=limits,
            capabilities=able,
        )

    async def _plan(
        self,
        spec: SandboxSpec,
        limits: Limits,
        sandbox_id: str,
        labels: Mapping[str, str],
        workspace: Mapping[str, Any] | None,
    ) -> Plan:
        assert self._image is not None
        assert self._door is not None
        assert self._network is not None
        mode = spec.network.mode if spec.network else self._config.network
        return Plan(
            sandbox_id=sandbox_id,
            image=self._image.id,
            limits=limits,
            network=await self._network.make(sandbox_id, labels) if mode == "bridge" else mode,
            hosts=self._door.hosts,
            warden_volume=self._door.volume,
            workspace=workspace,
            volumes=self._image.volumes,
            mounts=checked_mounts((*self._config.mounts, *spec.mounts)),
            labels=labels,
            owned_tmpfs=self._facts.files,
        )

    def _own_labels(self, sandbox_id: str, limits: Limits) -> dict[str, str]:
        owner = f"{os.getpid()}@{socket.gethostname()}"
        return own_labels(sandbox_id, self._store, owner, limits)

    def _check_protection(self, connection: Connection) -> None:
        """Refuse a sandbox without the protection that it must have."""
        hello = connection.hello
        wanted = Feature.INIT | Feature.SECCOMP | Feature.NO_NEW_PRIVS
        uid = int(self._config.user.partition(":")[0])
        if hello is None or hello.features & wanted != wanted or hello.uid != uid:
            raise CreateError("the sandbox came up without its protection", backend=self.name)

    async def _put_away(self, sandbox_id: str) -> None:
        self._boxes.pop(sandbox_id, None)
        if self._storage is not None:
            await self._storage.remove(sandbox_id)
        if self._network is not None:
            await self._network.remove(sandbox_id)

    async def reap(self) -> int:
        if self._engine is not None:
            return await reap_engine(self._engine)
        engine = Engine(find_endpoint(self._config))
        try:
            await engine.open()
            return await reap_engine(engine)
        finally:
            await engine.aclose()

    async def aclose(self) -> None:
        engine, self._engine = self._engine, None
        if engine is None:
            return
        with anyio.CancelScope(shield=True):
            for box in list(self._boxes.values()):  # which need the engine for all that they do
                engine.tasks.spawn(box.discard())
            await engine.tasks.drain()
            if self._watch is not None:
                await self._watch.aclose()
                self._watch = None
            await engine.aclose()


async def _undo(making: asyncio.Future[Sandbox]) -> None:
    """Close what was made for somebody who has gone."""
    try:
        sandbox = await making
    except SandboxError:
        return  # it has undone itself
    await sandbox.aclose()
