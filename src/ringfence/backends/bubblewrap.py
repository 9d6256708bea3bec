"""A jail of Linux namespaces, made by bubblewrap, with a warden as its PID 1.

Theory of operation. `warden launch` joins the sandbox's cgroups and, where this process is root,
gives root up for a host uid that only this sandbox has; then it becomes `bwrap`, which makes user,
PID, mount, IPC, UTS, cgroup and network namespaces, shows the host's `/usr` read-only (or a given
root file system), fresh `/proc` and `/dev`, and sized `/tmp`, `/dev/shm` and `/workspace`, and
starts the warden as PID 1 and uid 65534 without a capability. The warden installs the system call
filter on itself, and so on all that it starts. Output comes back over its socket.

    this process --- bwrap (outer, waits) --- warden (PID 1 inside) --- keepers --- commands

Who kills: the warden a command's tree, on deadline or request; the kernel everything, when PID 1
ends; and PID 1 ends when its socket closes, when bwrap dies (parent-death signal) or at its
maximum age. Nothing survives between two sandboxes; within one, the workspace and left-overs do.

What this does not protect against: faults of the kernel's own system call interface, which all
sandboxes share with the host; timing and other side channels between sandboxes; use of CPU, memory
and processes where no cgroup can be made (see `capabilities.limits`). There is no network at all.

Host setup: user namespaces that this user may make. `ringfence doctor` says what blocks them.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from .. import cgroups, inventory
from ..backend import BASE_LIMITS, Backend, Sandbox
from ..config import BubblewrapConfig
from ..errors import (
    BackendUnavailableError,
    ConfigError,
    CreateError,
    LimitError,
    SandboxClosedError,
    SandboxError,
)
from ..models import (
    Capabilities,
    Enforced,
    Enforcement,
    Isolation,
    Limits,
    Mount,
    Probe,
    SandboxSpec,
    new_sandbox_id,
)
from ..warden.boot import Boot
from ..warden.connection import Connection
from ..warden.frames import Feature
from ..warden.order import Order
from ..warden.sandbox import Host, WardenSandbox
from ..warden.spawner import drain
from ._bubblewrap_spares import Spares
from ._jail import JAIL_UID, Jail, find_jail, jail_argv

__all__ = ("BubblewrapBackend",)

_MIB = 1 << 20
_LEAST_PIDS = 8

DEFAULT_LIMITS = Limits(
    memory_bytes=512 * _MIB,
    cpus=1.0,
    pids=256,
    open_files=1024,
    workspace_bytes=256 * _MIB,  # below the memory limit, which counts it
    workspace_files=100_000,
    tmp_bytes=64 * _MIB,
)

ENVIRONMENT = {
    b"PATH": b"/usr/local/bin:/usr/bin:/bin",
    b"HOME": b"/tmp/home",
    b"TMPDIR": b"/tmp",
    b"XDG_CACHE_HOME": b"/tmp/home/.cache",
    b"MPLCONFIGDIR": b"/tmp/home/.cache/matplotlib",
    b"LANG": b"C.UTF-8",
    b"TERM": b"dumb",
}


class BubblewrapBackend(Backend):
    """Runs commands in namespaces of their own, without a daemon."""

    name = "bubblewrap"

    def __init__(self, config: BubblewrapConfig | None = None) -> None:
        self._config = config or BubblewrapConfig()
        self._jail: Jail | None = None
        self._hierarchy: cgroups.Hierarchy | None = None
        self._no_cgroups = ""
        self._capabilities: Capabilities | None = None  # once opened: asked for by every sandbox
        self._plain: tuple[SandboxSpec, Limits] | None = None  # what a one-shot without a spec gets
        self._spares: Spares | None = None
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        found = self._capabilities
        if found is None:
            found = _capabilities(self._hierarchy, self._no_cgroups, os.geteuid() == 0)
        return found

    @property
    def default_limits(self) -> Limits:
        return self._config.limits.over(DEFAULT_LIMITS)

    def _asked(self) -> frozenset[str]:
        return self._config.limits.asked()

    async def probe(self) -> Probe:
        try:
            await self._try_out()
            details = {"bwrap": self._jail.bwrap if self._jail else ""}
        except SandboxError as error:
            return Probe(False, error.message, error.hint or "")
        finally:
            with anyio.CancelScope(shield=True):
                await drain()
        return Probe(True, details=details | {"cgroups": self._no_cgroups or "usable"})

    async def _open(self) -> None:
        await self._try_out()
        self._spares = Spares(self._start_spare, self._adopt_spare)
        self._spares.fill(self._config.spares)

    async def _try_out(self) -> None:
        """Make a sandbox, and end it.

        Raises:
            BackendUnavailableError: There can be none here; the message says why.
            ConfigError: What is asked for can't be had.
        """
        if self._config.network != "none":
            raise ConfigError(
                f"network {self._config.network!r} is not available on bubblewrap",
                backend=self.name,
                hint="the container and kubernetes backends can reach a network",
            )
        await anyio.to_thread.run_sync(self._prepare)
        self._capabilities = self.capabilities
        self._plain = wanted, limits = self._resolve(None)
        try:
            sandbox = await self._create(wanted, limits, new_sandbox_id())
        except CreateError as error:
            raise BackendUnavailableError(
                f"bubblewrap can't make a sandbox here: {error.message}",
                backend=self.name,
                hint=_what_blocks(),
            ) from error
        await sandbox.aclose()

    def _prepare(self) -> None:
        inventory.reap()
        found = cgroups.probe()
        if isinstance(found, cgroups.Hierarchy):
            self._hierarchy = found
        else:
            self._no_cgroups = found.reason
        self._jail = find_jail(self._config)

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        if self._closed or self._jail is None:
            raise SandboxClosedError("the backend is not open", backend=self.name)
        if limits.pids is not None and limits.pids < _LEAST_PIDS:
            raise LimitError(
                "pids",
                f"a sandbox needs at least {_LEAST_PIDS} processes, not {limits.pids}",
                backend=self.name,
                hint="bwrap, the warden and one more for each running command are counted too",
            )
        boot = Boot(self._order(spec, limits, sandbox_id))
        connection = await boot.connect(limits.start_timeout or 10.0)
        try:
            return self._checked(boot, connection, spec, limits)
        except CreateError:
            await boot.aclose()
            raise

    def _checked(
        self, boot: Boot, connection: Connection, spec: SandboxSpec, limits: Limits
    ) -> WardenSandbox:
        """Make a sandbox of a boot, if it has the protection that it must have."""
        hello = connection.hello
        wanted = Feature.INIT | Feature.SECCOMP | Feature.NO_NEW_PRIVS
        if hello is None or hello.features & wanted != wanted or hello.uid != JAIL_UID:
            raise CreateError("the sandbox came up without its protection", backend=self.name)
        return WardenSandbox(
            connection,
            Host(
                boot.aclose,
                boot.group.oom_kills if boot.group else None,
                ENVIRONMENT,
                boot.dismiss,
            ),
            backend=self.name,
            sandbox_id=boot.order.sandbox_id,
            spec=spec,
            limits=limits,
            capabilities=self.capabilities,
        )

    def _order(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Order:
        assert self._jail is not None
        mounts = (*(Mount(m.source, m.target) for m in self._config.mounts), *spec.mounts)
        for mount in mounts:
            if not os.path.exists(mount.source):
                raise ConfigError(f"mount source {mount.source!r} does not exist")
        return Order(
            backend=self.name,
            sandbox_id=sandbox_id,
            argv=partial(jail_argv, self._jail, limits, mounts, self.capabilities.limits),
            group=partial(self._make_group, limits, sandbox_id) if self._hierarchy else None,
            cgroups=self._groups_of(sandbox_id),
            private_uid=self._jail.stage is not None,
            jailed=True,
            labels=spec.labels,
        )

    def _groups_of(self, sandbox_id: str) -> tuple[str, ...]:
        parents = self._hierarchy.parents.values() if self._hierarchy else ()
        return tuple(f"{parent}/{sandbox_id}" for parent in dict.fromkeys(parents))

    def _make_group(self, limits: Limits, sandbox_id: str) -> cgroups.Group:
        assert self._hierarchy is not None
        usable = self._hierarchy.usable
        return cgroups.Group.create(
            self._hierarchy,
            sandbox_id,
            memory_bytes=limits.memory_bytes if "memory" in usable else None,
            cpus=limits.cpus if "cpu" in usable else None,
            pids=limits.pids if "pids" in usable else None,
        )

    # Spares: sandboxes that are up before they are asked for.

    def _start_spare(self) -> Boot:
        """In the spawner's thread."""
        wanted, limits = self._resolve(None)
        return Boot(self._order(wanted, limits, new_sandbox_id()))

    def _adopt_spare(self, boot: Boot, connection: Connection) -> WardenSandbox:
        assert self._plain is not None
        wanted, limits = self._plain
        sandbox = self._checked(boot, connection, wanted, limits)
        sandbox.set_lifetime(limits.max_age or BASE_LIMITS.max_age or 3600.0)
        return sandbox

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        if self._spares is None or (spec is not None and spec != SandboxSpec()):
            return await self.create(spec)
        return self._spares.take() or await self.create(spec)

    async def _end_one_shot(self, sandbox: Sandbox) -> None:
        assert isinstance(sandbox, WardenSandbox)
        await sandbox.dismiss()  # its command's tree has been killed: the jail is empty

    async def reap(self) -> int:
        return await anyio.to_thread.run_sync(inventory.reap)

    async def aclose(self) -> None:
        self._closed = True
        with anyio.CancelScope(shield=True):
            if (spares := self._spares) is not None:
                spares.stop()
                await drain()  # a spare that is being made now is there after this
                spares.abandon()
            await drain()


