"""One sandbox in the inventory, as a value and as JSON, and whether its process still runs."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

__all__ = ("Entry", "boot_id", "is_running", "parse_entry", "process_start_time")


@functools.cache
def boot_id() -> str:
    """Return what tells this boot of the machine from all others; empty where nothing does."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Entry:
    """What there is of one sandbox on this machine, so that it can be removed by anyone of ours.

    Attributes:
        id: The sandbox's id; the name of the entry's file.
        backend: The name of its backend.
        pid: Its outermost process as the host counts, or None if there is none yet.
        start_time: When that process started, in clock ticks since boot, to know it again.
        uid: The private uid that it runs as, or None.
        cgroups: Absolute directories of its cgroups.
        work_dir: An absolute directory to delete with it, or None. Its name starts with
            `ringfence-` and it lies below a temporary directory or the state directory.
        engine: The address of the container engine that has it, or None. What is there is found
            again by its labels, and is not the inventory's to remove.
        labels: What its maker wants to know of it.
        created: Seconds since the epoch.
        owner_pid: The process that holds it.
        boot_id: The boot of the machine that it belongs to.
    """

    id: str
    backend: str
    pid: int | None = None
    start_time: int | None = None
    uid: int | None = None
    cgroups: tuple[str, ...] = ()
    work_dir: str | None = None
    engine: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    created: float = field(default_factory=time.time)
    owner_pid: int = field(default_factory=os.getpid)
    boot_id: str = field(default_factory=boot_id)

    def started(self, pid: int) -> Entry:
        """Return the entry with its process, which must not have been waited for yet."""
        return replace(self, pid=pid, start_time=process_start_time(pid))

    def to_json(self) -> bytes:
        """Return the content of its file."""
        return json.dumps({**vars(self), "labels": dict(self.labels)}).encode()


_INT = (int, type(None))
_KINDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "backend": (str,),
    "pid": _INT,
    "start_time": _INT,
    "uid": _INT,
    "cgroups": (list,),
    "work_dir": (str, type(None)),
    "engine": (str, type(None)),
    "labels": (dict,),
    "created": (int, float),
    "owner_pid": (int,),
    "boot_id": (str,),
}


def parse_entry(data: bytes) -> Entry | None:
    """Return the entry in a file, or None if the file is torn or none of ours.

    Names that this version does not know are passed over.
    """
    try:
        raw: Any = json.loads(data)
    except ValueError:
        return None
    if not isinstance(raw, dict):
        return None
    values: dict[str, Any] = {item.name: raw.get(item.name) for item in fields(Entry)}
    if not all(isinstance(value, _KINDS[name]) for name, value in values.items()):
        return None
    texts = [*values["cgroups"], *values["labels"].values()]
    if not all(isinstance(text, str) for text in texts):
        return None
    return Entry(**{**values, "cgroups": tuple(values["cgroups"])})


def process_start_time(pid: int) -> int | None:
    """Return when a live process started, in clock ticks since boot, or None.

    A zombie counts as dead. None too where there is no `/proc`.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name in brackets may hold blanks and brackets itself. Then field 3 is the state, and
    # field 22 the start time.
    rest = stat.rpartition(b")")[2].split()
    return None if rest[0] in (b"Z", b"X") else int(rest[19])


def is_running(entry: Entry) -> bool:
    """Return whether the entry's process is alive, and not another one with its pid."""
    return (
        entry.pid is not None
        and entry.start_time is not None
        and entry.boot_id == boot_id()
        and process_start_time(entry.pid) == entry.start_time
    )
