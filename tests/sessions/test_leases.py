"""Leases in memory and in a file: one owner each, whatever happens."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import settings

from ringfence.errors import ConfigError, LeaseStoreError, LimitError
from ringfence.leases import (
    Lease,
    LeaseStore,
    MemoryLeases,
    Renewal,
    SqliteLeases,
    is_known_dead,
    owner_name,
)

from .lease_stores import Leases
from .ledgers import Ledgers


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Memory:
    make: Any

    def __init__(self) -> None:
        self.clock = Clock()
        type(self).make = staticmethod(lambda: MemoryLeases(clock=self.clock))
        super().__init__()

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds


class InMemory(Memory, Leases):
    pass


class LedgersInMemory(Memory, Ledgers):
    pass


class File:
    """Each step goes through one of two stores on one file, as two workers have them."""

    make: Any
    store: LeaseStore

    def __init__(self) -> None:
        self.clock = Clock()
        self.place = tempfile.TemporaryDirectory(prefix="ringfence-leases-")
        path = f"{self.place.name}/leases.sqlite"
        self.stores = [SqliteLeases(path, clock=self.clock) for _ in range(2)]
        type(self).make = staticmethod(lambda: self.stores[0])
        super().__init__()

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.stores.reverse()
        self.store = self.stores[0]

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.place.cleanup()


class InAFile(File, Leases):
    pass


class LedgersInAFile(File, Ledgers):
    pass


TestInMemory = pytest.mark.timeout(50)(InMemory.TestCase)
TestInMemory.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestInAFile = pytest.mark.timeout(50)(InAFile.TestCase)
TestInAFile.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestLedgersInMemory = pytest.mark.timeout(50)(LedgersInMemory.TestCase)
TestLedgersInMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgersInAFile = pytest.mark.timeout(50)(LedgersInAFile.TestCase)
TestLedgersInAFile.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "own").mkdir(0o700)
    return f"{tmp_path}/own/leases.sqlite"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, path: str) -> Iterator[LeaseStore]:
    made: LeaseStore = MemoryLeases() if request.param == "memory" else SqliteLeases(path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def dead_owner() -> str:
    """The name of an owner whose process has ended."""
    code = "from ringfence.leases import owner_name; print(owner_name())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_owner_of_this_machine_that_has_died_is_known_to_be_dead(dead_owner: str) -> None:
    assert is_known_dead(dead_owner)
    assert not is_known_dead(owner_name())


@pytest.mark.parametrize("name", ["", "w1", "a.b.c.d", "other-boot.1.2.3.x", "....."])
def test_an_owner_that_can_t_be_judged_is_not_called_dead(name: str) -> None:
    assert not is_known_dead(name)


def test_an_owner_in_another_pid_namespace_is_not_judged(dead_owner: str) -> None:
    """Catches a container that takes the host's workers for dead, whose pids it can't see."""
    boot, namespace, *rest = dead_owner.split(".")
    assert not is_known_dead(".".join([boot, str(int(namespace) + 1), *rest]))


def test_an_owner_that_proc_hides_is_not_called_dead(
    dead_owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a live worker of another user that is taken for dead where /proc hides it."""

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not is_known_dead(dead_owner)


def test_an_owner_that_nobody_has_waited_for_is_dead() -> None:
    code = "from ringfence.leases import owner_name; print(owner_name(), flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as done:
        assert done.stdout is not None
        name = done.stdout.read().strip()
        assert os.waitid(os.P_PID, done.pid, os.WEXITED | os.WNOWAIT)
        assert is_known_dead(name)


def test_what_a_dead_worker_held_is_had_at_once(store: LeaseStore, dead_owner: str) -> None:
    """Catches a wait of half a minute after each crash."""
    store.acquire("t", "a", dead_owner)
    store.acquire("t", "b", dead_owner)
    assert store.acquire("t", "a", owner_name(), quota=1).taken_over
    assert [lease.execution_id for lease in store.take_over(owner_name())] == ["b"]


def test_the_dead_do_not_count_for_a_quota(store: LeaseStore, dead_owner: str) -> None:
    store.acquire("t", "a", dead_owner)
    assert store.acquire("t", "b", owner_name(), quota=1).execution_id == "b"
    with pytest.raises(LimitError) as caught:
        store.acquire("t", "c", owner_name(), quota=1)
    assert caught.value.limit == "max_sandboxes"
    assert store.acquire("u", "c", owner_name(), quota=1).tenant_id == "u"


def test_one_name_belongs_to_each_tenant(store: LeaseStore) -> None:
    """Catches a key without the tenant, which gives one tenant another one's sandbox."""
    assert store.acquire("t", "a", "w").token != store.acquire("u", "a", "w").token


def test_the_file_is_nobody_else_s(path: str) -> None:
    SqliteLeases(path).acquire("t", "a", "w")
    for name in os.listdir(os.path.dirname(path)):
        mode = os.stat(f"{os.path.dirname(path)}/{name}").st_mode
        assert stat.S_IMODE(mode) == 0o600, name


def test_a_directory_that_others_enter_is_refused(path: str) -> None:
    os.chmod(os.path.dirname(path), 0o750)
    with pytest.raises(ConfigError, match="others"):
        SqliteLeases(path)


