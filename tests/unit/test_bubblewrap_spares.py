"""Which spare is handed out, and what becomes of the others; without a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from ringfence.backends import _bubblewrap_spares
from ringfence.backends._bubblewrap_spares import Spares
from ringfence.errors import CreateError
from ringfence.warden.boot import Boot
from ringfence.warden.connection import Connection
from ringfence.warden.sandbox import WardenSandbox


class FakeBoot:
    """One that is starting, then fresh, then dead."""

    def __init__(self) -> None:
        self.state = "starting"
        self.connections = 0
        self.abandoned = False

    def await_hello(self, _: float) -> None:
        self.state = "fresh"

    def is_fresh(self, _: float) -> bool:
        return self.state == "fresh"

    def is_dead(self, _: float) -> bool:
        return self.state == "dead"

    def connect_now(self, _: object) -> Connection:
        self.connections += 1
        return cast("Connection", self)

    def abandon(self) -> None:
        self.abandoned = True


class Bench:
    """Spares whose thread is a list of jobs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.boots: list[FakeBoot] = []
        self.broken = False
        monkeypatch.setattr(_bubblewrap_spares, "submit", self.jobs.append)
        monkeypatch.setattr(_bubblewrap_spares, "asyncio_loop", lambda: None)
        self.spares = Spares(self.start, self.adopt)

    def start(self) -> Boot:
        self.boots.append(FakeBoot())
        return cast("Boot", self.boots[-1])

    def adopt(self, boot: Boot, connection: Connection) -> WardenSandbox:
        assert cast("object", boot) is cast("object", connection)
        if self.broken:
            raise CreateError("it has no protection")
        return cast("WardenSandbox", boot)

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_each_is_handed_out_once_and_replaced(bench: Bench) -> None:
    bench.spares.fill(2)
    bench.work()
    assert bench.spares.is_ready
    taken = [bench.spares.take() for _ in range(3)]
    assert [cast("object", one) for one in taken] == [*bench.boots, None]
    assert [boot.connections for boot in bench.boots] == [1, 1]
    bench.work()
    assert len(bench.boots) == 4
    assert bench.spares.is_ready


def test_one_that_is_not_up_is_left_alone(bench: Bench) -> None:
    bench.spares.fill(1)
    bench.jobs.pop(0)()
    assert not bench.spares.is_ready
    assert bench.spares.take() is None
    bench.work()
    assert cast("object", bench.spares.take()) is bench.boots[0]


def test_a_dead_one_is_ended_and_replaced(bench: Bench) -> None:
    bench.spares.fill(1)
    bench.work()
    bench.boots[0].state = "dead"
    assert bench.spares.take() is None
    assert bench.boots[0].abandoned
    bench.work()
    assert cast("object", bench.spares.take()) is bench.boots[1]


def test_one_that_can_t_be_used_is_ended_and_nobody_gets_it(bench: Bench) -> None:
    bench.broken = True
    bench.spares.fill(1)
    bench.work()
    assert bench.spares.take() is None
    assert bench.boots[0].abandoned
    bench.broken = False
    bench.work()
    assert cast("object", bench.spares.take()) is bench.boots[1]


def test_after_stop_none_is_made_and_abandon_ends_all(bench: Bench) -> None:
    bench.spares.fill(2)
    bench.work()
    bench.spares.take()
    bench.spares.stop()
    bench.work()
    assert len(bench.boots) == 2
    bench.spares.abandon()
    assert [boot.abandoned for boot in bench.boots] == [False, True]
    assert not bench.spares.is_ready
