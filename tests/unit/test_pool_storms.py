"""Pools under cancellation at every await, and in storms of callers, deaths and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence import (
    CreateError,
    FakeBackend,
    Pool,
    PoolConfig,
    PoolTimeoutError,
    Sandbox,
    SandboxError,
    SandboxLostError,
)
from ringfence.backends.fake import FakeSandbox
from ringfence.pool.places import Member

from ..faults.test_cancellation import WAYS, run_on_loop

MOST_AWAITS = 40

Operation = Callable[[Pool], Awaitable[object]]


async def acquire(pool: Pool) -> None:
    await pool.release(await pool.acquire())


async def execute(pool: Pool) -> None:
    assert (await pool.execute("x")).ok


async def lease(pool: Pool) -> None:
    async with pool.lease() as sandbox:
        await sandbox.exec("x")
        await sandbox.write_file("a", b"b")


async def warmup(pool: Pool) -> None:
    await pool.warmup(2)


async def acquire_after_deaths(pool: Pool) -> None:
    for member in pool._places.ready:
        assert isinstance(member.sandbox, FakeSandbox)
        member.sandbox.lose("killed")
    await acquire(pool)


OPERATIONS = {
    "acquire": acquire,
    "execute": execute,
    "lease": lease,
    "warmup": warmup,
    "acquire after deaths": acquire_after_deaths,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("warm", [0, 2])
@pytest.mark.parametrize("name", OPERATIONS)
def test_cancelled_at_any_await_it_loses_no_sandbox_and_no_place(
    name: str, warm: int, way: str
) -> None:
    async def main() -> None:
        backend = FakeBackend(create_delay=0.001)
        for count in range(1, MOST_AWAITS):
            async with (
                backend,
                Pool(PoolConfig(factory=backend.create, max_size=2)) as pool,
            ):
                await pool.warmup(warm)
                reached = await WAYS[way](OPERATIONS[name](pool), count)
                assert (pool.in_use, pool.waiting) == (0, 0), f"after await {count}"
                assert not pool._places.warmups
                with anyio.fail_after(30):
                    both = [await pool.acquire(), await pool.acquire()]
                for sandbox in both:
                    await pool.release(sandbox)
            assert backend.live_sandboxes == 0, f"after await {count}"
            assert pool.size == 0
            if not reached:
                return
        raise AssertionError(f"more than {MOST_AWAITS} awaits")

    run_on_loop(main, way)


@pytest.mark.parametrize("way", WAYS)
def test_cancelled_at_any_await_closing_and_opening_leave_nothing(way: str) -> None:
    async def open_and_close() -> None:
        async with Pool(PoolConfig(factory=backend.create, max_size=2)) as pool:
            await pool.warmup(1)
            async with pool.lease():
                await pool.aclose()

    backend = FakeBackend(create_delay=0.001)

    async def main() -> None:
        async with backend:
            for count in range(1, MOST_AWAITS):
                reached = await WAYS[way](open_and_close(), count)
                assert backend.live_sandboxes == 0, f"after await {count}"
                if not reached:
                    assert count > 2
                    return
        raise AssertionError(f"more than {MOST_AWAITS} awaits")

    run_on_loop(main, way)


@pytest.mark.parametrize("way", WAYS)
def test_one_that_is_cancelled_just_when_it_is_served_passes_it_on(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a sandbox that belongs to nobody because its caller never woke up."""

    async def main() -> None:
        backend = FakeBackend()
        async with backend, Pool(PoolConfig(factory=backend.create, max_size=1)) as pool:
            held = await pool.acquire()
            offer = pool._places.offer
            cancelled: list[Member] = []

            def offer_and_cancel(member: Member) -> None:
                offer(member)
                if not cancelled and not pool._places.ready:
                    cancelled.append(member)
                    cancel()

            monkeypatch.setattr(pool._places, "offer", offer_and_cancel)
            got: list[Sandbox] = []

            async def come() -> None:
                async with pool.lease(timeout=30) as sandbox:
                    await anyio.sleep(0)
                    got.append(sandbox)

            async with anyio.create_task_group() as group:
                cancel = start_one(way, come, group)
                while pool.waiting != 1:
                    await anyio.sleep(0)
                group.start_soon(come)
                while pool.waiting != 2:
                    await anyio.sleep(0)
                await pool.release(held)
            assert cancelled
            assert len(got) == 1
            assert (pool.in_use, pool.waiting) == (0, 0)

    run_on_loop(main, way)


