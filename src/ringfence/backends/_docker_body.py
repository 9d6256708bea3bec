"""What is said to the engine about a sandbox: pure functions of values.

The hardened defaults are here, each with its reason; tests hold them to literal expectations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import ContainerConfig
from ..errors import ConfigError
from ..models import Isolation, Limits, Mount
from ._docker_facts import isolation_of

__all__ = (
    "ENVIRONMENT",
    "LABEL",
    "SOCKET",
    "WARDEN",
    "WARDEN_DIR",
    "WORKSPACE",
    "Plan",
    "command_environment",
    "container_body",
    "own_labels",
    "seccomp_json",
    "shown_mount",
)

LABEL = "ringfence."
WARDEN_DIR = "/run/ringfence"
WARDEN = f"{WARDEN_DIR}/warden"
SOCKET = "/run/ringfence.socket"
WORKSPACE = "/workspace"
HOME = "/tmp/home"  # noqa: S108  # inside
_CPU_PERIOD = 100_000  # microseconds; what engines take by default
_WARDEN_FILES = 8192  # descriptors: three and more for each of its commands
_OOM_SCORE = 500  # a host short of memory ends a sandbox first
_GVISOR_THREADS = 128  # some 45 are there before the first program
_TMP = "/tmp"  # noqa: S108  # inside

ENVIRONMENT = {
    b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    b"LANG": b"C.UTF-8",
    b"TERM": b"dumb",
}
"""What commands get where the image says nothing of its own."""

_WRITABLE = {  # the root file system can't be written to, so these lie where one can
    b"HOME": HOME.encode(),
    b"TMPDIR": _TMP.encode(),
    b"XDG_CACHE_HOME": f"{HOME}/.cache".encode(),
    b"MPLCONFIGDIR": f"{HOME}/.cache/matplotlib".encode(),
}


@dataclass(frozen=True)
class Plan:
    """All that is decided about one sandbox before the engine hears of it.

    Attributes:
        sandbox_id: Also the container's name.
        image: The image, by its id, so that it can't change under a running backend.
        limits: Every limit filled in.
        network: `none`, or the name of a network of the engine.
        hosts: A file of the engine's machine to show as `/etc/hosts`. With it `none` means that
            the engine sets up no network at all, which takes a third of the time; or empty.
        warden_volume: The volume with the warden.
        workspace: A volume or a host directory for the workspace, or None for a tmpfs of the
            container's own.
        volumes: Where the image wants volumes, or the engine what has no size; each gets a tmpfs
            instead, for it would be writable and have no limit.
        mounts: Host paths to show read-only.
        labels: Everything to label the container with.
        owned_tmpfs: Whether the engine's memory file systems take an owner and an inode limit.
        nproc: RLIMIT_NPROC where the config names none, or None for the engine's own.
        auto_remove: Whether the engine removes it when it has ended. One that comes back to
            containers that it had left running removes those too.
        orphan_seconds: How long its warden waits for another stream when its own has broken.
        socket: The socket of ours that its warden is to connect to, or empty.
    """

    sandbox_id: str
    image: str
    limits: Limits
    network: str
    hosts: str
    warden_volume: str
    workspace: Mapping[str, Any] | None
    volumes: tuple[str, ...]
    mounts: tuple[Mount, ...]
    labels: Mapping[str, str]
    owned_tmpfs: bool = True
    nproc: int | None = None
    auto_remove: bool = True
    orphan_seconds: float = 0.0
    socket: str = ""


def container_body(plan: Plan, config: ContainerConfig) -> dict[str, Any]:
    """Return the request that creates a sandbox's container."""
    return {
        "Image": plan.image,
        "Entrypoint": [WARDEN],
        "Cmd": warden_arguments(plan),
        "User": config.user,
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Labels": dict(plan.labels),
        # One stream, from before the start; at its end the warden's stdin ends, so that a sandbox
        # does not outlive its host process unless it is meant to.
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "NetworkDisabled": plan.network == "none" and bool(plan.hosts),
        "Healthcheck": {"Test": ["NONE"]},  # the image's would run beside the sandbox's commands
        "StopTimeout": 1,
        "HostConfig": host_config(plan, config),
    }


def warden_arguments(plan: Plan) -> list[str]:
    """Return the arguments of the warden that is PID 1."""
    return [
        "serve",
        "--pipes",
        "--count-oom",
        "--seccomp",  # no container engine's own profile keeps a program from lowering PID 1
        *("--home", HOME),
        *("--open-files", str(plan.limits.open_files)),
        *("--max-age-ms", str(round((plan.limits.max_age or 0) * 1000))),
        *("--orphan-ms", str(round(plan.orphan_seconds * 1000))),
        *(("--socket", SOCKET) if plan.socket else ()),
    ]


