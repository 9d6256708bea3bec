"""Leases in a real PostgreSQL, which the tests bring up unless one is given."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql

from ringfence.errors import ConfigError, LeaseStoreError, LimitError, SessionElsewhereError
from ringfence.leases.postgres import PostgresLeases

from .lease_stores import TTL, Leases
from .ledgers import Ledgers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PROJECT = Path(__file__).parent.parent.parent
VARIABLE = "RINGFENCE_TEST_DATABASE_URL"
SERVICES = [sys.executable, "-m", "scripts.services"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a server; what was started for this module is stopped after it."""
    if given := os.environ.get(VARIABLE):
        yield given
        return
    already = not subprocess.run([*SERVICES, "ready", "postgres"], cwd=PROJECT).returncode
    subprocess.run([*SERVICES, "up", "postgres"], cwd=PROJECT, check=True)
    line = subprocess.run(
        [*SERVICES, "env", "postgres"], cwd=PROJECT, check=True, capture_output=True, text=True
    ).stdout
    yield line.partition("=")[2].strip().strip("'")
    if not already:
        subprocess.run([*SERVICES, "down", "postgres"], cwd=PROJECT, check=True)


@pytest.fixture
def url(server: str) -> Iterator[str]:
    """A schema of its own on the server."""
    name = f"ringfence_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        yield f"{server}?options=-csearch_path%3D{name}&application_name={name}"
        admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))


def let_pass(url: str, seconds: float) -> None:
    """Let the leases be older by some seconds."""
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE ringfence_lease SET expires = expires - %s * interval '1s'", (seconds,))


def test_whatever_happens_an_execution_has_one_owner(url: str) -> None:
    """The same model as for the other stores, on the server's clock."""
    made: list[PostgresLeases] = []

    class InADatabase(Leases):
        @staticmethod
        def make() -> PostgresLeases:
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("DROP TABLE IF EXISTS ringfence_lease")
            made.append(PostgresLeases(url, ttl=TTL))
            return made[-1]

        def pass_time(self, seconds: float) -> None:
            let_pass(url, seconds)

    case = InADatabase.TestCase
    case.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
    case("runTest").debug()
    assert made


def test_whatever_happens_a_bound_is_kept(url: str) -> None:
    """The same model as for the other stores, on the server's clock."""
    made: list[PostgresLeases] = []

    class InADatabase(Ledgers):
        @staticmethod
        def make() -> PostgresLeases:
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("DROP TABLE IF EXISTS ringfence_lease, ringfence_ledger")
            made.append(PostgresLeases(url, ttl=TTL))
            return made[-1]

        def pass_time(self, seconds: float) -> None:
            let_pass(url, seconds)

    case = InADatabase.TestCase
    case.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
    case("runTest").debug()
    assert made


def test_the_url_s_own_options_are_kept(url: str) -> None:
    """Catches tables in another schema than the one that the URL names."""
    PostgresLeases(url).close()
    name = f"ringfence_{os.getpid()}"
    with psycopg.connect(url) as db:
        assert db.execute(f"SELECT count(*) FROM {name}.ringfence_lease").fetchone() == (0,)


def test_twenty_workers_that_begin_at_once_share_one_store(url: str) -> None:
    """Catches tables that are made by two at once, which the server refuses to one of them."""
    together = threading.Barrier(20)

    def begin(number: int) -> tuple[str, bool]:
        together.wait()
        store = PostgresLeases(url)
        try:
            store.acquire("t", str(number), f"w{number}", quota=5)
        except LimitError:
            return store.id, False
        finally:
            store.close()
        return store.id, True

    with ThreadPoolExecutor(20) as pool:
        ids, got = zip(*pool.map(begin, range(20)), strict=True)
    assert len(set(ids)) == 1
    assert sum(got) == 5


def test_a_lost_connection_is_an_error_once_and_then_made_anew(url: str) -> None:
    store = PostgresLeases(url)
    lease = store.acquire("t", "a", "w")
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()"
            " AND application_name = current_setting('application_name')"
        )
    with pytest.raises(LeaseStoreError) as caught:
        store.renew("w")
    assert caught.value.retryable
    assert store.renew("w") == {lease}
    store.close()


def test_nobody_there_is_an_error_that_keeps_the_password() -> None:
    with pytest.raises(LeaseStoreError) as caught:
        PostgresLeases("postgresql://me:quite-secret@127.0.0.1:1/x")
    assert "quite-secret" not in f"{caught.value!r} {caught.value}"


def test_a_malformed_url_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError) as caught:
        PostgresLeases("postgresql://me:quite-secret@[::1/x")
    assert "quite-secret" not in f"{caught.value!r} {caught.value}"


def test_a_lease_that_ran_out_on_the_server_can_be_had(url: str) -> None:
    store = PostgresLeases(url)
    store.acquire("t", "a", "w")
    with pytest.raises(SessionElsewhereError):
        store.acquire("t", "a", "w2")
    let_pass(url, TTL + 1)
    assert store.acquire("t", "a", "w2").taken_over
    assert store.renew("w") == frozenset()
    store.close()
