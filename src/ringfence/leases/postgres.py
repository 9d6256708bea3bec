"""Leases in a PostgreSQL database that workers of several machines share.

The clock is the server's, so the machines' own may differ as they like. Needs the extra
`postgres`.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigError, LeaseStoreError, MissingDependencyError
from .ledger import Ledger
from .owner import is_known_dead
from .store import DEFAULT_TTL, Lease, LeaseStore, held_elsewhere, over_quota

if TYPE_CHECKING:
    import psycopg

__all__ = ("PostgresLeases",)

_Value = TypeVar("_Value")

CONNECT_SECONDS = 5
STATEMENT_MS = 5000

_SCHEMA = """
CREATE SEQUENCE IF NOT EXISTS ringfence_lease_token;
CREATE TABLE IF NOT EXISTS ringfence_lease_store (one boolean PRIMARY KEY CHECK (one), id text);
CREATE TABLE IF NOT EXISTS ringfence_lease (
    tenant_id text, execution_id text, owner text NOT NULL, token bigint NOT NULL,
    taken_over boolean NOT NULL, expires timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, execution_id));
CREATE INDEX IF NOT EXISTS ringfence_lease_owner ON ringfence_lease (owner);
CREATE TABLE IF NOT EXISTS ringfence_ledger (name text PRIMARY KEY, state text NOT NULL);
"""
_COLUMNS = "tenant_id, execution_id, owner, token, taken_over"
_END = "clock_timestamp() + make_interval(secs => %(ttl)s)"
_RUN_OUT = "expires <= clock_timestamp()"
_LOCK = 0x72696E67  # "ring": what locks the making of the tables, and with a tenant its leases


class PostgresLeases(LeaseStore):
    """Leases in a database; its tables are made at the first use.

    The role needs the right to make them, or they must be there already.

    Args:
        url: A connection URL or a string of `key=value`, as libpq takes it. It is never shown.
        ttl: Seconds that a lease lives without being renewed.

    Raises:
        MissingDependencyError: The extra is not installed.
        ConfigError: The URL is malformed.
        LeaseStoreError: The server does not answer, or refuses.
    """

    def __init__(self, url: str, *, ttl: float = DEFAULT_TTL) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingDependencyError(
                "leases in PostgreSQL need the package 'psycopg'",
                hint="pip install 'ringfence[postgres]'",
            ) from error
        self._psycopg = psycopg
        self.ttl = ttl
        self._url = url
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        try:
            given = psycopg.conninfo.conninfo_to_dict(url).get("options") or ""
        except psycopg.ProgrammingError:
            raise ConfigError("the URL of the database is malformed") from None
        bounds = f"-c statement_timeout={STATEMENT_MS} -c lock_timeout={STATEMENT_MS}"
        self._options = f"{given} {bounds}".strip()
        with self._transaction() as db:
            db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            there = "to_regclass('ringfence_lease_owner'), to_regclass('ringfence_ledger')"
            if None in (db.execute(f"SELECT {there}").fetchone() or (None,)):
                db.execute(_SCHEMA)
            db.execute(
                "INSERT INTO ringfence_lease_store VALUES (true, %s) ON CONFLICT DO NOTHING",
                (f"postgres-{secrets.token_hex(8)}",),
            )
            row = db.execute("SELECT id FROM ringfence_lease_store").fetchone()
            self.id = str(row[0] if row else "")

    def acquire(
        self, tenant_id: str, execution_id: str, owner: str, *, quota: int | None = None
    ) -> Lease:
        key = {"tenant": tenant_id, "execution": execution_id}
        with self._transaction() as db:
            # One after the other for each tenant, so that nobody gets past the quota.
            db.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK, tenant_id))
            found = db.execute(
                f"SELECT owner, {_RUN_OUT} FROM ringfence_lease"  # noqa: S608
                " WHERE tenant_id = %(tenant)s AND execution_id = %(execution)s FOR UPDATE",
                key,
            ).fetchone()
            if found is not None and not (found[1] or is_known_dead(found[0])):
                raise held_elsewhere(execution_id, found[0])
            if quota is not None and self._count(db, tenant_id) >= quota:
                raise over_quota(tenant_id, quota)
            rows = db.execute(
                f"INSERT INTO ringfence_lease ({_COLUMNS}, expires) VALUES (%(tenant)s,"  # noqa: S608
                " %(execution)s, %(owner)s, nextval('ringfence_lease_token'), %(taken)s, "
                f" {_END}) ON CONFLICT (tenant_id, execution_id) DO UPDATE SET"
                " owner = excluded.owner, token = excluded.token,"
                " taken_over = excluded.taken_over, expires = excluded.expires"
                f" RETURNING {_COLUMNS}",
                {**key, "owner": owner, "taken": found is not None, "ttl": self.ttl},
            ).fetchall()
            return Lease(*rows[0])

    def renew(self, owner: str) -> frozenset[Lease]:
        with self._transaction() as db:
            rows = db.execute(
                f"UPDATE ringfence_lease SET expires = {_END} WHERE owner = %(owner)s"  # noqa: S608
                f" RETURNING {_COLUMNS}",
                {"owner": owner, "ttl": self.ttl},
            )
            return frozenset(Lease(*row) for row in rows.fetchall())

    def release(self, lease: Lease) -> bool:
        with self._transaction() as db:
            done = db.execute(
                "DELETE FROM ringfence_lease"
                " WHERE tenant_id = %s AND execution_id = %s AND token = %s",
                (lease.tenant_id, lease.execution_id, lease.token),
            )
            return done.rowcount == 1

    def take_over(self, owner: str) -> list[Lease]:
        with self._transaction() as db:
            owners = db.execute("SELECT DISTINCT owner FROM ringfence_lease").fetchall()
            dead = [name for (name,) in owners if is_known_dead(name)]
            rows = db.execute(
                f"UPDATE ringfence_lease SET expires = {_END}, owner = %(owner)s,"  # noqa: S608
                " taken_over = true, token = nextval('ringfence_lease_token')"
                " WHERE (tenant_id, execution_id) IN (SELECT tenant_id, execution_id"
                f" FROM ringfence_lease WHERE {_RUN_OUT} OR owner = ANY(%(dead)s)"
                f" FOR UPDATE SKIP LOCKED) RETURNING {_COLUMNS}",
                {"owner": owner, "dead": dead, "ttl": self.ttl},
            )
            return [Lease(*row) for row in rows.fetchall()]

    def use_ledger(self, lease: Lease, use: Callable[[Ledger], _Value]) -> _Value:
        name = lease.tenant_id
        with self._transaction() as db:
            db.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK, name))
            held = db.execute(
                f"SELECT token, owner FROM ringfence_lease WHERE tenant_id = %s AND NOT {_RUN_OUT}",  # noqa: S608
                (name,),
            ).fetchall()
            found = db.execute(
                "SELECT state FROM ringfence_ledger WHERE name = %s", (name,)
            ).fetchone()
            live = {token for token, owner in held if not is_known_dead(owner)}
            ledger = Ledger.decode(found[0] if found else "", live)
            value = use(ledger)
            if state := ledger.encode():
                db.execute(
                    "INSERT INTO ringfence_ledger VALUES (%s, %s)"
                    " ON CONFLICT (name) DO UPDATE SET state = excluded.state",
                    (name, state),
                )
            else:
                db.execute("DELETE FROM ringfence_ledger WHERE name = %s", (name,))
            return value

    def live(self) -> list[Lease]:
        with self._transaction() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM ringfence_lease WHERE NOT {_RUN_OUT}")  # noqa: S608
            return [Lease(*row) for row in rows.fetchall()]

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _count(self, db: psycopg.Connection[Any], tenant_id: str) -> int:
        owners = db.execute(
            "SELECT owner, count(*) FROM ringfence_lease"  # noqa: S608
            f" WHERE tenant_id = %s AND NOT {_RUN_OUT} GROUP BY owner",
            (tenant_id,),
        )
        return sum(count for owner, count in owners.fetchall() if not is_known_dead(owner))

    @contextmanager
    def _transaction(self) -> Iterator[psycopg.Connection[Any]]:
        with self._lock:
            try:
                db = self._open()
                with db.transaction():
                    yield db
            except self._psycopg.Error as error:
                # The driver's text can hold the server's address, never the password.
                raise LeaseStoreError(f"the database of leases: {error}") from error

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        self._connection = self._psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_SECONDS,
            options=self._options,
            tcp_user_timeout=2 * STATEMENT_MS,
        )
        return self._connection

    def __repr__(self) -> str:
        return f"<PostgresLeases {getattr(self, 'id', '')}>"
