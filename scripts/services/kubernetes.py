"""A Kubernetes cluster of one node: version 1.20, of the source that Debian has.

The API server, the controllers, the scheduler and their store listen on 127.0.0.1; the node has a
containerd of its own beside whatever engine the machine runs. A cluster that KUBECONFIG names is
used as it is. Pods have a network of their own that leads to this machine alone, services have no
addresses that work (there is no kube-proxy), and a NetworkPolicy is kept but not enforced.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from . import debian, kubernetes_build, kubernetes_parts, kubernetes_pki
from .daemon import Daemon
from .kubernetes_api import Api, given_answers
from .kubernetes_node import Node
from .kubernetes_parts import Plan
from .steps import CACHE, ServiceError, need_root, say, step

VARIABLE = "KUBECONFIG"
NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
READY_SECONDS = 120.0
GENTLY = ("chrt", "--idle", "0", "nice", "-n", "19")


class Kubernetes:
    """The cluster as a service."""

    name = "kubernetes"

    def __init__(self) -> None:
        self.place = CACHE / self.name
        self.etcd = Daemon("kubernetes/etcd")
        self.api = Daemon("kubernetes/api")
        self.controllers = Daemon("kubernetes/controllers")
        self.scheduler = Daemon("kubernetes/scheduler")
        self.node = Node()
        self._build = Daemon("kubernetes/build")

    def prepare(self) -> None:
        """Install what a cluster takes, and begin to build its program in the background.

        The build takes no time from anything else that runs; `up` goes on with what it has done.

        Raises:
            ServiceError: Not root, or there is no apt.
        """
        if self.given() or kubernetes_build.kept_program() or self._build.pid:
            return
        need_root("starting a cluster", f"set {VARIABLE} to one that is there")
        kubernetes_build.fetch()
        argv = [*GENTLY, sys.executable, "-m", "scripts.services.kubernetes_build"]
        self._build.start(argv, cwd=CACHE.parent.parent)
        say("kubernetes: building its program in the background")

    def up(self) -> None:
        """Have a cluster that runs pods.

        Raises:
            ServiceError: It can't be had.
        """
        if given := self.given():
            if not self.is_ready():
                raise ServiceError(f"{VARIABLE} is {given}, and no cluster answers there")
            say(f"kubernetes: the cluster of {VARIABLE} ({given}) is given")
            return
        if self.is_ready():
            return
        if self.node.pid and self.api.pid:  # busy, or just started: others may be using it
            self.node.wait(self._runs_pods, seconds=READY_SECONDS)
            return
        need_root("starting a cluster", f"set {VARIABLE} to one that is there")
        self.down()  # the rest of one that was killed; a build in the background goes on here
        program = kubernetes_build.program()
        debian.install(("etcd-server",), programs=("etcd",))
        with step("kubernetes: started the cluster"):
            self._start(program)

    def is_ready(self) -> bool:
        """Whether the cluster would run a pod."""
        if given := self.given():
            return given_answers(given)
        return self.is_ours() and self._runs_pods()

    def is_ours(self) -> bool:
        """Whether a cluster that `up` started is alive."""
        return bool(self.node.pid or self.api.pid)

    def given(self) -> str:
        """Return the kubeconfig that the environment names, or nothing if it names ours or none."""
        found = os.environ.get(VARIABLE, "")
        return "" if found == str(self._kubeconfig) else found

    def down(self) -> None:
        """Stop it if `up` started it; what was in it is lost, and nothing of it is left."""
        self._build.stop(group=True)
        stopped = self.node.end(Plan.read(self.place))
        for part in (self.scheduler, self.controllers, self.api, self.etcd):
            stopped |= part.stop(sign=signal.SIGKILL)
        shutil.rmtree(self.place, ignore_errors=True)
        if stopped:
            say("kubernetes: stopped")

    def env(self) -> dict[str, str]:
        """Return the variable by which the cluster is found; none if it is not there."""
        if given := self.given():
            return {VARIABLE: given}
        return {VARIABLE: str(self._kubeconfig)} if self.is_ours() else {}

    def start_api(self) -> None:
        """Start the API server, again after `api.stop()`; all that it knew is in its store.

        Raises:
            ServiceError: It does not answer.
        """
        plan = Plan.read(self.place)
        if not plan:
            raise ServiceError("there is no cluster whose API server could be started")
        self.api.start(kubernetes_parts.api(plan))
        self.api.wait(Api(plan.server, self.place / "pki").answers, seconds=READY_SECONDS)

    def _start(self, program: Path) -> None:
        place = self.place
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o700)
        plan = Plan.choose(place)
        plan.write()
        pki = place / "pki"
        kubernetes_pki.make(pki)
        for who in ("admin", "controllers", "scheduler", "node"):
            kubernetes_pki.write_kubeconfig(pki, who, plan.server)
        programs = place / "bin"
        programs.mkdir(exist_ok=True)
        for name in NAMES:
            (programs / name).symlink_to(program)
        self.etcd.start(kubernetes_parts.etcd(plan))
        self.node.begin(plan)  # reads its images while the rest starts
        self.start_api()
        self.controllers.start(kubernetes_parts.controllers(plan))
        self.scheduler.start(kubernetes_parts.scheduler(plan))
        self.node.wait(self._runs_pods, seconds=READY_SECONDS)

    def _runs_pods(self) -> bool:
        plan = Plan.read(self.place)
        return plan is not None and Api(plan.server, self.place / "pki").runs_pods()

    @property
    def _kubeconfig(self) -> Path:
        return self.place / "pki" / "admin.kubeconfig"


def kubectl() -> Path:
    """Return Debian's kubectl, which is of the cluster's version; it is unpacked, not installed.

    Raises:
        ServiceError: There is no apt here, or it failed.
    """
    return debian.unpack("kubernetes-client") / "usr" / "bin" / "kubectl"
