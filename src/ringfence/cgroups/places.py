"""Where the cgroups of sandboxes can be made on this machine.

`probe` finds a place by making a group there. It tries, in this order:

1. v2, the process's own group. A v2 group that hands controllers down may hold no process
   itself, so where the group is ours alone (delegated by systemd, the root of a container, or
   the only one an ordinary user may write to) its processes are moved into the leaf
   `ringfence-host` below it, and stay there.
2. v2, the groups above it, up to the root of the mount.
3. v1, the process's own group in the memory, cpu and pids hierarchies, each by itself.

Sandboxes' groups are made in a directory `ringfence` below the group that was found, so that the
limits of that group hold them all. The directory goes when the process exits, if it is empty.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ringfence.errors import CreateError

from .files import PARENT, make_parent, read, remove_parents, write
from .group import Group
from .values import CONTROLLERS, Hierarchy

__all__ = ("Mount", "Unavailable", "own_dir", "parse_membership", "parse_mounts", "probe")

HOST_LEAF = "ringfence-host"

_TRIAL_MEMORY_BYTES = 64 * 1024 * 1024
_TRIAL_CPUS = 0.5
_TRIAL_PIDS = 16
_EVACUATION_ROUNDS = 20

_parents: set[str] = set()


@dataclass(frozen=True)
class Unavailable:
    """No controller can be used here.

    Attributes:
        reason: What blocks each place that was tried.
    """

    reason: str


class Mount(NamedTuple):
    """A mounted cgroup hierarchy; of v2 the controllers are told by its files, not here."""

    version: int
    root: str
    point: str
    controllers: frozenset[str]


def probe(proc: str = "/proc/self") -> Hierarchy | Unavailable:
    """Find where groups can be made, by making some with limits and removing them. Never raises.

    Takes a few milliseconds and may move this process within its own v2 group: call it once.

    Args:
        proc: The directory to read `mountinfo` and `cgroup` from.
    """
    if sys.platform != "linux":
        return Unavailable("cgroups are a feature of Linux")
    try:
        mounts = parse_mounts(read(f"{proc}/mountinfo"))
        membership = parse_membership(read(f"{proc}/cgroup"))
    except OSError as error:
        return Unavailable(f"{error.filename}: {error.strerror}")
    best = Hierarchy(0, {})
    reasons: list[str] = []
    for candidate in _candidates(mounts, membership):
        found = _tried(candidate)
        if len(found.parents) > len(best.parents):
            best = found
        if len(best.parents) == len(CONTROLLERS):
            break
        reasons += _reasons(found)
    if not best.parents:
        return Unavailable("; ".join(dict.fromkeys(reasons)) or "no cgroup file system is mounted")
    _parents.update(best.parents.values())
    return best


def _reasons(found: Hierarchy) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, why in found.missing.items():
        names.setdefault(why, []).append(name)
    return [f"v{found.version} {', '.join(names[why])}: {why}" for why in names]


@atexit.register
def _remove_our_parents() -> None:
    remove_parents(_parents)


# Places to try.


def _candidates(mounts: list[Mount], membership: Mapping[str, str]) -> Iterator[Hierarchy]:
    """Yield the places, best first; each is prepared only when it is asked for."""
    unified = next((mount for mount in mounts if mount.version == 2), None)
    if unified is not None:
        yield from _v2_candidates(unified, own_dir(unified, membership.get("", "/")))
    parents: dict[str, str] = {}
    missing: dict[str, str] = {}
    for controller in CONTROLLERS:
        mount = next((mount for mount in mounts if controller in mount.controllers), None)
        if mount is None:
            missing[controller] = "no hierarchy with this controller is mounted"
        else:
            own = own_dir(mount, membership.get(controller, "/"))
            parents[controller] = f"{own}/{PARENT}"
    if parents:
        yield Hierarchy(1, parents, missing)


def _v2_candidates(mount: Mount, own: str) -> Iterator[Hierarchy]:
    first = _v2_hierarchy(own)
    yield first
    if not first.parents and _has_controllers(own) and _is_ours(mount, own) and _evacuate(own):
        yield _v2_hierarchy(own)
    while own.startswith(f"{mount.point}/"):
        own = os.path.dirname(own)
        yield _v2_hierarchy(own)


def _v2_hierarchy(base: str) -> Hierarchy:
    """Hand the controllers down to the groups in `base/ringfence`, as far as that goes."""
    parent = f"{base}/{PARENT}"
    try:
        available = read(f"{base}/cgroup.controllers").split()
        obstacle = _obstacle(base)
    except OSError as error:
        available, obstacle = [*CONTROLLERS], f"{error.filename}: {error.strerror}"
    parents: dict[str, str] = {}
    missing: dict[str, str] = {}
    for controller in CONTROLLERS:
        if controller not in available:
            missing[controller] = f"{base} does not have this controller"
        elif obstacle is not None:
            missing[controller] = obstacle
        else:
            try:
                make_parent(parent, [controller], version=2)
                parents[controller] = parent
            except OSError as error:
                missing[controller] = f"{error.filename}: {error.strerror}"
    if not parents:
        remove_parents([parent])
    return Hierarchy(2, parents, missing)


def _obstacle(base: str) -> str | None:
    """Return what keeps groups from being made below this one, without trying it.

    Trying is not harmless: a group that holds processes takes cpu and pids, only refuses memory,
    and from then on no process can join any group below it.
    """
    # Who moves a process must be able to write to the cgroup.procs of the group above both.
    if not os.access(f"{base}/cgroup.procs", os.W_OK):
        return f"{base} is not writable"
    if _is_root(base) or not read(f"{base}/cgroup.procs").split():
        return None
    return f"{base} holds processes itself"


def _is_root(group: str) -> bool:
    return not os.path.exists(f"{group}/cgroup.type")  # which every other v2 group has


def _has_controllers(group: str) -> bool:
    try:
        return not {*CONTROLLERS}.isdisjoint(read(f"{group}/cgroup.controllers").split())
    except OSError:
        return False


def _is_ours(mount: Mount, own: str) -> bool:
    """Return whether nobody else manages the processes of this group, so that we may."""
    if own == mount.point:
        return not _is_root(own)
    for name in ("user.delegate", "trusted.delegate"):  # set by systemd
        with contextlib.suppress(OSError):
            if os.getxattr(own, name) == b"1":
                return True
    return os.geteuid() != 0 and not os.access(os.path.dirname(own), os.W_OK)


def _evacuate(own: str) -> bool:
    """Move the group's processes into a leaf below it and return whether it is empty now."""
    leaf = f"{own}/{HOST_LEAF}"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(leaf, 0o755)
        for _ in range(_EVACUATION_ROUNDS):  # one that forks meanwhile leaves its child behind
            pids = read(f"{own}/cgroup.procs").split()
            if not pids:
                return True
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    write(f"{leaf}/cgroup.procs", pid)
    except OSError:  # not writable after all: the next place is tried
        with contextlib.suppress(OSError):
            os.rmdir(leaf)
    return False


