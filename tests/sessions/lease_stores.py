"""A model of what every store of leases must do, which hypothesis tries them against."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ringfence.errors import LimitError, SessionElsewhereError
from ringfence.leases import Lease, LeaseStore

TTL = 30.0
EXECUTIONS = st.tuples(st.sampled_from(["t1", "t2"]), st.sampled_from(["a", "b", "c"]))
OWNERS = st.sampled_from(["w1", "w2", "w3"])


class Leases(RuleBasedStateMachine):
    """Whatever happens, an execution has one owner, and who lost it can do nothing to it.

    A subclass says how a store is made and how its time goes on.
    """

    make: Callable[[], LeaseStore]

    def __init__(self) -> None:
        super().__init__()
        self.store = type(self).make()
        self.now = 0.0
        self.model: dict[tuple[str, str], tuple[Lease, float]] = {}
        self.given: list[Lease] = []

    def pass_time(self, seconds: float) -> None:
        raise NotImplementedError

    def expired(self, key: tuple[str, str]) -> bool:
        return self.model[key][1] <= self.now

    def put(self, lease: Lease) -> None:
        assert all(lease.token > earlier.token for earlier in self.given)
        self.model[lease.tenant_id, lease.execution_id] = lease, self.now + TTL
        self.given.append(lease)

    @rule(key=EXECUTIONS, owner=OWNERS, quota=st.sampled_from([None, 1, 2]))
    def acquire(self, key: tuple[str, str], owner: str, quota: int | None) -> None:
        held = key in self.model and not self.expired(key)
        live = [other for other in self.model if other[0] == key[0] and not self.expired(other)]
        if held:
            with pytest.raises(SessionElsewhereError) as caught:
                self.store.acquire(*key, owner, quota=quota)
            assert caught.value.owner == self.model[key][0].owner
        elif quota is not None and len(live) >= quota:
            with pytest.raises(LimitError, match="sandboxes"):
                self.store.acquire(*key, owner, quota=quota)
        else:
            lease = self.store.acquire(*key, owner, quota=quota)
            assert (lease.tenant_id, lease.execution_id, lease.owner) == (*key, owner)
            assert lease.taken_over == (key in self.model)
            self.put(lease)

    @rule(owner=OWNERS)
    def renew(self, owner: str) -> None:
        mine = {key: lease for key, (lease, _) in self.model.items() if lease.owner == owner}
        assert self.store.renew(owner) == frozenset(mine.values())
        for key, lease in mine.items():
            self.model[key] = lease, self.now + TTL

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.given:
            lease = data.draw(st.sampled_from(self.given))
            key = (lease.tenant_id, lease.execution_id)
            current = self.model.get(key)
            still = current is not None and current[0] == lease
            assert self.store.release(lease) == still
            if still:
                del self.model[key]

    @rule(owner=OWNERS)
    def take_over(self, owner: str) -> None:
        lost = {key for key in self.model if self.expired(key)}
        taken = self.store.take_over(owner)
        assert {(lease.tenant_id, lease.execution_id) for lease in taken} == lost
        for lease in sorted(taken, key=lambda lease: lease.token):
            assert (lease.owner, lease.taken_over) == (owner, True)
            self.put(lease)

    @rule(seconds=st.sampled_from([1.0, 10.0, 29.0, 31.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.pass_time(seconds)

    @invariant()
    def the_live_ones_are_known(self) -> None:
        live = {lease for key, (lease, _) in self.model.items() if not self.expired(key)}
        assert set(self.store.live()) == live

    def teardown(self) -> None:
        self.store.close()
