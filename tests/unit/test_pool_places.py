"""The accounting of a pool: whatever happens in whatever order, no place is lost."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringfence import ConfigError, CreateError, FakeBackend, PoolClosedError, Sandbox, SandboxSpec
from ringfence.backends.fake import FakeSandbox
from ringfence.pool import PoolConfig
from ringfence.pool.places import Member, Places, Waiter, Warmup

BACKEND = FakeBackend()


def sandbox() -> Sandbox:
    return FakeSandbox(BACKEND, SandboxSpec(), BACKEND.default_limits, "rf-test")


class Event:
    """Stands in for an event where nothing ever waits for it."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


def event() -> Any:
    return Event()


def places(max_size: int = 5, max_creating: int = 4, ready: int = 0) -> Places:
    found = Places(max_size, max_creating)
    for _ in range(ready):
        found.offer(Member(sandbox()))
    found.wanted = ready
    return found


class TestConfig:
    def test_the_defaults(self) -> None:
        config = PoolConfig(factory=sandbox)
        assert (config.max_size, config.max_idle_time, config.acquire_timeout) == (5, 300.0, 30.0)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("max_size", value) for value in (0, -1, 1.0, True, "5", None, math.inf)],
            *[("max_creating", value) for value in (0, -1, 2.5, True)],
            *[("max_idle_time", value) for value in (0, -1, math.inf, math.nan, True, "1", None)],
            *[("acquire_timeout", value) for value in (0, -0.1, math.inf)],
            *[("create_timeout", value) for value in (0, math.nan)],
            *[("factory", value) for value in (None, "make", sandbox())],
        ],
    )
    def test_what_can_not_be_right_is_refused(self, name: str, value: object) -> None:
        given: dict[str, Any] = {"factory": sandbox, name: value}
        with pytest.raises(ConfigError, match=name):
            PoolConfig(**given)

    def test_a_factory_that_was_called_already_gets_a_hint(self) -> None:
        with pytest.raises(ConfigError, match="without calling it"):
            PoolConfig(factory=sandbox())  # type: ignore[arg-type]


class TestShortage:
    def test_nothing_is_made_that_nobody_wants(self) -> None:
        assert places().shortage(False) == 0

    def test_one_is_made_for_each_who_waits_and_one_more_for_the_next(self) -> None:
        found = places()
        found.queue(Waiter(0, event()))
        assert found.shortage(False) == 2
        found.making = 2
        assert found.shortage(False) == 0

    def test_what_is_in_use_and_what_goes_takes_a_place(self) -> None:
        found = places(max_size=3, ready=2)
        member = found.take()
        assert member is not None
        found.take()
        found.wanted = 3
        assert found.shortage(False) == 1
        found.retire(member)
        assert found.shortage(False) == 1
        found.removed()
        assert found.shortage(False) == 2

    def test_only_so_many_are_made_at_once(self) -> None:
        found = places(max_size=10, max_creating=3)
        found.wanted = 10
        assert found.shortage(False) == 3
        found.making = 2
        assert found.shortage(False) == 1

    def test_after_a_failure_only_those_who_wait_are_served(self) -> None:
        found = places()
        found.wanted = 4
        assert found.shortage(True) == 0
        found.queue(Waiter(0, event()))
        assert found.shortage(True) == 1
        found.warmups.append(Warmup(2, event()))
        assert found.shortage(True) == 3

    def test_wanted_follows_those_who_come(self) -> None:
        """A pool that was found empty has one more the next time, and forgets it when idle."""
        found = places(max_size=2)
        for turn in range(3):
            found.queue(Waiter(turn, event()))
        assert found.wanted == 2
        found.waiters.clear()
        found.offer(Member(sandbox(), idle_until=1.0))
        found.offer(Member(sandbox(), old_at=1.0))
        assert len(found.expire(1.0)) == 2
        assert (found.wanted, found.removing) == (1, 2)


