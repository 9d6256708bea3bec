"""The node: a containerd of its own and the kubelet, in namespaces that end with them.

Their mounts, processes, networks and sockets are nobody else's, so nothing of theirs is left when
the first process is killed, however that comes. What they want to set in the kernel (overcommit,
panic, forwarding) is shown to them as set already, and stays as it is. Control groups are the one
thing that outlives them; they are below one group and are removed.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
from pathlib import Path

from . import debian, kubernetes_images, kubernetes_parts
from .daemon import Daemon, name_of
from .kubernetes_parts import Plan
from .steps import CACHE, ServiceError, need_root, until

PACKAGES = ("containerd", "runc", "containernetworking-plugins", "util-linux")
PROGRAMS = ("containerd", "ctr", "runc", "unshare", "/usr/lib/cni/ptp")

NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
KERNEL = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
    "net/ipv4/ip_forward": "1",
}
"""What the kubelet and the network plugin set unless they find it so."""

SCRIPT = """\
set -eu
group={group}
if [ $# = 0 ]; then  # the group that we are in now is all that is seen of groups from here on
    for tree in {trees}; do echo 0 >"$tree/$group/cgroup.procs"; done
    exec unshare --cgroup sh "$0" inside
fi
for tree in {trees}; do
    mount --bind "$tree/$group" "$tree"
    [ -e "$tree/cgroup.controllers" ] || continue
    mkdir -p "$tree/node"  # where a group with processes of its own may have none below it
    echo 0 >"$tree/node/cgroup.procs"
done
cd {cache}
for place in /run /var/lib /var/log; do
    mount -t tmpfs -o mode=755 none "$place"
done
if [ ! -e {cache} ]; then  # it was below one of these, and we are still in it
    mkdir -p {cache}
    mount --no-canonicalize --bind . {cache}
fi
cd /
mkdir -p /run/cni /var/lib/kubelet
cp {network} /run/cni/pods.conflist
shown() {{
    [ -e "/proc/sys/$1" ] || return 0
    mkdir -p "/run/kernel/${{1%/*}}"
    echo "$2" >"/run/kernel/$1"
    mount --bind "/run/kernel/$1" "/proc/sys/$1"
}}
{shown}
containerd --config {containerd} &
tries=0
until ctr version >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 600 ]
    sleep 0.05
done
ctr --namespace k8s.io images import {images}
while :; do  # a kubelet that ended is started again, as an init system would
    {kubelet} || true
    sleep 1
done
"""


class Node(Daemon):
    """The node's first process, and what there is below it."""

    def __init__(self) -> None:
        super().__init__("kubernetes/node")

    def begin(self, plan: Plan) -> None:
        """Start it; it is ready when the API server says so.

        Raises:
            ServiceError: Not root, or something that it needs can't be had.
        """
        need_root("starting a cluster", "set KUBECONFIG to one that is there")
        debian.install(PACKAGES, programs=PROGRAMS)
        images = kubernetes_images.archive()
        files = {
            "kubelet.json": json.dumps(kubernetes_parts.kubelet_settings(plan), indent=1),
            "containerd.toml": kubernetes_parts.containerd_settings(kubernetes_images.PAUSE_NAME),
            "pods.conflist": json.dumps(kubernetes_parts.network_settings(plan), indent=1),
            "resolv.conf": "",
            "node.sh": script(plan, images),
        }
        for name, text in files.items():
            (plan.place / name).write_text(text, "utf-8")
        make_cgroups(plan.group)
        self.start(["unshare", *NAMESPACES, "sh", str(plan.place / "node.sh")])

    def end(self, plan: Plan | None) -> bool:
        """Kill it with all that runs there, and say whether there was anything to stop."""
        was_there = self.stop(sign=signal.SIGKILL)
        if plan:
            remove_cgroups(plan.group)
        return was_there

    def kubelet(self) -> int | None:
        """Return the kubelet's pid, or None if it does not run; it is started again if it ends."""
        shells = _children(self.pid) if self.pid else []
        found = [pid for shell in shells for pid in _children(shell) if name_of(pid) == "kubelet"]
        return found[0] if found else None


def script(plan: Plan, images: Path) -> str:
    """Return what the first process does."""
    return SCRIPT.format(
        trees=shlex.join(map(str, _trees())),
        group=shlex.quote(plan.group),
        cache=shlex.quote(str(CACHE)),
        network=shlex.quote(str(plan.place / "pods.conflist")),
        containerd=shlex.quote(str(plan.place / "containerd.toml")),
        images=shlex.quote(str(images)),
        kubelet=shlex.join(kubernetes_parts.kubelet(plan)),
        shown="\n".join(f"shown {name} {value}" for name, value in KERNEL.items()),
    )


def make_cgroups(name: str) -> None:
    """Make the group that all of it is in, in every hierarchy, with the processors it may use.

    Raises:
        ServiceError: We may not.
    """
    try:
        for tree in _trees():
            _make_cgroup(tree, name)
    except OSError as error:
        raise ServiceError(f"a cluster needs control groups that it may make: {error}") from None


def _make_cgroup(tree: Path, name: str) -> None:
    with contextlib.suppress(OSError):  # of the newer kind: a container may not, nor need it
        enabled = (tree / "cgroup.controllers").read_text("ascii").split()
        words = " ".join(f"+{one}" for one in enabled)
        (tree / "cgroup.subtree_control").write_text(words, "ascii")
    group = tree / name
    group.mkdir(exist_ok=True)
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (tree / file).exists() and not (group / file).read_text("ascii").strip():
            (group / file).write_text((tree / file).read_text("ascii"), "ascii")


def remove_cgroups(name: str) -> None:
    """Remove that group and all below it.

    Raises:
        ServiceError: Something still runs there.
    """
    groups = [tree / name for tree in _trees()]

    def gone() -> bool:
        for group in groups:
            for directory in (*sorted(group.rglob("*/"), reverse=True), group):
                with contextlib.suppress(OSError):  # not empty yet, or gone by itself
                    directory.rmdir()
        return not any(group.exists() for group in groups)

    until(gone, seconds=20, what=f"the control group {name} to be empty")


def _trees() -> list[Path]:
    mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    return [Path(words[1]) for words in mounts if words[2] in ("cgroup", "cgroup2")]


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
