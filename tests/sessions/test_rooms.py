"""The room that the exports of one worker share, as they come and go."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar, cast

import anyio
import pytest

from ringfence.leases import Hold, Lease, Ledger
from ringfence.policy import Plan
from ringfence.sessions.home import Home
from ringfence.sessions.rooms import Rooms
from ringfence.storage import open_store

pytestmark = pytest.mark.anyio

_Value = TypeVar("_Value")


async def a_moment() -> None:
    await anyio.sleep(random.random() * 0.002)


class SlowHome:
    """A worker whose store of leases takes its time, and gives the same hold to who asks again."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.held: Hold | None = None
        self.token = 0

    async def hold(self, name: str) -> Hold:
        await a_moment()
        if self.held is None:
            self.token += 1
            self.held = Hold(Lease(name, "owner", "owner", self.token))
        return self.held

    async def use_ledger(self, hold: Hold, use: Callable[[Ledger], _Value]) -> _Value:
        await a_moment()
        value = use(self.ledger)
        await a_moment()
        return value

    async def release(self, hold: Hold) -> None:
        if self.held is hold:
            self.held = None
        await a_moment()


async def test_an_export_may_begin_while_the_last_other_one_leaves() -> None:
    """Catches one that gives up what others of the same worker go on drawing from."""
    home = SlowHome()
    rooms = Rooms(cast("Home", home))
    store = open_store("memory:")

    async def exports() -> None:
        for _ in range(60):
            async with rooms.room(store, "acme", 10**9, Plan("large")) as room:
                await a_moment()
                assert await room.has(room.left + 1)
            await a_moment()

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(exports)
    assert home.held is None
    assert home.ledger == Ledger(used=0, counter=home.ledger.counter)
