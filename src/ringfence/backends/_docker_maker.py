"""Makes sandboxes on an engine that has been reached, and sees to all that they need of it."""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread

from .. import inventory
from ..backend import Sandbox
from ..config import ContainerConfig
from ..errors import CreateError
from ..models import Capabilities, Isolation, Limits, SandboxSpec, new_sandbox_id
from ..warden.connection import Connection
from ..warden.frames import Feature
from ..warden.sandbox import Host, WardenSandbox
from ._docker_body import LABEL, Plan, command_environment, container_body, own_labels
from ._docker_box import Box
from ._docker_checks import checked_mounts
from ._docker_exec import ExecSandbox
from ._docker_exec_body import exec_container_body
from ._docker_exec_box import ExecBox
from ._docker_facts import engine_time
from ._docker_network import Network
from ._docker_reach import Reached
from ._docker_reap import reap_engine
from ._docker_socket import WardenSocket
from ._docker_storage import Storage
from ._docker_warden import Door, load_warden, write_hosts
from ._docker_watch import Watch

__all__ = ("Maker",)

_NAME = "container"


class Maker:
    """Makes sandboxes on one engine, from `prepare` to `aclose`.

    Args:
        config: The backend's settings.
        reached: The engine, which `aclose` closes, and what is known of it.

    Attributes:
        engine: The engine.
        boxes: The containers that there are, by their names.
        warden_volume: The volume with the warden, once it is prepared.
    """

    def __init__(self, config: ContainerConfig, reached: Reached) -> None:
        self.engine = reached.engine
        self.boxes: dict[str, Box] = {}
        self.warden_volume = ""
        self._config = config
        self._facts = reached.facts
        self._image = reached.image
        self._env = command_environment(reached.image.env)
        self._hosts = ""
        self._store = ""
        self._storage = Storage(self.engine, config, reached.image.id, tmpfs=reached.facts.tmpfs)
        self._network = Network(self.engine, guarded=not reached.facts.no_guard)
        self._watch: Watch | None = None

    @property
    def _able(self) -> Capabilities:
        return self._facts.capabilities(self._config)

    async def prepare(self) -> None:
        """Remove what dead owners left, bring the warden in, and listen to the engine.

        Raises:
            SandboxError: Something that sandboxes need can't be had.
        """
        await anyio.to_thread.run_sync(inventory.owner)
        self._store = await anyio.to_thread.run_sync(inventory.store_id)
        await reap_engine(self.engine)
        await self._bring_warden()
        self._storage.check()
        if self._config.network not in ("none", "bridge"):
            await self._network.check(self._config.network)
        self._watch = Watch(self.engine, f"{LABEL}store={self._store}", self.boxes)
        self._watch.start(engine_time(self.engine.info))

    async def _bring_warden(self) -> None:
        """Use a door, noted like a sandbox, so that it goes away if this process dies meanwhile."""
        binary = await anyio.to_thread.run_sync(load_warden, self._facts.architecture)
        hosts = write_hosts() if self.engine.endpoint.is_local else ""
        door = Door(self.engine, self._image.id, binary, hosts)
        name, owner = new_sandbox_id(), inventory.owner()
        owner.add(self._entry(name, {"kind": "door"}))
        try:
            await door.prepare(self._own_labels(name, Limits()))
        finally:
            owner.discard(name)
        self.warden_volume, self._hosts = door.volume, door.hosts

    def _entry(self, name: str, labels: Mapping[str, str], socket_dir: str = "") -> inventory.Entry:
        engine, work_dir = self.engine.endpoint.url, socket_dir or None
        return inventory.Entry(name, _NAME, engine=engine, work_dir=work_dir, labels=dict(labels))

    async def make(
        self, spec: SandboxSpec, limits: Limits, sandbox_id: str, patience: float
    ) -> Sandbox:
        """Make a sandbox.

        Args:
            spec: What was asked for.
            limits: Every limit filled in.
            sandbox_id: Its id.
            patience: Seconds that it outlives the end of its stream by.

        Raises:
            SandboxError: It could not be made, and what had been begun has been undone.
        """
        socket_dir = self._socket_dir(sandbox_id)
        inventory.owner().add(self._entry(sandbox_id, spec.labels, socket_dir))
        labels = {**self._config.labels, **spec.labels, **self._own_labels(sandbox_id, limits)}
        box = self.boxes[sandbox_id] = self._box(sandbox_id, limits, patience)
        try:
            plan = await self._plan(spec, limits, sandbox_id, labels, patience)
            with WardenSocket(socket_dir) if socket_dir else nullcontext() as socket:
                plan = replace(plan, socket=socket.path if socket else "")
                sandbox = await self._boot(box, plan, spec, socket)
        except BaseException:
            await box.discard()
            raise
        weakref.finalize(sandbox, box.abandon, asyncio.get_running_loop()).atexit = False
        return sandbox

    def _socket_dir(self, sandbox_id: str) -> str:
        """Return where a socket of ours for its warden is to lie; empty where it can't call us.

        It can where the engine shows our files in its containers, and they run on our own kernel.
        """
        shown = self._config.transport == "auto" and self.engine.endpoint.socket and self._hosts
        if not shown or self._able.isolation is not Isolation.CONTAINER:
            return ""
        return f"{inventory.state_dir()}/ringfence-{sandbox_id}"

    def _box(self, sandbox_id: str, limits: Limits, patience: float) -> Box:
        put_away = partial(self._put_away, sandbox_id)
        if self._config.transport == "exec":
            return ExecBox(self.engine, sandbox_id, put_away, self._config.user, limits)
        return Box(self.engine, sandbox_id, put_away, patience=patience)

    async def _plan(
        self,
        spec: SandboxSpec,
        limits: Limits,
        sandbox_id: str,
        labels: Mapping[str, str],
        patience: float,
    ) -> Plan:
        """Decide all about a sandbox, and make what its container is to find there."""
        workspace = await self._storage.make(sandbox_id, limits, labels)
        mode = spec.network.mode if spec.network else self._config.network
        return Plan(
            sandbox_id=sandbox_id,
            image=self._image.id,
            limits=limits,
            network=await self._network.make(sandbox_id, labels) if mode == "bridge" else mode,
            hosts=self._hosts,
            warden_volume=self.warden_volume,
            workspace=workspace,
            volumes=(*self._image.volumes, *self._unsized()),
            mounts=checked_mounts((*self._config.mounts, *spec.mounts)),
            labels=labels,
            owned_tmpfs=self._facts.tmpfs,
            nproc=self._facts.nproc,
            auto_remove=not (patience and self.engine.leaves_containers),
            orphan_seconds=patience,
        )

    def _unsized(self) -> tuple[str, ...]:
        return () if self._config.writable_rootfs else self._facts.unsized

    async def _boot(
        self, box: Box, plan: Plan, spec: SandboxSpec, socket: WardenSocket | None
    ) -> Sandbox:
        """Make a container, start it and return the sandbox in it."""
        limits = plan.limits
        timeout = limits.start_timeout or 10.0
        if isinstance(box, ExecBox):
            await box.make(exec_container_body(plan, self._config), timeout)
            return ExecSandbox(box, self._env, spec=spec, limits=limits, capabilities=self._able)
        connection = await box.make(container_body(plan, self._config), timeout, socket)
        self._check_protection(connection)
        return WardenSandbox(
            connection,
            Host(box.aclose, None, self._env, resume=box.resume),
            backend=_NAME,
            sandbox_id=plan.sandbox_id,
            spec=spec,
            limits=limits,
            capabilities=self._able,
        )

    def _check_protection(self, connection: Connection) -> None:
        """Refuse a sandbox without the protection that it must have."""
        hello = connection.hello
        wanted = Feature.INIT | Feature.SECCOMP | Feature.NO_NEW_PRIVS
        uid = int(self._config.user.partition(":")[0])
        if hello is None or hello.features & wanted != wanted or hello.uid != uid:
            raise CreateError("the sandbox came up without its protection", backend=_NAME)

    def _own_labels(self, sandbox_id: str, limits: Limits) -> dict[str, str]:
        owner = f"{os.getpid()}@{socket.gethostname()}"
        return own_labels(sandbox_id, self._store, owner, limits)

    async def _put_away(self, sandbox_id: str) -> None:
        self.boxes.pop(sandbox_id, None)
        await self._storage.remove(sandbox_id)
        await self._network.remove(sandbox_id)

    async def aclose(self) -> None:
        """End every sandbox, and let go of the engine. Not to be cancelled."""
        for box in list(self.boxes.values()):  # which need the engine for all that they do
            self.engine.tasks.spawn(box.discard())
        await self.engine.tasks.drain()
        if self._watch is not None:
            await self._watch.aclose()
        await self.engine.aclose()
