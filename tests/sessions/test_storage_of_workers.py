"""A tenant's bound over several workers that export at the same moment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from ringfence import FakeBackend, Plan, Policy, SessionManager
from ringfence.leases import SqliteLeases
from ringfence.storage import LocalStore

pytestmark = pytest.mark.timeout(120)

PROJECT = Path(__file__).parent.parent.parent
BOUND = 500_000
FILES = 40
SIZE = 10_000

Worker = subprocess.Popen[str]


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str]:
    """The file of leases, and the directory of the store."""
    (tmp_path / "own").mkdir(0o700)
    return f"{tmp_path}/own/leases.sqlite", f"{tmp_path}/store"


@pytest.fixture
def begin(places: tuple[str, str]) -> Iterator[Callable[[str], Worker]]:
    """Starts a worker that exports an execution."""
    with ExitStack() as stack:

        def start(name: str) -> Worker:
            numbers = map(str, (BOUND, FILES, SIZE))
            command = [sys.executable, "-m", "tests.sessions.exporter", name, *places, *numbers]
            pipe = subprocess.PIPE
            made = subprocess.Popen(command, cwd=PROJECT, stdin=pipe, stdout=pipe, text=True)
            stack.enter_context(made)
            stack.callback(made.kill)
            return made

        yield start


def line(worker: Worker) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


def go_on(worker: Worker) -> None:
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()


def stored(directory: str) -> int:
    files = Path(directory).glob("acme/*/files/*")
    return sum(path.stat().st_size for path in files)


def test_two_workers_at_the_same_moment_keep_one_bound(
    places: tuple[str, str], begin: Callable[[str], Worker]
) -> None:
    first, second = begin("a"), begin("b")
    assert [line(first), line(second)] == ["in", "in"]
    go_on(first)
    go_on(second)
    outcomes = [json.loads(line(worker)) for worker in (first, second)]
    assert stored(places[1]) <= BOUND
    assert stored(places[1]) > BOUND * 0.9, "what one has drawn and not used is not lost"
    assert sum(total for total, _, _ in outcomes) == stored(places[1])
    reasons = {reason for _, _, told in outcomes for reason in told}
    assert len(reasons) == 1
    assert "storage_bytes" in reasons.pop()


def test_what_a_killed_worker_had_drawn_is_given_back(
    places: tuple[str, str], begin: Callable[[str], Worker]
) -> None:
    killed = begin("a")
    assert line(killed) == "in"
    killed.kill()
    killed.wait()
    anyio.run(fill, *places)
    assert BOUND - SIZE < stored(places[1]) <= BOUND


async def fill(leases: str, directory: str) -> None:
    policy = Policy({"free": Plan("free", storage_bytes=BOUND)})
    store, backend = SqliteLeases(leases), FakeBackend()
    async with backend, SessionManager(backend, leases=store, policy=policy) as sessions:
        session = sessions.session("c", tenant_id="acme", plan="free")
        for number in range(100):
            await session.write_file(f"{number}", bytes(SIZE))
        await sessions.export("c", LocalStore(directory), tenant_id="acme")
        assert [lease.execution_id for lease in store.live()] == ["c"]
    store.close()
