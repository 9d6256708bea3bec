"""Leases in a SQLite file that all workers of one machine share.

The clock is the machine's monotonic one, which all its processes share and nobody can set, beside
the name of the boot that it counts from: after a restart every lease has run out, as every worker
has died. The file must not be shared by several machines.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..errors import ConfigError, LeaseStoreError
from ..inventory import state_dir
from ..inventory.entries import boot_id
from .ledger import Ledger
from .owner import is_known_dead
from .store import DEFAULT_TTL, Lease, LeaseStore, held_elsewhere, over_quota

__all__ = ("SqliteLeases",)

_Value = TypeVar("_Value")

BUSY_SECONDS = 5.0
"""How long a call waits for another process's transaction, which takes well under a millisecond."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS store (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT, token INTEGER);
CREATE TABLE IF NOT EXISTS lease (
    tenant_id TEXT, execution_id TEXT, owner TEXT, token INTEGER, taken_over INTEGER,
    boot TEXT, expires REAL, PRIMARY KEY (tenant_id, execution_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS lease_owner ON lease (owner);
CREATE TABLE IF NOT EXISTS ledger (name TEXT PRIMARY KEY, state TEXT) WITHOUT ROWID;
"""
_COLUMNS = "tenant_id, execution_id, owner, token, taken_over"


class SqliteLeases(LeaseStore):
    """Leases in a file of this machine.

    Args:
        path: The file. Default: `sessions/leases.sqlite` in the state directory of this user. It
            is made with mode 0600, in a directory that nobody else may enter.
        ttl: Seconds that a lease lives without being renewed.
        clock: Seconds since the machine's start; for tests.

    Raises:
        ConfigError: The directory is not this user's alone.
        LeaseStoreError: The file can't be opened, or is no store of leases.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        ttl: float = DEFAULT_TTL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = os.fspath(path) if path is not None else f"{state_dir()}/sessions/leases.sqlite"
        self.ttl = ttl
        self._clock = clock
        self._boot = boot_id()
        self._farthest = 2 * max(ttl, DEFAULT_TTL)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        _private_directory(os.path.dirname(self.path) or ".")
        with self._transaction() as db:
            self.id = str(db.execute("SELECT id FROM store").fetchone()[0])

    def acquire(
        self, tenant_id: str, execution_id: str, owner: str, *, quota: int | None = None
    ) -> Lease:
        with self._transaction() as db:
            found = db.execute(
                "SELECT owner, boot, expires FROM lease WHERE tenant_id = ? AND execution_id = ?",
                (tenant_id, execution_id),
            ).fetchone()
            if found is not None and not self._is_lost(*found):
                raise held_elsewhere(execution_id, found[0])
            if quota is not None and self._count(db, tenant_id) >= quota:
                raise over_quota(tenant_id, quota)
            return self._put(db, tenant_id, execution_id, owner, found is not None)

    def renew(self, owner: str) -> frozenset[Lease]:
        with self._transaction() as db:
            db.execute(
                "UPDATE lease SET boot = ?, expires = ? WHERE owner = ?",
                (self._boot, self._clock() + self.ttl, owner),
            )
            rows = db.execute(f"SELECT {_COLUMNS} FROM lease WHERE owner = ?", (owner,))  # noqa: S608
            return frozenset(map(_lease, rows))

    def release(self, lease: Lease) -> bool:
        with self._transaction() as db:
            done = db.execute(
                "DELETE FROM lease WHERE tenant_id = ? AND execution_id = ? AND token = ?",
                (lease.tenant_id, lease.execution_id, lease.token),
            )
            return done.rowcount == 1

    def take_over(self, owner: str) -> list[Lease]:
        with self._transaction() as db:
            rows = db.execute(
                "SELECT tenant_id, execution_id, owner, boot, expires FROM lease"
            ).fetchall()
            dead = {name for name in {row[2] for row in rows} if is_known_dead(name)}
            return [
                self._put(db, tenant_id, execution_id, owner, True)
                for tenant_id, execution_id, holder, *end in rows
                if holder in dead or self._has_run_out(*end)
            ]

    def use_ledger(self, lease: Lease, use: Callable[[Ledger], _Value]) -> _Value:
        name = lease.tenant_id
        with self._transaction() as db:
            held = db.execute(
                "SELECT token, owner, boot, expires FROM lease WHERE tenant_id = ?", (name,)
            ).fetchall()
            found = db.execute("SELECT state FROM ledger WHERE name = ?", (name,)).fetchone()
            live = {token for token, *end in held if not self._is_lost(*end)}
            ledger = Ledger.decode(found[0] if found else "", live)
            value = use(ledger)
            if state := ledger.encode():
                db.execute("INSERT OR REPLACE INTO ledger VALUES (?, ?)", (name, state))
            else:
                db.execute("DELETE FROM ledger WHERE name = ?", (name,))
            return value

    def live(self) -> list[Lease]:
        with self._transaction() as db:
            rows = db.execute(f"SELECT {_COLUMNS}, boot, expires FROM lease").fetchall()  # noqa: S608
            return [_lease(row[:5]) for row in rows if not self._has_run_out(*row[5:])]

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def _put(
        self, db: sqlite3.Connection, tenant_id: str, execution_id: str, owner: str, taken: bool
    ) -> Lease:
        db.execute("UPDATE store SET token = token + 1")
        token = int(db.execute("SELECT token FROM store").fetchone()[0])
        lease = Lease(tenant_id, execution_id, owner, token, taken_over=taken)
        db.execute(
            "INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?, ?, ?)",
            (tenant_id, execution_id, owner, token, taken, self._boot, self._clock() + self.ttl),
        )
        return lease

    def _count(self, db: sqlite3.Connection, tenant_id: str) -> int:
        """Return how many of a tenant's leases are live."""
        now = self._clock()
        owners = db.execute(
            "SELECT owner, count(*) FROM lease"
            " WHERE tenant_id = ? AND boot = ? AND expires > ? AND expires <= ? GROUP BY owner",
            (tenant_id, self._boot, now, now + self._farthest),
        )
        return sum(count for owner, count in owners.fetchall() if not is_known_dead(owner))

    def _is_lost(self, owner: str, boot: str, expires: float) -> bool:
        return self._has_run_out(boot, expires) or is_known_dead(owner)

    def _has_run_out(self, boot: str, expires: float) -> bool:
        now = self._clock()
        # What lies too far ahead was written before a restart, where the boot has no name.
        return boot != self._boot or not now < expires <= now + self._farthest

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Hold the file alone; a fork, a lock that lasts and a file of others are dealt with."""
        with self._lock:
            try:
                db = self._open()
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
            except (sqlite3.Error, OSError) as error:
                raise LeaseStoreError(
                    f"the leases in {self.path} can't be read or written: {error}",
                    hint="if the file is damaged, stop all workers and remove it",
                ) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        os.close(os.open(self.path, flags, 0o600))  # what SQLite adds gets the mode of this
        db = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            made = (1, f"sqlite-{secrets.token_hex(8)}", 0)
            db.execute("INSERT OR IGNORE INTO store VALUES (?, ?, ?)", made)
            db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        self._connection, self._pid = db, os.getpid()
        return db


def _lease(row: tuple[str, str, str, int, int]) -> Lease:
    tenant_id, execution_id, owner, token, taken_over = row
    return Lease(tenant_id, execution_id, owner, token, bool(taken_over))


def _private_directory(path: str) -> None:
    """Make the directory if need be, and refuse one that others can enter."""
    hint = "name a file in a directory that only you can enter"
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        info = os.lstat(path)
    except OSError as error:
        raise ConfigError(f"{path} can't be made: {error.strerror}", hint=hint) from error
    if not stat.S_ISDIR(info.st_mode):
        raise ConfigError(f"{path} is not a directory", hint=hint)
    if hasattr(os, "geteuid") and (info.st_uid != os.geteuid() or info.st_mode & 0o077):
        raise ConfigError(f"{path} can be entered by others", hint=hint)
