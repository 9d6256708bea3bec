"""An engine of our own: a dockerd that tests may stop, kill and start again.

It has a network namespace of its own, since two engines in one spoil each other's networks, and a
mount namespace, with which everything that it has mounted goes away. Both last as long as this, so
that an engine that comes back finds what the one before it had mounted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.services import images
from scripts.services.engine import Engine

from ..machine import processes_with, until_gone

READY_SECONDS = 30.0


class OwnEngine:
    """A dockerd and all that it starts.

    Attributes:
        place: Everything of it lies below.
        socket: The path of its socket.
    """

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="rf-engine-", dir="/tmp"))  # sockets: short
        self.socket = str(self.place / "sock")
        self._process: subprocess.Popen[bytes] | None = None
        keep = ["unshare", "--net", "--mount", "sleep", "infinity"]
        self._namespaces = subprocess.Popen(keep, stdin=subprocess.DEVNULL)
        self._until(self._is_apart, "have namespaces of its own")

    def _is_apart(self) -> bool:
        own, ours = (os.stat(f"/proc/{pid}/ns/mnt") for pid in (self._namespaces.pid, "self"))
        return own.st_ino != ours.st_ino

    @property
    def pid(self) -> int:
        """The daemon's."""
        assert self._process is not None
        return self._process.pid

    def start(
        self, listener: socket.socket | None = None, settings: Mapping[str, object] | None = None
    ) -> None:
        """Start the daemon, over what an earlier one left, and wait until it answers.

        Args:
            listener: Where it answers besides, from the network namespace of who has made it.
            settings: More of what its file of settings says.
        """
        settings_file = self.place / "daemon.json"
        settings_file.write_text(json.dumps({"cgroup-parent": self._cgroup, **(settings or {})}))
        self._remove_stale()
        argv = [
            *("nsenter", f"--target={self._namespaces.pid}", "--net", "--mount", "dockerd"),
            f"--config-file={settings_file}",
            f"--data-root={self.place}/data",
            f"--exec-root={self.place}/run",
            f"--pidfile={self.place}/pid",
            f"--host=unix://{self.socket}",
            *("--bridge=none", "--iptables=false", "--ip-forward=false"),
        ]
        handed_over = []
        if listener is not None:  # as systemd hands one over
            handed_over = [listener.fileno()]
            script = f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&{listener.fileno()}'
            argv = ["bash", "-c", script, "bash", *argv, "--host=fd://"]
        with open(self.place / "log", "ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=handed_over,
            )
        self._until(Engine(f"unix://{self.socket}").is_ready, "answer")

    def _remove_stale(self) -> None:
        """Remove what a killed one leaves, and would not start again over."""
        (self.place / "pid").unlink(missing_ok=True)
        home = self.place / "run" / "containerd"
        with contextlib.suppress(FileNotFoundError):
            helper = int((home / "containerd.pid").read_text())
            assert not until_gone([helper]), "containerd outlived its dockerd"
        for pattern in ("*.pid", "*.sock", "*.ttrpc"):
            for path in home.glob(pattern):
                path.unlink(missing_ok=True)

    def import_minimal(self) -> None:
        """Give it the smallest of the test images that has a shell."""
        repository, _, tag = images.MINIMAL.name.partition(":")
        query = [("fromSrc", "-"), ("repo", repository), ("tag", tag)]
        query += [("changes", "WORKDIR /workspace")]
        engine = Engine(f"unix://{self.socket}")
        said = engine.call("POST", "/images/create", query=query, body=images.MINIMAL.make())
        assert "error" not in said, said

    def stop(self) -> None:
        """End the daemon in good order, which ends its containers."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the daemon; what runs its containers lives on."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
        if self._process is not None:
            self._process.wait(30)

    def put_away(self) -> None:
        """End everything of it and remove what it has written."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.stop()
        # A killed daemon's helpers bear its place in their command lines, and nobody else's do.
        left = processes_with(f"{self.place}/")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not until_gone(left), f"not ended: {left}"
        self._end(signal.SIGKILL)
        self._namespaces.kill()
        self._namespaces.wait(30)
        self._remove_cgroups()
        shutil.rmtree(self.place)

    @property
    def _cgroup(self) -> str:
        return f"/{self.place.name}"

    def _remove_cgroups(self) -> None:
        for parent in Path("/sys/fs/cgroup").glob(f"*{self._cgroup}"):
            for inner in sorted(parent.rglob("*/"), reverse=True):
                for pid in (inner / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                self._until(lambda path=inner: _removed(path), "leave its cgroups")  # type: ignore[misc]
            parent.rmdir()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            if self._process is not None and what == "answer":
                assert self._process.poll() is None, self._log_end()
            assert time.monotonic() < deadline, f"the engine did not {what}\n{self._log_end()}"
            time.sleep(0.05)

    def _log_end(self) -> str:
        log = self.place / "log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return not directory.exists()
    return True
