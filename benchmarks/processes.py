"""Processes of this machine, as the host sees them."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence import inventory

__all__ = ("descendants", "host_uids", "pss_mib", "sandbox_pids")


def sandbox_pids(sandbox_id: str) -> list[int]:
    """Return the live processes of one of our sandboxes."""
    roots = [item.entry.pid for item in inventory.scan() if item.entry.id == sandbox_id]
    return [pid for root in roots if root is not None for pid in (root, *descendants(root))]


def descendants(pid: int) -> list[int]:
    """Return the live processes below one; none if it ends meanwhile."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []
    found = []
    for task in tasks:
        for child in map(int, " ".join(_lines(f"/proc/{pid}/task/{task}/children")).split()):
            found += [child, *descendants(child)]
    return found


def host_uids(pids: list[int]) -> set[int]:
    """Return all user ids that processes have, real and effective, saved and of files."""
    found = set()
    for pid in pids:
        for line in _lines(f"/proc/{pid}/status"):
            if line.startswith("Uid:"):
                found |= set(map(int, line.split()[1:]))
    return found


def pss_mib(pid: int) -> float:
    """Return the memory of a process, shared pages divided by those who share them."""
    for line in _lines(f"/proc/{pid}/smaps_rollup"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _lines(path: str) -> list[str]:
    """Return the lines of a process's file; none if it has ended since it was listed."""
    try:
        return Path(path).read_text("utf-8", "replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
