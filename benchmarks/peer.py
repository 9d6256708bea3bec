"""Other packages, each installed into an environment of its own and driven from here."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.backends._jail import find_bwrap

from .machine import real_python
from .measure import TOTAL, Side, Times, check

__all__ = (
    "CACHE",
    "CONTAINER_PEERS",
    "INSTALL_SECONDS",
    "PEERS",
    "SWE_REX",
    "Peer",
    "PeerError",
    "Worker",
    "last_line",
    "started",
)

CACHE = Path(__file__).parent.parent / ".cache" / "benchmarks"
INSTALL_SECONDS = 300.0
_ANSWER_SECONDS = 60.0
_BURST_SECONDS = 900.0


class PeerError(Exception):
    """A package can't be installed, or does not work on this machine."""


@dataclass(frozen=True)
class Peer:
    """A package to compare with.

    Attributes:
        name: In the package index.
        version: The one that `peer_worker` knows how to drive.
        live: Whether it keeps something open between two commands.
        also: What it imports and does not ask for.
    """

    name: str
    version: str
    live: bool
    also: tuple[str, ...] = ()


PEERS = (
    Peer("llm-sandbox", "0.3.46", live=True),
    Peer("deepagents-sandbox", "0.0.2", live=True),
    Peer("sandlock", "0.9.0", live=False),
    Peer("nono-py", "0.16.0", live=False),
)

SWE_REX = Peer("swe-rex", "1.4.0", live=False, also=("aiohttp",))
CONTAINER_PEERS = (Peer("llm-sandbox[docker]", "0.3.46", live=False), SWE_REX)


def _install(peer: Peer) -> Path:
    """Return the interpreter of an environment with the package in it."""
    place = CACHE / f"{peer.name}-{peer.version}"
    python, done = place / "bin" / "python", place / "installed"
    if done.exists():
        return python
    wanted = f"{peer.name}=={peer.version}"
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
        wanted,
        *peer.also,
    ]
    venv: list[str | Path] = [real_python(), "-m", "venv", "--clear", place]
    for step in (venv, pip):
        try:
            run = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise PeerError(f"installing took over {INSTALL_SECONDS:.0f} s") from None
        if run.returncode:
            raise PeerError(f"it can't be installed: {last_line(run.stderr)}")
    done.touch()
    return python


def last_line(text: str) -> str:
    """Return the last line of what a program said, cut."""
    return (text.strip().splitlines() or ["no reason given"])[-1][:200]


class Worker:
    """A package at work in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answer(self, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """Return its next answer.

        Raises:
            PeerError: It ended, or did not answer in time.
        """
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise PeerError(f"it did not answer within {seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"it fails here: {last_line(self._process.stderr.read())}")
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def do(self, what: str, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """Let it do something once."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{what}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self.answer(seconds)  # says why
        return self.answer(seconds)

    def side(self, what: str) -> Side:
        """Return a side that lets it do something, and takes its word for the time."""

        async def side() -> Times:
            found = self.do(what)
            check(found["exit_code"] == 0, f"/bin/true ended with {found['exit_code']}")
            return {TOTAL: float(found["seconds"])}

        return side

    def burst(self, count: int, size: int) -> tuple[float, list[float]]:
        """Let many callers share a pool; return the seconds of all, and of each."""
        found = self.do(f"burst {count} {size}", _BURST_SECONDS)
        each = [float(seconds) for seconds in found["each"]]
        check(len(each) == count, f"{len(each)} of {count} succeeded")
        return float(found["seconds"]), each

    def protection(self) -> str:
        """Say what its own process has inside, in a few words."""
        found = self.do("look")
        fields = dict(line.split(":", 1) for line in found["output"].splitlines() if ":" in line)
        if not {"Uid", "CapEff", "Seccomp", "NoNewPrivs"} <= fields.keys():
            return "its protection can't be seen from inside"
        filtered = "a filter" if fields["Seccomp"].strip() == "2" else "no filter"
        none = int(fields["CapEff"], 16) == 0
        return (
            f"uid {fields['Uid'].split()[0]} inside, {'no' if none else 'with'} capabilities, "
            f"{filtered}"
        )


@contextmanager
def started(peer: Peer, variables: Mapping[str, str] | None = None) -> Iterator[Worker]:
    """Install a package, start it, and end it.

    Args:
        peer: The package.
        variables: More for the environment of its process.

    Raises:
        PeerError: It can't be installed, or does not work here.
    """
    python = _install(peer)
    path = f"{os.path.dirname(find_bwrap(None)[0])}:{os.environ.get('PATH', os.defpath)}"
    process = subprocess.Popen(
        [python, "-W", "ignore", Path(__file__).with_name("peer_worker.py"), peer.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path, **(variables or {})},
    )
    try:
        worker = Worker(process)
        worker.answer()
        yield worker
    finally:
        try:
            process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
