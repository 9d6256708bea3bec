"""What the suite looks at on the host: its own processes, descriptors, threads and memory."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

__all__ = (
    "Footprint",
    "Growth",
    "footprint",
    "memory_growth",
    "processes_with",
    "settled",
    "steady",
)


@dataclass(frozen=True)
class Footprint:
    """What this process holds.

    Attributes:
        descriptors: Open file descriptors.
        threads: Threads of Python, but for the idle ones that anyio keeps, at most forty.
        children: Processes whose parent this is.
    """

    descriptors: int
    threads: int
    children: int

    def grown_over(self, base: Footprint) -> bool:
        """Whether this is more than before in any respect."""
        return (
            self.descriptors > base.descriptors
            or self.threads > base.threads
            or self.children > base.children
        )


def footprint() -> Footprint:
    """Return what this process holds now."""
    gc.collect()
    return Footprint(_descriptors(), _threads(), len(_children()))


async def steady(seconds: float = 0.3) -> Footprint:
    """Return what is held when that has not changed for a while."""
    last, since = footprint(), time.monotonic()
    while time.monotonic() - since < seconds:
        await anyio.sleep(seconds / 10)
        if (now := footprint()) != last:
            last, since = now, time.monotonic()
    return last


async def settled(base: Footprint, seconds: float) -> Footprint:
    """Return the footprint once it is back at `base`, or as it is after some seconds."""
    with anyio.move_on_after(seconds):
        while footprint().grown_over(base):
            await anyio.sleep(0.05)
    return footprint()


def processes_with(marker: str) -> list[int]:
    """Return the host's processes that have a text in their command line, sandboxed ones too."""
    found = []
    for pid, path in _process_dirs():
        try:
            with open(os.path.join(path, "cmdline"), "rb") as file:
                line = file.read()
        except OSError:
            continue
        if marker.encode() in line and pid != os.getpid():
            found.append(pid)
    return found


@dataclass
class Growth:
    """By how many bytes this process's memory has grown."""

    bytes: int = 0


@contextmanager
def memory_growth() -> Iterator[Growth]:
    """Measure by how much this process's peak rises above its size at the start."""
    gc.collect()
    growth = Growth()
    if sys.platform == "linux":
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # forget the peak so far
        before = _status_bytes("VmRSS")
        yield growth
        growth.bytes = _status_bytes("VmHWM") - before
    else:
        import resource  # Windows has none

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield growth
        growth.bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def _status_bytes(name: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    raise LookupError(name)


def _threads() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return sum(not name.startswith("AnyIO worker") for name in names)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def _children() -> list[int]:
    parent = str(os.getpid())
    found = []
    for pid, path in _process_dirs():
        try:
            with open(os.path.join(path, "stat")) as file:
                # The name is in brackets and may hold anything, brackets too.
                if file.read().rpartition(")")[2].split()[1] == parent:
                    found.append(pid)
        except OSError:
            continue
    return found


def _process_dirs() -> Iterator[tuple[int, str]]:
    if not os.path.isdir("/proc"):
        return
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdecimal():
                yield int(entry.name), entry.path
