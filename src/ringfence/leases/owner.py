"""The name of an owner, which tells on its own machine whether the owner is dead.

A name holds the machine's boot, the PID namespace, the process and when it started. Only someone
of the same boot and namespace can judge by it; for everybody else a lease has to run out.
"""

from __future__ import annotations

import os
import secrets

from ..inventory.entries import boot_id, process_start_time

__all__ = ("is_known_dead", "owner_name")

_PARTS = 5


def owner_name() -> str:
    """Return a new name for an owner of leases in this process."""
    start = process_start_time(os.getpid()) or 0
    return f"{_machine()}.{os.getpid()}.{start}.{secrets.token_hex(4)}"


def is_known_dead(owner: str) -> bool:
    """Return whether the owner is dead for certain; False for one that can't be judged here."""
    boot, namespace, pid, start = [*owner.split("."), *[""] * _PARTS][:4]
    machine = _machine()
    if machine.startswith("-") or f"{boot}.{namespace}" != machine or not start.isdecimal():
        return False
    return pid.isdecimal() and _has_ended(int(pid), int(start))


def _has_ended(pid: int, start: int) -> bool:
    found = process_start_time(pid)
    if found is not None:
        return found != start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, which this /proc does not show
        return False
    return True  # a zombie


def _machine() -> str:
    """Return what names this boot and PID namespace; it starts with `-` where nothing does."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return "-.0"
    return f"{boot_id().replace('-', '') or '-'}.{namespace}"