def _capabilities(hierarchy: cgroups.Hierarchy | None, no_cgroups: str, root: bool) -> Capabilities:
    """Say what holds each limit, from what the machine lets us use."""
    usable = hierarchy.usable if hierarchy else frozenset()
    missing = hierarchy.missing if hierarchy else {}
    notes = ["All sandboxes share the host's kernel.", "There is no network but loopback."]
    if hierarchy is None:
        notes.append(f"No cgroup can be made here: {no_cgroups}.")
    if "memory" not in usable:
        notes.append(_lost("Memory is held for each process only", missing.get("memory")))
    if "cpu" not in usable:
        notes.append(_lost("CPU time is not held", missing.get("cpu")))
    if "pids" not in usable:
        notes.append("Processes are counted by the sandbox's own uid or user namespace.")
    if not root:
        notes.append("The number of files has no limit of its own; memory bounds it.")
    enforced = Enforcement.ENFORCED
    return Capabilities(
        isolation=Isolation.NAMESPACE,
        network_modes=("none",),
        mounts=True,
        terminal=True,
        limits=Enforced(
            memory_bytes=enforced if "memory" in usable else Enforcement.PER_PROCESS,
            cpus=enforced if "cpu" in usable else Enforcement.NONE,
            pids=enforced,
            open_files=Enforcement.PER_PROCESS,
            workspace_bytes=enforced,
            workspace_files=enforced if root else Enforcement.NONE,
            tmp_bytes=enforced,
        ),
        notes=tuple(notes),
    )


def _lost(what: str, why: str | None) -> str:
    return f"{what}: {why}." if why else f"{what}."


_BLOCKERS = (
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor (sysctl kernel.apparmor_restrict_unprivileged_userns)",
    ),
)


def _what_blocks() -> str:
    """Name the settings that keep this user from making user namespaces."""
    found = []
    for path, bad, name in _BLOCKERS:
        with contextlib.suppress(OSError):
            if Path(path).read_text(encoding="ascii").strip() == bad:
                found.append(name)
    if found:
        return "user namespaces are switched off by " + " and ".join(found)
    return "inside a container, its seccomp profile may refuse user namespaces"