def test_a_link_in_place_of_the_file_is_not_followed(path: str, tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(LeaseStoreError):
        SqliteLeases(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_is_no_store_is_said_to_be_none(path: str) -> None:
    Path(path).write_bytes(b"not a database" * 1000)
    with pytest.raises(LeaseStoreError, match=r"leases\.sqlite.*remove it"):
        SqliteLeases(path)


def test_the_store_s_id_stays(path: str) -> None:
    first = SqliteLeases(path)
    assert SqliteLeases(path).id == first.id
    assert MemoryLeases().id != MemoryLeases().id


def test_leases_of_before_a_restart_have_run_out(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteLeases(path).acquire("t", "a", "w")
    monkeypatch.setattr("ringfence.leases.sqlite.boot_id", lambda: "another boot")
    after = SqliteLeases(path)
    assert after.live() == []
    assert len(after.take_over("w2")) == 1


def test_a_clock_that_began_anew_holds_nobody_up(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches leases that live for days after a restart, where the boot has no name."""
    monkeypatch.setattr("ringfence.leases.sqlite.boot_id", lambda: "")
    SqliteLeases(path, clock=lambda: 1e6).acquire("t", "a", "w")
    assert SqliteLeases(path, clock=lambda: 5.0).acquire("t", "a", "w2").taken_over


def test_a_file_that_another_process_locks_is_an_error_in_bounded_time(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.leases.sqlite.BUSY_SECONDS", 0.05)
    store = SqliteLeases(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LeaseStoreError, match="locked"):
        store.acquire("t", "a", "w")
    other.execute("ROLLBACK")
    other.close()
    assert store.acquire("t", "a", "w").token == 1
    store.close()


def test_a_forked_child_opens_the_file_anew(path: str) -> None:
    """Catches a connection that two processes use, which SQLite does not survive."""
    code = (
        "import os, sys\n"
        "from ringfence.leases import SqliteLeases\n"
        "store = SqliteLeases(sys.argv[1]); store.acquire('t', 'parent', 'w')\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    store.acquire('t', 'child', 'w'); os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(sorted(lease.execution_id for lease in store.live()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, path],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.stderr, done.stdout) == ("", "['child', 'parent']\n")


MANY = """
import sys, time
from ringfence.errors import LimitError, SessionElsewhereError
from ringfence.leases import SqliteLeases, owner_name
store, me = SqliteLeases(sys.argv[1]), owner_name()
won = []
for number in range(150):
    try:
        lease = store.acquire("t", str(number % 50), me, quota=5)
    except (SessionElsewhereError, LimitError):
        continue
    won.append(lease.token)
    assert len(store.live()) <= 5
    store.renew(me)
    assert store.release(lease)
print(*won)
"""


@pytest.mark.slow
def test_processes_on_one_file_never_hold_one_execution_at_once(path: str) -> None:
    """Catches a look and a write that are two steps: quotas are passed, tokens come twice."""
    workers = [
        subprocess.Popen([sys.executable, "-c", MANY, path], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    tokens = [int(word) for worker in workers for word in worker.communicate()[0].split()]
    assert [worker.returncode for worker in workers] == [0] * 4
    assert len(tokens) == len(set(tokens)) > 0
    assert SqliteLeases(path).live() == []


class Watched(MemoryLeases):
    """Lets a test wait for renewals, and break them."""

    def __init__(self, ttl: float) -> None:
        super().__init__(ttl=ttl)
        self.asked = threading.Semaphore(0)
        self.broken = False

    def renew(self, owner: str) -> frozenset[Lease]:
        try:
            if self.broken:
                raise LeaseStoreError("it does not answer")
            return super().renew(owner)
        finally:
            self.asked.release()


def test_leases_are_renewed_while_an_event_loop_stands_still() -> None:
    """Catches renewals by a task, which a loop that is busy for long does not let run."""
    store = Watched(ttl=0.3)
    renewal = Renewal(store, "w")
    hold = renewal.add(store.acquire("t", "a", "w"))
    before = renewal.confirmed_until

    async def stand_still() -> None:
        for _ in range(4):
            assert store.asked.acquire(timeout=30)

    renewal.start()
    try:
        anyio.run(stand_still)
    finally:
        renewal.stop()
    assert renewal.confirmed_until > before
    assert not hold.lost


def test_what_was_taken_over_is_known_to_be_lost() -> None:
    clock = Clock()
    store = MemoryLeases(clock=clock)
    renewal = Renewal(store, "w", clock=clock)
    kept, gone = (renewal.add(store.acquire("t", name, "w")) for name in "ab")
    clock.now += 31
    renewal.renew()  # late, and nobody came: both are still ours
    assert (kept.lost, gone.lost) == (False, False)
    clock.now += 31
    store.acquire("t", "b", "w2")
    renewal.renew()
    assert (kept.lost, gone.lost) == (False, True)
    assert not store.release(gone.lease)


def test_nothing_is_confirmed_while_the_store_is_away() -> None:
    store = Watched(ttl=0.15)
    renewal = Renewal(store, "w")
    renewal.start()
    try:
        store.broken = True
        while store.asked.acquire(blocking=False):
            pass
        for _ in range(6):
            assert store.asked.acquire(timeout=10)
        late = renewal.confirmed_until
        assert late < time.monotonic()
        store.broken = False
        for _ in range(2):
            assert store.asked.acquire(timeout=10)
        assert renewal.confirmed_until > late
    finally:
        renewal.stop()
