"""What an engine can do, as it says itself, and what follows for sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..config import ContainerConfig
from ..errors import BackendUnavailableError
from ..models import Capabilities, Enforced, Enforcement, Isolation

__all__ = ("Facts", "engine_time", "isolation_of", "learn")

_NAME = "container"
_RUNTIME_LEVELS = (("runsc", Isolation.GVISOR), ("kata", Isolation.KATA))


@dataclass(frozen=True)
class Facts:
    """What there is to know of an engine.

    Attributes:
        memory, cpus, pids: Whether it can hold a container to these limits.
        tmpfs: Whether a container's memory file systems can have an owner and an inode limit.
        unsized: Where it puts others of its own, without a size, if the root is read-only.
        seccomp: Whether it has a system call filter of its own.
        rootless: Whether it runs without root.
        runtimes: The OCI runtimes that a container can be given.
        local: Whether it is on this machine.
        nproc: RLIMIT_NPROC that it has to be told, or None: Podman would raise it as far as the
            kernel goes, and not start a container where it may not.
        no_guard: Why bridges can't be guarded here; empty if they can.
        architecture: Of its machine.
        details: Versions and the like, for people.
    """

    memory: bool = True
    cpus: bool = True
    pids: bool = True
    tmpfs: bool = True
    unsized: tuple[str, ...] = ()
    seccomp: bool = True
    rootless: bool = False
    runtimes: tuple[str, ...] = ()
    local: bool = True
    nproc: int | None = None
    no_guard: str = ""
    architecture: str = ""
    details: Mapping[str, str] = field(default_factory=dict)

    def check(self, config: ContainerConfig) -> None:
        """Refuse a config that this engine can't serve.

        Raises:
            BackendUnavailableError: It does not have the runtime, or its bridges can't be guarded.
        """
        if config.network == "bridge" and config.bridge_guard == "required" and self.no_guard:
            raise BackendUnavailableError(
                f"network 'bridge' can't be guarded here: {self.no_guard}",
                backend=_NAME,
                hint="bridge_guard='preferred' does without, and leads to the machine itself too",
            )
        if config.runtime and config.runtime not in self.runtimes:
            raise BackendUnavailableError(
                f"the engine has no runtime {config.runtime!r}; it has {', '.join(self.runtimes)}",
                backend=_NAME,
                hint="install it, and name it to the engine: for Docker in daemon.json, for Podman "
                "as its default in containers.conf",
            )

    def capabilities(self, config: ContainerConfig) -> Capabilities:
        """Return what sandboxes of this engine can promise."""
        modes = dict.fromkeys((config.network, "none", "bridge"))
        if self.no_guard and config.bridge_guard == "required":
            modes.pop("bridge", None)
        return Capabilities(
            isolation=isolation_of(config.runtime),
            network_modes=tuple(modes),
            mounts=self.local,
            terminal=isolation_of(config.runtime) is not Isolation.GVISOR,  # it lacks the calls
            limits=self._enforced(config),
            notes=tuple(self._notes(config)),
        )

    def _enforced(self, config: ContainerConfig) -> Enforced:
        enforced, nobody = Enforcement.ENFORCED, Enforcement.NONE
        sized = nobody if config.workspace_storage == "volume" else enforced
        counted = nobody if self._has_no_inode_limits(config) else sized
        return Enforced(
            memory_bytes=enforced if self.memory else nobody,
            cpus=enforced if self.cpus else nobody,
            pids=enforced if self.pids else nobody,
            open_files=Enforcement.PER_PROCESS,
            workspace_bytes=sized,
            workspace_files=counted,
            tmp_bytes=enforced,
        )

    @staticmethod
    def _has_no_inode_limits(config: ContainerConfig) -> bool:
        """Whether its memory file systems are gVisor's own, which count bytes alone."""
        gvisor = isolation_of(config.runtime) is Isolation.GVISOR
        return gvisor and config.workspace_storage == "tmpfs"

    def _notes(self, config: ContainerConfig) -> list[str]:
        notes = [_STORAGE_NOTES[config.workspace_storage]]
        if self._has_no_inode_limits(config):
            notes = [notes[0].replace("a size and an inode limit", "a size and no inode limit")]
        if (level := isolation_of(config.runtime)) is Isolation.CONTAINER:
            notes.append("All containers share the host's kernel.")
        notes += _RUNTIME_NOTES.get(level, ())
        if config.transport == "exec":
            notes += _EXEC_NOTES
        if config.writable_rootfs:
            notes.append("The root file system can be written to, without a size limit.")
        if config.network not in ("none", "bridge"):
            notes.append("Programs reach whatever there is on their network, and what it leads to.")
        elif config.network == "bridge" and not self.no_guard:
            notes.append("Programs reach what the engine's machine can reach, but not that itself.")
        if self.no_guard and config.bridge_guard != "required":
            notes.append(f"Bridges are not guarded, and lead to the machine too: {self.no_guard}.")
        if not self.seccomp:
            notes.append("The engine has no system call filter; the warden's own holds alone.")
        if not self.tmpfs:
            notes.append("The engine can't limit the number of files in /tmp; memory bounds it.")
        for held, name in ((self.memory, "memory"), (self.cpus, "CPU time"), (self.pids, "pids")):
            if not held:
                notes.append(f"The engine can't limit {name} here.")
        return notes


