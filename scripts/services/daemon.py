"""A daemon of ours: started apart from us, found again by a file, stopped by its pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from .steps import CACHE, ServiceError, until

STOP_SECONDS = 20.0
LOG_LINES = 15


class Daemon:
    """One process below `.cache/services/NAME`, with its log and a record of who it is.

    A pid alone can be somebody else's by now, so the time at which it started stands beside it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.home = CACHE / name
        self.log = self.home / "log"
        self._record = self.home / "process.json"

    @property
    def pid(self) -> int | None:
        """Its pid, or None if we have started none that is alive."""
        try:
            pid, started = json.loads(self._record.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return pid if started and started_at(pid) == started else None

    def start(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | Path = "/",
    ) -> None:
        """Start it in a session of its own, with its output in the log."""
        self.home.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as log:
            # It outlives us, so nobody waits for it here.
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=cwd,
                env=env,
            )
        process.returncode = 0  # nobody is to warn that it still runs
        self._record.write_text(json.dumps([process.pid, started_at(process.pid)]), "utf-8")

    def wait(self, ready: Callable[[], bool], *, seconds: float = 30.0) -> None:
        """Wait until it answers.

        Raises:
            ServiceError: It ended, or did not answer in time; with the end of its log.
        """

        def settled() -> bool:
            return ready() or self.pid is None

        try:
            until(settled, seconds=seconds, what=f"{self.name} to answer")
        except ServiceError as error:
            raise ServiceError(f"{error}\n{self._log_end()}") from None
        if self.pid is None:
            raise ServiceError(f"{self.name} ended at once\n{self._log_end()}")

    def stop(self, *, sign: signal.Signals = signal.SIGTERM, group: bool = False) -> bool:
        """Stop it, or all of its process group, and say whether there was anything to stop."""
        pid = self.pid
        if pid is None:
            self._record.unlink(missing_ok=True)
            return False
        kill = os.killpg if group else os.kill
        kill(pid, sign)
        try:
            until(lambda: self.pid is None, seconds=STOP_SECONDS, what=f"{self.name} to end")
        except ServiceError:
            kill(pid, signal.SIGKILL)
            until(lambda: self.pid is None, seconds=STOP_SECONDS, what=f"{self.name} to die")
        self._record.unlink(missing_ok=True)
        return True

    def _log_end(self) -> str:
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])


def started_at(pid: int) -> str:
    """Return when a process started, in the kernel's ticks, or nothing if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def name_of(pid: int) -> str:
    """Return the name of a live process, or nothing."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8").strip() if started_at(pid) else ""
    except OSError:
        return ""