def host_config(plan: Plan, config: ContainerConfig) -> dict[str, Any]:
    """Return the part that is about the host: hardening, limits and mounts."""
    limits = plan.limits
    host: dict[str, Any] = {
        "AutoRemove": plan.auto_remove,  # one whose owner has died leaves nothing behind either
        "Init": False,  # the warden is the init
        "Privileged": False,
        "ReadonlyRootfs": not config.writable_rootfs,
        "CapDrop": ["ALL"],
        "CapAdd": list(config.cap_add),
        "SecurityOpt": security_options(config),
        "NetworkMode": plan.network,
        "IpcMode": "private",
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,  # memory and swap together: there is no swap
        "OomScoreAdj": _OOM_SCORE,
        "CpuPeriod": _CPU_PERIOD,
        "CpuQuota": max(1000, round((limits.cpus or 0) * _CPU_PERIOD)),
        "PidsLimit": pids_limit(limits, config),
        "Ulimits": ulimits(plan, config),
        "ShmSize": config.shm_bytes or limits.tmp_bytes,
        "Tmpfs": tmpfs(plan, config),
        "Mounts": mounts(plan),
        "LogConfig": {"Type": "none", "Config": {}},  # what is said is no log, and has no limit
        "RestartPolicy": {"Name": "", "MaximumRetryCount": 0},
    }
    if config.runtime:
        host["Runtime"] = config.runtime
    return host


def pids_limit(limits: Limits, config: ContainerConfig) -> int:
    """Return how many threads of the host's the container may have.

    gVisor's kernel is a process with threads of its own, and has two or three more for each thread
    of a program; without one that it needs, it ends.
    """
    pids = limits.pids or 0
    if isolation_of(config.runtime) is Isolation.GVISOR:
        return _GVISOR_THREADS + 3 * pids
    return pids


def security_options(config: ContainerConfig) -> list[str]:
    """Return the options that keep a program from gaining privileges."""
    options = ["no-new-privileges:true"]
    if config.seccomp_profile:
        options.append(f"seccomp={seccomp_json(config.seccomp_profile)}")
    return options


def seccomp_json(profile: str) -> str:
    """Return a profile as JSON text.

    Args:
        profile: JSON, or the path of a file with it.

    Raises:
        ConfigError: It can't be read, or is no profile.
    """
    text = profile
    if not profile.lstrip().startswith("{"):
        try:
            with open(profile, encoding="utf-8") as file:
                text = file.read(1 << 20)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"seccomp_profile {profile!r:.200} can't be read: {error}", backend="container"
            ) from error
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"seccomp_profile is not JSON: {error}", backend="container") from None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("defaultAction"), str):
        raise ConfigError("seccomp_profile has no defaultAction", backend="container")
    return json.dumps(parsed, separators=(",", ":"))


def ulimits(plan: Plan, config: ContainerConfig) -> list[dict[str, Any]]:
    """Return the rlimits of the warden, which its commands can't raise.

    It needs more descriptors than each of its commands gets, and lowers theirs itself.
    """
    files = max(plan.limits.open_files or 0, _WARDEN_FILES)
    found = [_ulimit("core", 0), _ulimit("nofile", files)]
    nproc = plan.nproc if config.nproc is None else config.nproc
    if nproc is not None:
        found.append(_ulimit("nproc", nproc))
    return found


def _ulimit(name: str, value: int) -> dict[str, Any]:
    return {"Name": name, "Soft": value, "Hard": value}


def tmpfs(plan: Plan, config: ContainerConfig) -> dict[str, str]:
    """Return the memory file systems, by mount point."""
    limits = plan.limits
    files = f",nr_inodes={limits.workspace_files}" if plan.owned_tmpfs else ""
    scratch = f"rw,noexec,nosuid,nodev,size={limits.tmp_bytes}{files}"
    found = dict.fromkeys(plan.volumes, scratch)
    found[_TMP] = scratch
    found.update(config.tmpfs)
    if plan.workspace is None:
        uid, gid = config.user.split(":")
        size = f"size={limits.workspace_bytes}{files}"
        found[WORKSPACE] = f"rw,exec,nosuid,nodev,{size},mode=0755,uid={uid},gid={gid}"
    return found


def mounts(plan: Plan) -> list[dict[str, Any]]:
    """Return the mounts that are no memory file systems."""
    found: list[dict[str, Any]] = [
        {
            "Type": "volume",
            "Source": plan.warden_volume,
            "Target": WARDEN_DIR,
            "ReadOnly": True,
            "VolumeOptions": {"NoCopy": True},
        }
    ]
    if plan.workspace is not None:
        found.append({**plan.workspace, "Target": WORKSPACE})
    if plan.network == "none" and plan.hosts:
        found.append(shown_mount(plan.hosts, "/etc/hosts"))
    if plan.socket:
        found.append(shown_mount(plan.socket, SOCKET))
    found += [shown_mount(mount.source, mount.target) for mount in plan.mounts]
    return found


def shown_mount(source: str, target: str) -> dict[str, Any]:
    """Return the mount that shows a path of the engine's machine read-only."""
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}


def command_environment(image_env: Sequence[str]) -> dict[bytes, bytes]:
    """Return the variables that every command gets: the image's, and ours over some of them."""
    own = dict(
        pair.encode("utf-8", "surrogateescape").split(b"=", 1) for pair in image_env if "=" in pair
    )
    return {**ENVIRONMENT, **{name: value for name, value in own.items() if name}, **_WRITABLE}


def own_labels(
    sandbox_id: str, store: str, owner: str, limits: Limits, now: float | None = None
) -> dict[str, str]:
    """Return the labels by which what is ours is found again, and its owner."""
    created = time.time() if now is None else now
    return {
        f"{LABEL}sandbox": sandbox_id,
        f"{LABEL}store": store,
        f"{LABEL}owner": owner,
        f"{LABEL}created": str(int(created)),
        f"{LABEL}expires": str(int(created + (limits.max_age or 0))),
    }