_STORAGE_NOTES = {
    "tmpfs": "The workspace is in memory, has a size and an inode limit, counts against the memory "
    "limit, and ends with its sandbox.",
    "volume": "The workspace is a volume on the engine's disk, has no limit of its own, and is "
    "removed with its sandbox.",
    "loop": "The workspace is a file system of its own on this machine's disk, has a size and an "
    "inode limit, and is removed with its sandbox.",
}

_RUNTIME_NOTES: Mapping[Isolation, tuple[str, ...]] = {
    Isolation.GVISOR: (
        "Programs run on a kernel of their own: running out of memory ends the whole sandbox.",
        "The limit on processes is one on that kernel's threads, some three for each of them.",
        "Reaching the limit on processes ends the whole sandbox.",
        "A program can end its own sandbox, by killing PID 1 of it.",
        "The commands of one sandbox can read and forge what the others and the warden say.",
    ),
    Isolation.KATA: (
        "Programs run in a virtual machine. What is asked of Kata is tested, and Kata itself not.",
    ),
}

_EXEC_NOTES = (
    "Each command and each file operation is an exec of the engine's, of a tenth of a second.",
    "A program that stops what holds its deadline costs its sandbox when the time is up.",
    "A tree that forks as fast as it is killed costs its sandbox.",
    "A sandbox whose host process has died lives until its maximum age, or until it is reaped.",
)


def isolation_of(runtime: str) -> Isolation:
    """Return what level an OCI runtime is, by its name; what is not known is a container."""
    for word, level in _RUNTIME_LEVELS:
        if word in runtime:
            return level
    return Isolation.CONTAINER


def learn(
    info: Mapping[str, Any],
    version: Mapping[str, Any],
    *,
    api: str,
    local: bool,
    most_processes: int | None = None,
) -> Facts:
    """Return what there is to know of an engine.

    Args:
        info: What `/info` says.
        version: What `/version` says.
        api: The version of the API that is spoken.
        local: Whether it is on this machine.
        most_processes: How many processes one user can have on its machine, if that is known.

    Raises:
        BackendUnavailableError: It runs no Linux containers.
    """
    if info.get("OSType", "linux") != "linux":
        raise BackendUnavailableError(
            f"the engine runs {info.get('OSType')} containers, and Linux ones are needed",
            backend=_NAME,
        )
    security = [str(option) for option in info.get("SecurityOptions") or ()]
    product = _product(version)
    runtimes = tuple(sorted(info.get("Runtimes") or {}))
    if product == "Podman":  # it hears of no other, and says nothing
        runtimes = tuple(filter(None, [str(info.get("DefaultRuntime") or "")]))
    rootless = any("rootless" in option for option in security)
    return Facts(
        memory=bool(info.get("MemoryLimit", True)),
        cpus=bool(info.get("CpuCfsQuota", True)),
        pids=bool(info.get("PidsLimit", True)),
        tmpfs=product == "Docker",
        unsized=() if product == "Docker" else ("/run", "/var/tmp"),  # noqa: S108  # inside
        seccomp=any("seccomp" in option for option in security),
        rootless=rootless,
        runtimes=runtimes,
        local=local,
        nproc=most_processes if product == "Podman" and not rootless else None,
        architecture=str(info.get("Architecture", "")),
        details={
            "engine": f"{product} {version.get('Version', '?')}, API {api[1:]}",
            "cgroups": f"version {info.get('CgroupVersion', '1')}",
            "runtimes": ", ".join(runtimes) or "unknown",
        },
    )


def _product(version: Mapping[str, Any]) -> str:
    names = [str(part.get("Name", "")) for part in version.get("Components") or ()]
    return "Podman" if any("podman" in name.lower() for name in names) else "Docker"


def engine_time(info: Mapping[str, Any]) -> float:
    """Return the engine's own clock, in seconds since the epoch, rounded down."""
    try:
        return float(int(datetime.fromisoformat(str(info.get("SystemTime", ""))).timestamp()))
    except ValueError:
        return 0.0
