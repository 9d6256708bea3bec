"""Podman, whose socket speaks the Docker Engine's API, with the images that tests run.

One that is given, by CONTAINER_HOST as Podman itself has it, is used as it is. Otherwise Podman is
installed (Debian and its kin, as root) and serves its API on a socket of ours. All that it keeps
lies below `.cache/services/podman`, so that it is none of the machine's own Podman.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from . import debian, images
from .daemon import Daemon
from .engine import Engine
from .steps import ServiceError, need_root, say, step

PACKAGES = ("podman", "runc", *images.PACKAGES)
PROGRAMS = ("podman", "conmon", "runc", *images.PROGRAMS)
LONGEST_SOCKET = 100
"""Of a socket's path, the kernel takes 107 bytes."""

# crun, which Podman takes by default, fails in some releases where both hierarchies of cgroups are.
SETTINGS = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
tmp_dir = "{home}/tmp"
[engine.runtimes]
runc = ["{runc}"]
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{home}/data"
runroot = "{home}/run"
"""


class Podman:
    """Podman as a service."""

    name = "podman"

    def __init__(self) -> None:
        self._daemon = Daemon(self.name)

    @property
    def engine(self) -> Engine:
        """Its API."""
        return Engine(os.environ.get("CONTAINER_HOST") or f"unix://{self._socket}")

    def up(self) -> None:
        """Have one that answers and has the test images.

        Raises:
            ServiceError: It can't be had.
        """
        engine = self.engine
        if not engine.is_ready():
            if given := os.environ.get("CONTAINER_HOST"):
                raise ServiceError(f"CONTAINER_HOST is {given}, and nothing answers there")
            self._start(engine)
        if self._daemon.pid is None:
            say(f"podman: the one at {engine.address} is given")
        images.make_all(engine)

    def is_ready(self) -> bool:
        """Whether it answers and has the test images."""
        engine = self.engine
        return engine.is_ready() and images.all_there(engine)

    def is_ours(self) -> bool:
        """Whether one that `up` started is alive."""
        return self._daemon.pid is not None

    def down(self) -> None:
        """End one that `up` started, and its containers; images and what was installed stay."""
        if not self.is_ours():
            return
        remove = ("podman", "rm", "--all", "--force", "--time=0")
        subprocess.run(remove, env=self._environ, capture_output=True, timeout=60)
        if self._daemon.stop():
            unmount = ("umount", str(self._daemon.home / "data" / "overlay"))  # which it leaves
            subprocess.run(unmount, capture_output=True, timeout=60)
            say("podman: stopped")

    def env(self) -> dict[str, str]:
        """Return the variables by which it is found."""
        return {"CONTAINER_HOST": self.engine.address}

    def _start(self, engine: Engine) -> None:
        need_root("starting Podman", "set CONTAINER_HOST to the address of one")
        if len(self._socket) > LONGEST_SOCKET:
            raise ServiceError(f"{self._socket} is too long for a socket: set CONTAINER_HOST")
        debian.install(PACKAGES, programs=PROGRAMS)
        home = self._daemon.home
        home.mkdir(parents=True, exist_ok=True)
        Path(self._socket).unlink(missing_ok=True)
        for name in ("tmp", "run"):  # as a reboot does: what was up in one that was killed is not
            shutil.rmtree(home / name, ignore_errors=True)
        runc = debian.find_program("runc")
        (home / "containers.conf").write_text(SETTINGS.format(home=home, runc=runc), "utf-8")
        (home / "storage.conf").write_text(STORAGE.format(home=home), "utf-8")
        with step("podman: started"):
            serve = ["podman", "system", "service", "--time=0", f"unix://{self._socket}"]
            self._daemon.start(serve, env=self._environ)
            self._daemon.wait(engine.is_ready)

    @property
    def _socket(self) -> str:
        return str(self._daemon.home / "sock")

    @property
    def _environ(self) -> dict[str, str]:
        home = self._daemon.home
        return {
            **os.environ,
            "CONTAINERS_CONF": str(home / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(home / "storage.conf"),
        }
