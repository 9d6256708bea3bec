"""A model of workers that fill one place under one bound, each store of leases is tried against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ringfence.errors import LeaseStoreError
from ringfence.leases import Lease, LeaseStore

from .lease_stores import TTL

NAME = "storage acme place"
BOUND = 1000
WORKERS = st.sampled_from(["w1", "w2", "w3"])
SIZES = st.sampled_from([0, 1, 7, 100, 400, 1000, 1001])


@dataclass
class Worker:
    """One that is there, or waits for it."""

    lease: Lease
    state: Literal["wait", "count", "joined"] = "wait"
    left: int = 0


class Ledgers(RuleBasedStateMachine):
    """Whatever happens, there is never more in the place than the bound allows.

    A subclass says how a store is made and how its time goes on.
    """

    make: Callable[[], LeaseStore]

    def __init__(self) -> None:
        super().__init__()
        self.store = type(self).make()
        self.there: dict[str, Worker] = {}
        self.stored = 0
        self.drawn_by_dead = 0

    def pass_time(self, seconds: float) -> None:
        raise NotImplementedError

    def others(self, name: str) -> list[Worker]:
        return [one for other, one in self.there.items() if other != name and one.state != "wait"]

    @rule(name=WORKERS)
    def enter(self, name: str) -> None:
        if name not in self.there:
            self.there[name] = Worker(self.store.acquire(NAME, name, name))
        worker = self.there[name]
        if worker.state != "wait":
            return
        joined = self.store.use_ledger(worker.lease, lambda ledger: ledger.join(worker.lease.token))
        states = {one.state for one in self.others(name)}
        assert joined == ("count" if not states else "wait" if "count" in states else "joined")
        worker.state = joined
        if joined == "count":
            self.drawn_by_dead = 0

    @rule(name=WORKERS)
    def count(self, name: str) -> None:
        worker = self.there.get(name)
        if worker is not None and worker.state == "count":
            token, found = worker.lease.token, self.stored
            self.store.use_ledger(worker.lease, lambda ledger: ledger.count(token, found))
            worker.state = "joined"

    @rule(name=WORKERS, size=SIZES)
    def put(self, name: str, size: int) -> None:
        worker = self.there.get(name)
        if worker is None or worker.state != "joined":
            return
        if size > worker.left:
            lacking, token = size - worker.left, worker.lease.token
            worker.left += self.store.use_ledger(
                worker.lease, lambda ledger: ledger.draw(token, lacking, BOUND)
            )
        if size <= worker.left:
            worker.left -= size
            self.stored += size
        else:
            drawn = self.drawn_by_dead + sum(one.left for one in self.others(name))
            assert self.stored + size + drawn > BOUND, "there was room for it"

    @rule(name=WORKERS)
    def leave(self, name: str) -> None:
        worker = self.there.pop(name, None)
        if worker is not None:
            token, left = worker.lease.token, worker.left
            self.store.use_ledger(worker.lease, lambda ledger: ledger.leave(token, left))
            assert self.store.release(worker.lease)

    @rule(name=WORKERS)
    def die(self, name: str) -> None:
        """Its lease runs out, while the others renew theirs."""
        worker = self.there.pop(name, None)
        if worker is None:
            return
        for seconds in (TTL - 1, 2):
            for other in self.there:
                self.store.renew(other)
            self.pass_time(seconds)
        self.drawn_by_dead += worker.left
        if worker.state == "joined":  # and finds out, should it have been asleep
            token = worker.lease.token
            with pytest.raises(LeaseStoreError):
                self.store.use_ledger(worker.lease, lambda ledger: ledger.draw(token, 1, BOUND))
        assert self.store.release(worker.lease)

    @rule(size=SIZES)
    def delete(self, size: int) -> None:
        """Somebody deletes objects: that counts when nobody is there any more."""
        gone = min(size, self.stored)
        self.stored -= gone
        if any(one.state == "joined" for one in self.there.values()):
            self.drawn_by_dead += gone

    @invariant()
    def the_bound_is_kept(self) -> None:
        left = sum(one.left for one in self.there.values())
        assert self.stored + left <= BOUND

    def teardown(self) -> None:
        self.store.close()