class TestOrder:
    def test_the_one_that_is_ready_for_longest_goes_first(self) -> None:
        found = places(ready=3)
        order = list(found.ready)
        assert [found.take() for _ in range(4)] == [*order, None]

    def test_who_came_first_is_served_first_even_if_it_queues_later(self) -> None:
        """Its first sandbox had died, so it had to come again."""
        found = places()
        late, early = Waiter(2, event()), Waiter(1, event())
        found.queue(late)
        found.queue(early)
        found.offer(first := Member(sandbox()))
        found.offer(second := Member(sandbox()))
        assert (early.member, late.member) == (first, second)

    def test_what_was_meant_for_one_who_left_goes_to_the_next(self) -> None:
        found = places()
        gone, next_one = Waiter(1, event()), Waiter(2, event())
        found.queue(gone)
        found.queue(next_one)
        found.offer(member := Member(sandbox()))
        found.leave(gone)
        assert next_one.member is member
        assert list(found.in_use.values()) == [member]

    def test_what_is_put_back_after_it_is_gone_stays_gone(self) -> None:
        found = places(ready=1)
        member = found.take()
        assert member is not None
        assert found.retire(member)
        found.put_back(member)
        assert (len(found.ready), found.removing) == (0, 1)
        assert not found.retire(member)


class TestWarmups:
    def test_one_is_done_when_so_many_are_ready(self) -> None:
        found = places(ready=1)
        warmup = Warmup(2, event())
        found.warmups.append(warmup)
        found.settle()
        assert not warmup.done.is_set()
        found.offer(Member(sandbox()))
        assert warmup.done.is_set()

    def test_one_does_not_wait_for_places_that_others_take(self) -> None:
        found = places(max_size=2, ready=2)
        warmup = Warmup(2, event())
        found.take()
        found.warmups.append(warmup)
        found.settle()
        assert warmup.done.is_set()

    def test_a_failure_reaches_all_of_them_and_one_who_waits(self) -> None:
        found = places()
        waiters = [Waiter(turn, event()) for turn in range(2)]
        for waiter in waiters:
            found.queue(waiter)
        warmup = Warmup(2, event())
        found.warmups.append(warmup)
        error = CreateError("no")
        assert found.fail(error)
        assert (waiters[0].error, waiters[1].error, warmup.error) == (error, None, error)
        assert found.fail(error)
        assert not found.fail(error)