def _tried(candidate: Hierarchy) -> Hierarchy:
    """Return the candidate with only those controllers whose limits can really be set."""
    parents: dict[str, str] = {}
    missing = dict(candidate.missing)
    for controller, parent in candidate.parents.items():
        why = _trial(Hierarchy(candidate.version, {controller: parent}))
        if why is None:
            parents[controller] = parent
        else:
            missing[controller] = why
    remove_parents(set(candidate.parents.values()) - set(parents.values()))
    return Hierarchy(candidate.version, parents, missing)


def _trial(alone: Hierarchy) -> str | None:
    """Make and remove a group with a limit; return what went wrong, or None."""
    try:
        group = Group.create(
            alone,
            f"probe-{os.getpid()}-{secrets.token_hex(4)}",
            memory_bytes=_TRIAL_MEMORY_BYTES if "memory" in alone.parents else None,
            cpus=_TRIAL_CPUS if "cpu" in alone.parents else None,
            pids=_TRIAL_PIDS if "pids" in alone.parents else None,
        )
    except CreateError as error:
        cause = error.__cause__
        return f"{cause.filename}: {cause.strerror}" if isinstance(cause, OSError) else str(error)
    why = _cannot_hold_processes(group.dirs[0]) if alone.version == 2 else None
    return why if group.remove() else f"{group.dirs[0]} can't be removed"


def _cannot_hold_processes(group: str) -> str | None:
    try:
        kind = read(f"{group}/cgroup.type").strip()
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None if kind == "domain" else f"{group} is {kind!r} and can't hold processes"


# Pure functions.


def parse_mounts(mountinfo: str) -> list[Mount]:
    """Return the cgroup mounts among the lines of `/proc/<pid>/mountinfo`."""
    mounts: list[Mount] = []
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, (kind, *_, options) = head.split(" "), tail.split(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind == "cgroup2" else 1
        controllers = frozenset(options.split(",")) if version == 1 else frozenset()
        mounts.append(Mount(version, _plain(fields[3]), _plain(fields[4]), controllers))
    return mounts


def _plain(field: str) -> str:
    """Undo the octal escapes that the kernel writes for blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def parse_membership(text: str) -> dict[str, str]:
    """Return the process's path in each hierarchy, by controller; v2 has the empty name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def own_dir(mount: Mount, path: str) -> str:
    """Return the directory of a group; the mount's own where the group is not shown in it."""
    root = mount.root.rstrip("/")
    inside = path == root or path.startswith(f"{root}/")
    if not inside or ".." in path.split("/"):
        return mount.point
    return mount.point + path[len(root) :].rstrip("/")
