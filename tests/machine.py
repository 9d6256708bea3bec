"""What a test looks at on the machine: processes, and what this one holds."""

from __future__ import annotations

import gc
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import anyio

from ringfence import inventory

CGROUPS = Path("/sys/fs/cgroup")

SOON = 30.0
"""Seconds for what takes none on an idle machine: to tell it from never on a busy one."""


def new_mark() -> str:
    """Return seconds for `sleep` that are in no other process's command line on this machine."""
    return f"86400.{secrets.randbelow(10**12):012}"


def processes_with(mark: str) -> list[int]:
    """Return the live processes, sandboxed ones too, with a text in their command line."""
    wanted = mark.encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:  # thousands of times
                if wanted in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


def state_of(pid: int) -> str:
    """Return a process's state letter, or nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def children_of(pid: int) -> list[int]:
    """Return the live children of a process."""
    found = []
    for name in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.append(int(name))
    return found


def until_gone(pids: Collection[int], seconds: float = SOON) -> list[int]:
    """Wait for processes to end and return those that do not; zombies count as ended."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if state_of(pid) not in ("", "Z", "X")]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.01)
    return []


def status_bytes(name: str) -> int:
    """Return a size from this process's status: VmRSS now, VmHWM the most since `forget_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def forget_peak() -> None:
    """Let the most memory that this process has had be what it has now."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


@dataclass(frozen=True)
class Held:
    """What this process and its sandboxes hold on the machine.

    Attributes:
        descriptors: What each open descriptor of ours leads to.
        threads: Names of our threads.
        children: Our child processes, zombies too.
        mounts: Mounts of ours that anybody can see.
        cgroups: Directories of sandboxes.
        entries: Ids in the inventory.
        scratch: Scratch directories in the temporary directory.
    """

    descriptors: tuple[str, ...]
    threads: tuple[str, ...]
    children: tuple[int, ...]
    mounts: tuple[str, ...]
    cgroups: tuple[str, ...]
    entries: tuple[str, ...]
    scratch: tuple[str, ...]

    def beyond(self, before: Held) -> dict[str, list[object]]:
        """Return that of which there is more than before, and of it what is new."""
        grown: dict[str, list[object]] = {}
        for name in self.__dataclass_fields__:
            now, then = list(getattr(self, name)), list(getattr(before, name))
            if len(now) > len(then):
                grown[name] = [item for item in now if item not in then] or now
        return grown


def held() -> Held:
    """Return what this process holds now."""
    gc.collect()
    return Held(
        descriptors=tuple(sorted(_descriptors())),
        threads=tuple(sorted(_threads())),
        children=tuple(_children()),
        mounts=tuple(
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if "ringfence" in line and "/overlay2/" not in line  # that is anybody's container
        ),
        cgroups=tuple(sorted(_cgroups())),
        entries=tuple(found.entry.id for found in inventory.scan() if _ours(found.entry)),
        scratch=tuple(sorted(map(str, Path(tempfile.gettempdir()).glob("ringfence-rf-*")))),
    )


def _threads() -> list[str]:
    """Return the names of threads, but for the idle ones that anyio keeps, at most forty."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if not name.startswith("AnyIO worker")]


def _ours(entry: inventory.Entry) -> bool:
    return entry.owner_pid == os.getpid()


def _cgroups() -> set[str]:
    """Return the groups of sandboxes below the groups that this process is in."""
    found: set[str] = set()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            below = CGROUPS / name / path.strip("/") / "ringfence"
            found.update(str(directory) for directory in below.glob("rf-*"))
    return found


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the one that the listing itself used
        found.append(target.partition(":")[0] if "[" in target else target)
    return found


def _children() -> list[int]:
    me = str(os.getpid())
    found = []
    for name in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == me:
            found.append(int(name))
    return found


async def steady(seconds: float = 0.4) -> Held:
    """Return what is held when that has not changed for a while."""
    last, since = held(), time.monotonic()
    while time.monotonic() - since < seconds:
        await anyio.sleep(seconds / 5)
        if (now := held()) != last:
            last, since = now, time.monotonic()
    return last


async def nothing_left(before: Held, seconds: float = SOON) -> None:
    """Fail if more is held than before, once some time to let go has passed."""
    deadline = time.monotonic() + seconds
    while grown := held().beyond(before):
        if time.monotonic() > deadline:
            raise AssertionError(f"left over: {grown}")
        await anyio.sleep(0.05)


async def until(condition: Callable[[], bool], seconds: float = SOON, *, what: str = "") -> None:
    """Wait until something is so, or fail."""
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.sleep(0.005)
        return
    raise AssertionError(f"not within {seconds:g} s: {what or condition}")
