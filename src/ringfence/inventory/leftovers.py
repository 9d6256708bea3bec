"""Finding all sandboxes of this machine, and removing those that a dead owner left."""

from __future__ import annotations

import functools
import logging
import os
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ringfence import cgroups
from ringfence.errors import WorkspaceError
from ringfence.host_files import remove_tree

from .entries import Entry, is_running, parse_entry
from .slots import existing_state_dir, is_locked, lock, place, release, slot_dirs

__all__ = ("Found", "held_slots", "reap", "reap_slot", "scan", "work_dir_fault")

_log = logging.getLogger(__name__)

_SUFFIX = ".json"
_PREFIX = "ringfence-"
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108  # also if the owner's TMPDIR is not ours
_PATIENCE_SECONDS = 5.0
_KILL_SECONDS = 2.0
_POLL_SECONDS = 0.002


@dataclass(frozen=True)
class Found:
    """A sandbox that some owner noted.

    Attributes:
        entry: What was noted.
        slot: The number of its owner's slot.
        alive: Whether its owner is alive; if not, `reap` removes the sandbox.
    """

    entry: Entry
    slot: int
    alive: bool


def scan() -> list[Found]:
    """Return all sandboxes of this user on this machine, oldest first.

    Raises:
        ConfigError: The state directory is not ours alone.
    """
    state = existing_state_dir()
    found: list[Found] = []
    for path in slot_dirs(state) if state else ():
        entries = [entry for _, entry in _files(path) if entry is not None]
        if entries:
            alive = is_locked(path)
            found += [Found(entry, int(os.path.basename(path)), alive) for entry in entries]
    return sorted(found, key=lambda item: (item.entry.created, item.entry.id))


def held_slots() -> frozenset[int]:
    """Return the numbers of the slots of live owners, with sandboxes or without.

    Raises:
        ConfigError: The state directory is not ours alone.
    """
    state = existing_state_dir()
    paths = slot_dirs(state) if state else ()
    return frozenset(int(os.path.basename(path)) for path in paths if is_locked(path))


def reap() -> int:
    """Remove the sandboxes of dead owners and return how many that was.

    Their processes are killed, and their cgroups and work directories removed. What a container
    engine has of them is removed by the container backend's `reap`. One that can't be
    removed whole stays in the inventory, with a line in the log, for the next time. Safe in
    several processes at once, and beside live owners.

    Raises:
        ConfigError: The state directory is not ours alone.
    """
    state = existing_state_dir()
    reaped = 0
    for path in slot_dirs(state) if state else ():
        descriptor = lock(path)
        if descriptor is None:
            continue
        try:
            reaped += reap_slot(path)
            with suppress(OSError):  # not empty: something of it stays
                os.rmdir(path)
        finally:
            release(descriptor)
    return reaped


def reap_slot(path: str) -> int:
    """Remove the sandboxes noted in a slot, whose lock the caller holds; return how many."""
    reaped = 0
    for name, entry in _files(path):
        if entry is None:  # torn: its owner died before it had made anything
            _unlink(f"{path}/{name}")
        elif _remove(entry):
            _unlink(f"{path}/{name}")
            reaped += entry.engine is None  # else whoever speaks to the engine counts it
        else:
            _log.warning("sandbox %s of a dead owner can't be removed yet", entry.id)
    return reaped


def _files(path: str) -> Iterator[tuple[str, Entry | None]]:
    """Yield the files of a slot that are still there when they are read."""
    with suppress(FileNotFoundError):  # the slot went, and nothing in it stays
        for name in sorted(os.listdir(path)):
            with suppress(FileNotFoundError), open(f"{path}/{name}", "rb") as file:
                entry = parse_entry(file.read())
                yield name, entry if entry and name == entry.id + _SUFFIX else None


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _remove(entry: Entry) -> bool:
    return _kill(entry) and cgroups.destroy(entry.cgroups) and _remove_work_dir(entry)


def _kill(entry: Entry) -> bool:
    """Kill the entry's own process, and wait until it is gone."""
    _let_end(entry)
    deadline = time.monotonic() + _KILL_SECONDS
    while is_running(entry):
        assert entry.pid is not None
        try:
            # Between the look and the kill are microseconds: no pid comes round in that time.
            os.kill(entry.pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _let_end(entry: Entry) -> None:
    """Give a warden the time to end what is below it, as it does when its owner has died.

    Where it is in no PID namespace, killing it meanwhile would set that free, stopped as it is.
    """
    until = time.monotonic() + _PATIENCE_SECONDS
    while is_running(entry) and _has_children(entry.pid) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _has_children(pid: int | None) -> bool:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return bool(file.read())
    except OSError:  # it is gone, or the kernel has no such file
        return False


def work_dir_fault(path: str) -> str | None:
    """Return why a directory is none that we delete, or None if it may be one.

    It must be absolute and plain, named `ringfence-...`, and lie below a temporary directory or
    the state directory, all links resolved.
    """
    if not os.path.isabs(path) or os.path.normpath(path) != path:
        return "is not a plain absolute path"
    above, name = os.path.split(path)
    if not name.startswith(_PREFIX):
        return f"is not named {_PREFIX}..."
    above = os.path.realpath(above)
    roots = (tempfile.gettempdir(), *_TEMPORARY, place(os.environ, os.geteuid()))
    if not any(above == root or above.startswith(f"{root}/") for root in map(_real, roots)):
        return "is not below a temporary directory or the state directory"
    return None


@functools.lru_cache(maxsize=64)
def _real(root: str) -> str:
    return os.path.realpath(root)


def _remove_work_dir(entry: Entry) -> bool:
    path = entry.work_dir
    if path is None:
        return True
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return True
    fault = work_dir_fault(path)
    if not stat.S_ISDIR(info.st_mode):
        fault = "is not a directory"
    elif info.st_uid not in (os.geteuid(), entry.uid):
        fault = f"belongs to uid {info.st_uid}"
    if fault is not None:
        _log.warning("work directory %r of sandbox %s stays: it %s", path, entry.id, fault)
        return True
    try:
        remove_tree(path)
    except (OSError, WorkspaceError) as error:
        _log.warning("work directory %r of sandbox %s: %s", path, entry.id, error)
        return False
    return True
