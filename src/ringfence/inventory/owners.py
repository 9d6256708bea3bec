"""This process as an owner of sandboxes: its slot, its entries and its private uids."""

from __future__ import annotations

import atexit
import errno
import os
import re
import secrets
import sys
import threading
from contextlib import suppress

from ringfence.errors import ConfigError, CreateError, SandboxClosedError

from .entries import Entry
from .leftovers import reap_slot, work_dir_fault
from .slots import SLOTS, lock, release, state_dir

__all__ = ("BASE_UID", "UIDS_PER_SLOT", "Owner", "owner")

BASE_UID = 1_900_000_000
"""The first private uid. Above what systemd gives to containers, below what it calls foreign."""

UIDS_PER_SLOT = 4096

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class Owner:
    """A process that holds sandboxes. Use `owner()`; thread-safe; of no use after a fork.

    Making one takes the lowest free slot. What a dead owner left in that slot is reaped first,
    and a slot in which something stays is passed over.

    Attributes:
        slot: The number of its slot.
        pid: The process.

    Raises:
        ConfigError: The state directory can't be made, or is not ours alone.
        CreateError: There is no free slot.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._owners = f"{state_dir()}/owners"
        with suppress(FileExistsError):
            os.mkdir(self._owners, 0o700)
        self.slot, self._dir = _take_slot(self._owners)
        self._lock = threading.Lock()
        self._closed = False
        self._uids: set[int] = set()
        # A random start, so that one after a crash does not begin with the uids of the last.
        self._next_uid = secrets.randbelow(UIDS_PER_SLOT)

    def add(self, entry: Entry) -> None:
        """Note a sandbox, before anything of it is made.

        Raises:
            ConfigError: Its id can't name a file, or its work directory is none to delete.
            CreateError: It is noted already, or the file can't be written.
        """
        self._check(entry)
        name = f"{entry.id}.json"
        try:
            self._write(name, entry, os.O_EXCL)
        except FileExistsError as error:
            raise CreateError(f"there is a sandbox {entry.id!r} already") from error
        except OSError as error:
            self._unlink(name)
            raise self._failed(entry, error) from error

    def update(self, entry: Entry) -> None:
        """Replace what is noted of a sandbox, at once: a reader sees the old or the new.

        Raises:
            ConfigError: As for `add`.
            CreateError: The file can't be written; the old one stays.
        """
        self._check(entry)
        new = f".{entry.id}.new"
        with self._lock:
            try:
                self._write(new, entry, os.O_TRUNC)
                os.rename(new, f"{entry.id}.json", src_dir_fd=self._dir, dst_dir_fd=self._dir)
            except OSError as error:
                self._unlink(new)
                raise self._failed(entry, error) from error

    def discard(self, sandbox_id: str) -> None:
        """Forget a sandbox of which nothing is left. Safe to call again."""
        self._check_process()
        if _ID.match(sandbox_id):
            self._unlink(f"{sandbox_id}.json")

    def take_uid(self) -> int:
        """Return a uid that no other live sandbox of this machine has.

        One that was freed comes round again only after all the others.

        Raises:
            CreateError: All of this process's uids are in use.
        """
        self._check_process()
        first = BASE_UID + self.slot * UIDS_PER_SLOT
        with self._lock:
            for _ in range(UIDS_PER_SLOT):
                uid = first + self._next_uid
                self._next_uid = (self._next_uid + 1) % UIDS_PER_SLOT
                if uid not in self._uids:
                    self._uids.add(uid)
                    return uid
        raise CreateError(
            f"all {UIDS_PER_SLOT} private uids of this process are in use",
            hint="close sandboxes, or spread them over more processes",
        )

    def free_uid(self, uid: int) -> None:
        """Give a uid back when no process of its sandbox is left. Safe to call again."""
        with self._lock:
            self._uids.discard(uid)

    def close(self) -> None:
        """Give up the slot, and remove its directory if nothing is noted in it.

        Safe to call again. Happens by itself when the process exits.
        """
        if self._closed or os.getpid() != self.pid:
            return
        self._closed = True
        with suppress(OSError):  # not empty: what is noted there is for a reaper now
            os.rmdir(f"{self._owners}/{self.slot}")
        release(self._dir)

    def _check(self, entry: Entry) -> None:
        self._check_process()
        if not _ID.match(entry.id):
            raise ConfigError(f"{entry.id!r} can't be a sandbox's id", hint="use [A-Za-z0-9._-]")
        fault = work_dir_fault(entry.work_dir) if entry.work_dir is not None else None
        if fault is not None:
            raise ConfigError(f"work directory {entry.work_dir!r} {fault}")

    def _check_process(self) -> None:
        if self._closed:
            raise SandboxClosedError("this owner was closed", hint="call owner() for another")
        if os.getpid() != self.pid:
            message = f"these sandboxes belong to process {self.pid}, not to its child"
            raise SandboxClosedError(message, hint="open the backend anew after a fork")

    def _write(self, name: str, entry: Entry, flags: int) -> None:
        flags |= os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._dir)
        try:
            data = entry.to_json()
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._dir)

    def _failed(self, entry: Entry, error: OSError) -> CreateError:
        path = f"{self._owners}/{self.slot}/{entry.id}.json"
        return CreateError(f"{path} can't be written: {error.strerror}")

    def __repr__(self) -> str:
        return f"<Owner pid={self.pid} slot={self.slot}>"


class _Process:
    """What there is once in a process, and begins anew in a child."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner: Owner | None = None

    def close(self) -> None:
        if self.owner is not None:
            self.owner.close()

    def after_fork_in_child(self) -> None:
        self.lock = threading.RLock()
        self.owner = None


_process = _Process()


def owner() -> Owner:
    """Return this process's owner, made at the first call; after a fork the child's own.

    Raises:
        ConfigError: The state directory can't be made, or is not ours alone.
        CreateError: There is no free slot.
    """
    current = _process.owner
    if current is None:
        with _process.lock:
            current = _process.owner = _process.owner or Owner()
    return current


def _take_slot(owners: str) -> tuple[int, int]:
    for number in range(SLOTS):
        path = f"{owners}/{number}"
        descriptor = lock(path, make=True)
        if descriptor is None:
            continue
        taken = False
        try:
            reap_slot(path)
            taken = not os.listdir(path)
        finally:
            if not taken:
                release(descriptor)
        if taken:
            return number, descriptor
    raise CreateError(
        f"all {SLOTS} slots in {owners} are taken",
        hint="end some of the processes that hold sandboxes",
    )


atexit.register(_process.close)

if sys.platform != "win32":
    os.register_at_fork(after_in_child=_process.after_fork_in_child)