def start_one(
    way: str, work: Callable[[], Awaitable[None]], group: TaskGroup
) -> Callable[[], object]:
    """Start something, and return what cancels it."""
    if way == "task":
        return asyncio.ensure_future(work()).cancel
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await work()

    group.start_soon(run)
    return scope.cancel


# Storms.


@dataclass(frozen=True)
class Caller:
    """When it comes, how long it waits and works, and how that ends."""

    comes: float
    waits: float
    works: float
    end: str


CALLERS = st.builds(
    Caller,
    comes=st.floats(0, 30),
    waits=st.floats(0.1, 60),
    works=st.floats(0, 10),
    end=st.sampled_from(["well", "cancelled", "closed", "lost", "error"]),
)


class Weather:
    """A factory with delays and failures, whose sandboxes die when it says so."""

    def __init__(self, faults: list[float], deaths: list[float]) -> None:
        self.backend = FakeBackend()
        self.faults = faults
        self.deaths = deaths
        self.most = 0

    async def make(self) -> Sandbox:
        delay = self.faults.pop() if self.faults else 0.5
        await anyio.sleep(abs(delay))
        if delay < 0:
            raise CreateError("bad weather") if delay > -1 else OSError("worse weather")
        sandbox = await self.backend.create()
        self.most = max(self.most, self.backend.live_sandboxes)
        return sandbox

    async def strike(self) -> None:
        for when in sorted(self.deaths):
            await anyio.sleep_until(when)
            live = [sandbox for sandbox in self.backend.sandboxes if sandbox.is_live]
            for sandbox in live[::2]:
                sandbox.lose("struck")


@settings(max_examples=60, deadline=None)
@given(
    callers=st.lists(CALLERS, min_size=1, max_size=25),
    faults=st.lists(st.floats(-2, 3), max_size=30),
    deaths=st.lists(st.floats(0, 60), max_size=6),
    max_size=st.integers(1, 5),
    warm=st.integers(0, 5),
)
def test_a_storm_ends_and_nobody_is_forgotten(
    callers: list[Caller], faults: list[float], deaths: list[float], max_size: int, warm: int
) -> None:
    weather = Weather(faults, deaths)
    ends: list[str] = []

    async def call(caller: Caller) -> None:
        await anyio.sleep(caller.comes)
        began = anyio.current_time()
        try:
            with anyio.CancelScope() as scope:
                async with pool.lease(timeout=caller.waits) as sandbox:
                    assert anyio.current_time() - began <= caller.waits
                    assert pool.size <= max_size
                    await work(caller, sandbox, scope)
        except PoolTimeoutError:
            assert anyio.current_time() - began == pytest.approx(caller.waits)
            ends.append("timeout")
        except SandboxError as error:
            ends.append(error.code)
        except KeyError:
            ends.append("error")
        else:
            ends.append("served")

    async def work(caller: Caller, sandbox: Sandbox, scope: anyio.CancelScope) -> None:
        await anyio.sleep(caller.works)
        if caller.end == "cancelled":
            scope.cancel()
        elif caller.end == "closed":
            await sandbox.aclose()
        elif caller.end == "lost":
            raise SandboxLostError("lost")
        elif caller.end == "error":
            raise KeyError
        await anyio.sleep(0.1)

    async def main() -> None:
        async with weather.backend, pool, anyio.create_task_group() as group:
            group.start_soon(weather.strike)
            group.start_soon(warm_up)
            for caller in callers:
                group.start_soon(call, caller)
        assert len(ends) == len(callers)
        assert weather.backend.live_sandboxes == 0
        assert weather.most <= max_size
        assert pool.size == 0

    async def warm_up() -> None:
        try:
            await pool.warmup(warm)
        except SandboxError:
            ends_of_warmup.append("told")
        await anyio.sleep(200)  # the storm is over, and the pool as good as new
        weather.faults.clear()
        with anyio.fail_after(60):
            held = [await pool.acquire() for _ in range(max_size)]
        for sandbox in held:
            assert (await sandbox.exec("x")).ok
            await pool.release(sandbox)

    ends_of_warmup: list[str] = []
    config = PoolConfig(factory=weather.make, max_size=max_size, max_idle_time=20)
    pool = Pool(config)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
