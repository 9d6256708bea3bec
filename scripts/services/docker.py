"""The Docker Engine, with gVisor as a second runtime and the images that tests run.

An engine that is there already is used as it is: the one that DOCKER_HOST names, or whoever
answers on the usual socket. Otherwise `dockerd` is installed (Debian and its kin, as root) and
started. It has the usual socket, pid file and data, since two engines that share a network
namespace spoil each other's networks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from . import debian, gvisor, images
from .daemon import Daemon, name_of
from .engine import Engine
from .steps import ServiceError, need_root, say, step, until

RUN = Path("/var/run")
PACKAGES = ("docker.io", "iptables", *images.PACKAGES)
PROGRAMS = ("dockerd", "containerd", "runc", "iptables", *images.PROGRAMS)


class Docker:
    """The engine as a service."""

    name = "docker"

    def __init__(self) -> None:
        self._daemon = Daemon(self.name)

    def up(self) -> None:
        """Have an engine that answers and has the test images.

        Raises:
            ServiceError: It can't be had.
        """
        engine = Engine()
        if not engine.is_ready():
            if given := os.environ.get("DOCKER_HOST"):
                raise ServiceError(f"DOCKER_HOST is {given}, and nothing answers there")
            self._start(engine)
        if self._daemon.pid is None:
            say(f"docker: the engine at {engine.address} is given")
        images.make_all(engine)

    def is_ready(self) -> bool:
        """Whether an engine answers and has the test images."""
        engine = Engine()
        return engine.is_ready() and images.all_there(engine)

    def is_ours(self) -> bool:
        """Whether an engine that `up` started is alive."""
        return self._daemon.pid is not None

    def down(self) -> None:
        """Stop the engine if `up` started it; images and what was installed stay."""
        if self._daemon.stop():
            say("docker: stopped")

    def env(self) -> dict[str, str]:
        """Return the variables by which the engine is found."""
        return {"DOCKER_HOST": Engine().address}

    def _start(self, engine: Engine) -> None:
        if not sys.platform.startswith("linux"):
            raise ServiceError("start Docker (Docker Desktop, Colima), or set DOCKER_HOST")
        need_root("starting dockerd", "start Docker, or set DOCKER_HOST to an engine's address")
        if starting := _live("docker.pid", "dockerd"):
            say(f"docker: dockerd is there (pid {starting}) and does not answer yet")
            until(engine.is_ready, seconds=30, what="dockerd to answer")
            return
        debian.install(PACKAGES, programs=PROGRAMS)
        if engine.is_ready():  # where an init system starts what is installed
            return
        _remove_stale()
        self._daemon.home.mkdir(parents=True, exist_ok=True)
        settings = self._daemon.home / "daemon.json"
        settings.write_text(json.dumps(_settings(), indent=2), "utf-8")
        with step("docker: started dockerd"):
            self._daemon.start(["dockerd", f"--config-file={settings}"])
            self._daemon.wait(engine.is_ready)


def _settings() -> dict[str, object]:
    try:
        runsc = gvisor.install()
    except ServiceError as error:
        say(f"docker: without gVisor: {error}")
        return {}
    return {"runtimes": {"runsc": {"path": runsc, "runtimeArgs": list(gvisor.ARGUMENTS)}}}


def _live(pid_file: str, name: str) -> int | None:
    try:
        pid = int((RUN / pid_file).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return pid if name_of(pid) == name else None


def _remove_stale() -> None:
    """Remove what an engine leaves behind that was killed, and would not start again over."""
    (RUN / "docker.pid").unlink(missing_ok=True)
    if _live("docker/containerd/containerd.pid", "containerd"):
        return  # dockerd takes it over
    for pattern in ("*.pid", "*.sock", "*.ttrpc"):
        for path in (RUN / "docker" / "containerd").glob(pattern):
            path.unlink(missing_ok=True)