class Life(RuleBasedStateMachine):
    """A pool's whole life, as its tasks drive it, against a plain list of what must be so."""

    def __init__(self) -> None:
        super().__init__()
        self.places = Places(4, 2)
        self.turn = 0
        self.now = 0.0
        self.waiting: list[Waiter] = []  # in the order in which they must be served
        self.served: list[Waiter] = []
        self.resting = False
        self.closed = False

    def begin(self) -> None:
        """Do what the pool does after each change."""
        if not self.closed:
            self.places.making += self.places.shortage(self.resting)

    def served_first(self) -> Waiter:
        waiter = self.waiting.pop(0)
        assert waiter.done.is_set()
        return waiter

    @precondition(lambda self: not self.closed)
    @rule()
    def come(self) -> None:
        self.turn += 1
        member = self.places.take()
        if member is not None:
            assert not self.waiting, "served before those who wait"
            self.served.append(Waiter(self.turn, event(), member))
        else:
            self.waiting.append(Waiter(self.turn, event()))
            self.places.queue(self.waiting[-1])
        self.begin()

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def find_dead_and_come_again(self, data: st.DataObject) -> None:
        """Its sandbox did not answer: it comes again with its old turn."""
        waiter = data.draw(st.sampled_from(self.served))
        self.served.remove(waiter)
        assert waiter.member is not None
        self.places.retire(waiter.member)
        again = Waiter(waiter.turn, event())
        member = None if self.closed else self.places.take()
        if member is not None:
            again.member = member
            self.served.append(again)
        elif not self.closed:
            self.places.queue(again)
            self.waiting.append(again)
            self.waiting.sort()
        self.begin()

    @precondition(lambda self: self.places.making)
    @rule(idle=st.floats(0.5, 5), old=st.floats(0.5, 5))
    def made(self, idle: float, old: float) -> None:
        self.places.making -= 1
        self.resting = False
        member = Member(sandbox(), self.now + idle, self.now + old)
        self.places.offer(member)
        if self.closed:
            self.places.retire(member)
        elif self.waiting:
            waiter = self.served_first()
            assert waiter.member is member
            self.served.append(waiter)
        self.begin()

    @precondition(lambda self: self.places.making and not self.closed)
    @rule()
    def fail(self) -> None:
        self.places.making -= 1
        self.resting = True
        self.places.fail(error := CreateError("no"))
        if self.waiting:
            assert self.served_first().error is error
        self.begin()

    @precondition(lambda self: self.resting)
    @rule()
    def rest_is_over(self) -> None:
        self.resting = False
        self.begin()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave_the_line(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(waiter)
        self.places.leave(waiter)
        self.begin()

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def leave_when_served(self, data: st.DataObject) -> None:
        """It was cancelled between being served and waking up."""
        waiter = data.draw(st.sampled_from(self.served))
        self.served.remove(waiter)
        self.places.leave(waiter)
        if self.waiting and not self.closed:
            first = self.served_first()
            assert first.member is waiter.member
            self.served.append(first)
        self.begin()

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.served))
        self.served.remove(waiter)
        assert waiter.member is not None
        assert self.places.retire(waiter.member) is not self.closed
        self.begin()

    @precondition(lambda self: self.places.removing)
    @rule()
    def removed(self) -> None:
        self.places.removed()
        self.begin()

    @rule(seconds=st.floats(0.1, 3))
    def sweep(self, seconds: float) -> None:
        self.now += seconds
        for member in self.places.expire(self.now):
            assert member.is_expired(self.now)
        assert not any(member.is_expired(self.now) for member in self.places.ready)
        self.begin()

    @precondition(lambda self: not self.closed)
    @rule(count=st.integers(0, 4))
    def warm_up(self, count: int) -> None:
        self.places.wanted = max(self.places.wanted, count)
        self.places.warmups.append(Warmup(count, event()))
        self.places.settle()
        self.begin()

    @precondition(lambda self: not self.closed)
    @rule()
    def close(self) -> None:
        self.closed = True
        members = self.places.close(PoolClosedError("closed"))
        assert {one.member for one in self.served} <= set(members)
        assert all(isinstance(waiter.error, PoolClosedError) for waiter in self.waiting)
        assert not self.places.warmups
        self.waiting.clear()

    @invariant()
    def no_place_is_lost_and_none_is_made_up(self) -> None:
        found = self.places
        assert found.size <= found.max_size
        assert min(found.making, found.removing, found.wanted) >= 0
        assert found.making <= found.max_creating
        assert found.waiters == self.waiting
        if not self.closed:
            assert {one.member for one in self.served} == set(found.in_use.values())

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Whoever waits has one being made, or every place is taken by one that will be free."""
        found = self.places
        if found.waiters:
            assert not found.ready
            assert found.making or found.in_use or found.removing

    @invariant()
    def a_warm_up_is_over_when_it_is_done(self) -> None:
        room = self.places.max_size - len(self.places.in_use)
        for warmup in self.places.warmups:
            assert len(self.places.ready) < min(warmup.count, room)

    def teardown(self) -> None:
        """However it went, after closing every place comes free."""
        if not self.closed:
            self.close()
        while self.places.making:
            self.made(1.0, 1.0)
        while self.places.removing:
            self.places.removed()
        assert self.places.size == 0
        assert not self.places.waiters


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_an_event_of_the_loop_does_as_well() -> None:
    """The stand-in above has what the accounting uses, and no more."""

    async def main() -> None:
        waiter = Waiter(0, anyio.Event())
        found = places()
        found.queue(waiter)
        found.offer(Member(sandbox()))
        await waiter.done.wait()

    anyio.run(main)
