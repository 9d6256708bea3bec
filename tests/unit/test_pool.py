"""A pool on the fake backend: who gets which sandbox, when, and what becomes of it afterwards."""

from __future__ import annotations

import gc
import logging
import re
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.lowlevel import checkpoint

from ringfence import (
    CommandError,
    ConfigError,
    CreateError,
    CreateTimeoutError,
    FakeBackend,
    FakeConfig,
    Pool,
    PoolClosedError,
    PoolConfig,
    PoolError,
    PoolTimeoutError,
    Sandbox,
    SandboxClosedError,
    SandboxLostError,
    Script,
    shell,
)
from ringfence.backends.fake import FakeSandbox
from ringfence.pool.places import Member

from .clocks import on_a_jumping_clock

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class Factory:
    """Makes sandboxes of a fake backend, when it is let and as it is told.

    Attributes:
        made: All that it made.
        at_once: How many were being made at the same time, at most.
        errors: What the next ones raise.
    """

    def __init__(self, **options: Any) -> None:
        self.backend = FakeBackend(**options)
        self.made: list[FakeSandbox] = []
        self.calls = 0
        self.at_once = 0
        self.errors: list[BaseException | None] = []
        self._running = 0
        self._gate: anyio.Event | None = None

    def hold(self) -> None:
        """Let none be finished until `let_go`."""
        self._gate = anyio.Event()

    def let_go(self) -> None:
        assert self._gate is not None
        self._gate.set()
        self._gate = None

    async def __call__(self) -> Sandbox:
        self.calls += 1
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        try:
            if self._gate is not None:
                await self._gate.wait()
            await checkpoint()
            if self.errors and (error := self.errors.pop(0)):
                raise error
            sandbox = await self.backend.create()
            assert isinstance(sandbox, FakeSandbox)
            self.made.append(sandbox)
            return sandbox
        finally:
            self._running -= 1

    def pool(self, max_size: int = 5, **settings: Any) -> Pool:
        self.backend._is_open = True
        return Pool(PoolConfig(factory=self, max_size=max_size, **settings))


async def until(holds: Callable[[], object]) -> None:
    """Return when something that needs no time has come about."""
    with anyio.fail_after(30):
        while not holds():
            await anyio.sleep(0)


def state(pool: Pool) -> str:
    """Return the numbers in a pool's repr: ready, in use, being made, being removed, waiting."""
    found = re.fullmatch(
        r"<Pool \w+: (\d+) ready, (\d+) in use, (\d+) being made, (\d+) being removed, of \d+; "
        r"(\d+) waiting>",
        repr(pool),
    )
    assert found, repr(pool)
    return " ".join(found.groups())


class TestWarm:
    async def test_a_ready_one_is_handed_out_and_another_takes_its_place(self) -> None:
        factory = Factory()
        async with factory.pool() as pool:
            await pool.warmup(2)
            assert state(pool) == "2 0 0 0 0"
            first, second = factory.made
            assert await pool.acquire() is first
            assert state(pool) == "1 1 1 0 0"
            await until(lambda: pool.ready == 2)
            assert await pool.acquire() is second
            await pool.release(first)
            await pool.release(second)

    async def test_one_is_never_handed_out_twice_and_is_destroyed_on_release(self) -> None:
        """Catches what one user leaves behind being there for the next."""
        factory = Factory()
        async with factory.pool(max_size=1) as pool:
            await pool.warmup(1)
            seen = []
            for _ in range(5):
                sandbox = await pool.acquire()
                await sandbox.write_file("secret", b"mine")
                assert isinstance(sandbox, FakeSandbox)
                seen.append(sandbox)
                await pool.release(sandbox)
                await until(lambda: pool.ready)
                assert not seen[-1].is_live
            assert len(set(seen)) == 5

    async def test_without_a_warmup_the_first_is_made_on_demand_and_the_next_ahead(self) -> None:
        factory = Factory()
        async with factory.pool() as pool:
            assert state(pool) == "0 0 0 0 0"
            sandbox = await pool.acquire()
            await until(lambda: pool.ready == 1)
            await pool.release(sandbox)
            await until(lambda: state(pool) == "1 0 0 0 0")
            assert factory.calls == 2

    async def test_a_warmup_is_capped_and_can_be_asked_for_again(self) -> None:
        factory = Factory()
        async with factory.pool(max_size=3) as pool:
            await pool.warmup(100)
            await pool.warmup(2)
            await pool.warmup(0)
            assert (pool.ready, factory.calls) == (3, 3)

    @pytest.mark.parametrize("n", [-1, True, 1.0, "3", None])
    async def test_a_warmup_counts(self, n: Any) -> None:
        async with Factory().pool() as pool:
            with pytest.raises(ConfigError, match="number of sandboxes"):
                await pool.warmup(n)

    async def test_a_warmup_that_takes_too_long_says_so_and_goes_on(self) -> None:
        factory = Factory()
        async with factory.pool() as pool:
            factory.hold()
            with pytest.raises(PoolTimeoutError, match="3 sandboxes were not ready"):
                await pool.warmup(3, timeout=0.01)
            factory.let_go()
            await until(lambda: pool.ready == 3)

    async def test_only_so_many_are_made_at_once(self) -> None:
        """Catches a burst that starts a hundred containers at the same moment."""
        factory = Factory()
        async with factory.pool(max_size=20, max_creating=3) as pool:
            await pool.warmup(20)
            assert (factory.at_once, factory.calls) == (3, 20)

    @on_a_jumping_clock
    async def test_a_replacement_lets_the_command_go_first_and_a_caller_does_not_wait(self) -> None:
        """Catches the making of the next container slowing the command in this one."""
        factory = Factory()
        async with factory.pool(max_size=2) as pool:
            await pool.warmup(1)
            began = anyio.current_time()
            sandbox = await pool.acquire()
            await anyio.sleep(0.01)
            assert (factory.calls, pool.size) == (1, 2)
            await pool.release(await pool.acquire())
            assert anyio.current_time() - began == pytest.approx(0.01)
            await anyio.sleep(0.05)
            assert pool.ready == 1
            await pool.release(sandbox)


class TestExecute:
    async def test_it_is_a_one_shot_in_a_sandbox_of_its_own(self) -> None:
        factory = Factory(script=lambda command: Script([command.argv_bytes[1]], exit_code=3))
        async with factory.pool() as pool:
            await pool.warmup(1)
            results = [await pool.execute("echo", [str(n)]) for n in range(3)]
            assert [result.stdout for result in results] == [b"0", b"1", b"2"]
            assert results[0].exit_code == 3
            started = [call for call in factory.backend.calls if call.verb == "start"]
            assert len({call.sandbox for call in started}) == 3
            assert {call.detail.leftovers for call in started} == {"kill"}

    async def test_a_command_that_can_not_be_run_takes_no_sandbox(self) -> None:
        factory = Factory()
        async with factory.pool() as pool:
            with pytest.raises(CommandError):
                await pool.execute("")
            with pytest.raises(CommandError):
                await pool.execute(shell("true"), ["x"])
        assert factory.calls == 0

    async def test_the_commands_timeout_is_the_commands(self) -> None:
        factory = Factory(script=Script([b"part"], hangs=True))
        async with factory.pool() as pool:
            result = await pool.execute("x", timeout=0.01)
            assert (result.timed_out, result.stdout, result.timeout) == (True, b"part", 0.01)
            assert pool.in_use == 0

    async def test_a_sandbox_that_dies_under_its_command_is_gone_and_replaced(self) -> None:
        factory = Factory(script=[Script(loses="killed"), Script()])
        async with factory.pool(max_size=1) as pool:
            with pytest.raises(SandboxLostError):
                await pool.execute("x")
            assert (await pool.execute("x")).ok


class TestTurns:
    async def test_those_who_wait_are_served_in_the_order_in_which_they_came(self) -> None:
        factory = Factory()
        got: dict[int, Sandbox] = {}

        async def come(number: int) -> None:
            async with pool.lease() as sandbox:
                got[number] = sandbox
                await checkpoint()

        async with factory.pool(max_size=2) as pool, anyio.create_task_group() as group:
            factory.hold()
            for number in range(50):
                group.start_soon(come, number)
                await until(lambda number=number: pool.waiting == number + 1)  # type: ignore[misc]
            factory.let_go()
        assert [got[number] for number in range(50)] == factory.made[:50]

    async def test_nobody_who_comes_later_takes_what_is_meant_for_one_who_waits(self) -> None:
        factory = Factory()
        async with factory.pool(max_size=1) as pool:
            held = await pool.acquire()
            got: dict[str, Sandbox] = {}

            async def come(name: str) -> None:
                async with pool.lease() as sandbox:
                    got[name] = sandbox

            async with anyio.create_task_group() as group:
                group.start_soon(come, "first")
                await until(lambda: pool.waiting == 1)
                await pool.release(held)
                group.start_soon(come, "second")
            assert [got["first"], got["second"]] == factory.made[1:3]

    async def test_one_whose_sandbox_had_died_keeps_its_turn(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        factory = Factory()
        async with factory.pool(max_size=2) as pool:
            await pool.warmup(1)
            slow, answers = anyio.Event(), anyio.Event()

            async def die_slowly(sandbox: FakeSandbox) -> None:
                slow.set()
                await answers.wait()
                raise SandboxLostError("gone", cause="killed")

            factory.hold()
            monkeypatch.setattr(factory.made[0], "_ping", partial(die_slowly, factory.made[0]))
            got: dict[str, Sandbox] = {}

            async def come(name: str) -> None:
                async with pool.lease() as sandbox:
                    got[name] = sandbox

            async with anyio.create_task_group() as group:
                group.start_soon(come, "early")
                await slow.wait()
                group.start_soon(come, "late")
                await until(lambda: pool.waiting == 1)
                answers.set()
                await until(lambda: pool.waiting == 2)
                factory.let_go()
            assert [got["early"], got["late"]] == factory.made[1:3]

    async def test_there_are_never_more_than_max_size_also_while_they_go(self) -> None:
        factory = Factory(create_delay=0.001)
        most = 0

        async def come() -> None:
            nonlocal most
            async with pool.lease():
                live = sum(sandbox.is_live for sandbox in factory.made)
                most = max(most, pool.size, live)
                await checkpoint()

        async with factory.pool(max_size=4) as pool, anyio.create_task_group() as group:
            for _ in range(40):
                group.start_soon(come)
        assert most == 4
        assert factory.backend.live_sandboxes == 0

    async def test_one_that_is_being_removed_holds_its_place(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Catches a limit that counts a container as gone before the daemon has removed it."""
        gone = anyio.Event()

        async def close_slowly(_sandbox: FakeSandbox) -> None:
            await gone.wait()

        factory = Factory()
        async with factory.pool(max_size=1) as pool:
            sandbox = await pool.acquire()
            with monkeypatch.context() as patch:
                patch.setattr(FakeSandbox, "aclose", close_slowly)
                await pool.release(sandbox)
                with pytest.raises(PoolTimeoutError):
                    await pool.acquire(timeout=0.05)
                assert state(pool) == "0 0 0 1 0"
                gone.set()
                await until(lambda: pool.ready == 1)

    async def test_a_wait_has_an_end_and_says_what_the_pool_was_doing(self) -> None:
        factory = Factory()
        async with factory.pool(max_size=1, acquire_timeout=0.01) as pool:
            held = await pool.acquire(timeout=10)
            with pytest.raises(PoolTimeoutError, match=r"within 0\.01 s.* 1 in use") as caught:
                await pool.acquire()
            assert caught.value.retryable
            assert isinstance(caught.value, TimeoutError)
            with pytest.raises(PoolTimeoutError, match=r"within 0\.02 s"):
                await pool.acquire(timeout=0.02)
            assert pool.waiting == 0
            await pool.release(held)
            await pool.release(await pool.acquire(timeout=10))

    @pytest.mark.parametrize("timeout", [0, -1, True, "1", float("inf"), float("nan")])
    async def test_a_wait_without_an_end_is_refused(self, timeout: Any) -> None:
        async with Factory().pool() as pool:
            with pytest.raises(ConfigError, match="timeout"):
                await pool.acquire(timeout=timeout)
            with pytest.raises(ConfigError, match="timeout"):
                await pool.warmup(1, timeout=timeout)


class TestRelease:
    async def test_twice_is_once(self) -> None:
        factory = Factory()
        async with factory.pool(max_size=2) as pool:
            sandbox = await pool.acquire()
            await pool.release(sandbox)
            await pool.release(sandbox)
            await until(lambda: state(pool) == "1 0 0 0 0")
        await pool.release(sandbox)

    async def test_what_is_not_this_pools_is_refused(self) -> None:
        factory, other = Factory(), Factory()
        async with factory.pool() as pool, other.pool() as neighbour:
            foreign = await neighbour.acquire()
            with pytest.raises(PoolError, match="not acquired from this pool"):
                await pool.release(foreign)
            with pytest.raises(PoolError, match="not acquired"):
                await pool.release(None)  # type: ignore[arg-type]
            await pool.warmup(1)
            with pytest.raises(PoolError, match="not acquired"):
                await pool.release(factory.made[0])
            assert pool.ready == 1
            await neighbour.release(foreign)

    async def test_a_lease_is_released_whatever_happens_in_it(self) -> None:
        factory = Factory()
        async with factory.pool() as pool:
            with pytest.raises(KeyError):
                async with pool.lease():
                    raise KeyError
            with anyio.CancelScope() as scope:
                async with pool.lease():
                    scope.cancel()
                    await anyio.sleep_forever()
            assert pool.in_use == 0

    async def test_one_that_its_user_closed_is_released_all_the_same(self) -> None:
        factory = Factory()
        async with factory.pool(max_size=1) as pool:
            async with pool.lease() as sandbox:
                await sandbox.aclose()
                assert pool.in_use == 1
            async with pool.lease() as sandbox:
                await sandbox.exec("x")

    @pytest.mark.parametrize("error", [SandboxLostError("gone"), OSError("no such thing")])
    async def test_one_that_can_not_be_closed_costs_no_place(
        self, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def fail(_sandbox: FakeSandbox) -> None:
            raise error

        factory = Factory()
        async with factory.pool(max_size=1) as pool:
            with monkeypatch.context() as patch:
                patch.setattr(FakeSandbox, "aclose", fail)
                await pool.release(await pool.acquire())
                await until(lambda: pool.ready == 1)
        assert "could not be closed" in caplog.text
        assert str(error) in caplog.text

    @on_a_jumping_clock
    async def test_one_that_does_not_close_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def hang(_sandbox: FakeSandbox) -> None:
            await anyio.sleep_forever()

        factory = Factory()
        async with factory.pool(max_size=1) as pool:
            with monkeypatch.context() as patch:
                patch.setattr(FakeSandbox, "aclose", hang)
                await pool.release(await pool.acquire())
                await anyio.sleep(31)
            assert pool.ready == 1
        assert "did not close within 30 s" in caplog.text


class TestHealth:
    async def test_the_dead_are_not_handed_out_but_replaced(self) -> None:
        factory = Factory()
        async with factory.pool() as pool:
            await pool.warmup(3)
            factory.made[0].lose("killed")
            factory.made[1].lose("killed")
            assert await pool.acquire() is factory.made[2]
            await until(lambda: pool.ready == 3)
            assert all(sandbox.is_live for sandbox in factory.made[2:])
            await pool.release(factory.made[2])

    async def test_if_all_are_dead_one_is_made(self) -> None:
        factory = Factory()
        async with factory.pool(max_size=2) as pool:
            await pool.warmup(2)
            for sandbox in factory.made[:]:
                sandbox.lose("daemon restarted")
            assert (await pool.execute("x")).ok

    @on_a_jumping_clock
    async def test_one_that_hangs_does_not_hang_its_caller(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        factory = Factory()
        async with factory.pool() as pool:
            await pool.warmup(2)
            monkeypatch.setattr(factory.made[0], "_ping", anyio.sleep_forever)
            began = anyio.current_time()
            assert await pool.acquire() is factory.made[1]
            assert anyio.current_time() - began == pytest.approx(2)
            await pool.release(factory.made[1])

    @on_a_jumping_clock
    async def test_the_sweep_finds_the_dead_and_replaces_them(self) -> None:
        """So that a restarted daemon is not first noticed by whoever comes next."""
        factory = Factory()
        async with factory.pool() as pool:
            await pool.warmup(3)
            for sandbox in factory.made[:]:
                sandbox.lose("daemon restarted")
            await anyio.sleep(11)
            assert state(pool) == "3 0 0 0 0"
            assert factory.backend.live_sandboxes == 3

    @on_a_jumping_clock
    async def test_a_fresh_one_is_not_asked(self) -> None:
        factory = Factory()
        async with factory.pool() as pool:
            async with pool.lease() as fresh:
                asked = [call.verb for call in factory.backend.calls if call.sandbox == fresh.id]
            assert "stat" not in asked


class TestTime:
    @on_a_jumping_clock
    async def test_what_nobody_needs_is_closed_and_not_replaced(self) -> None:
        """Catches idle containers that stay for ever when nobody comes any more."""
        factory = Factory()
        async with factory.pool(max_idle_time=100) as pool:
            await pool.warmup(3)
            await anyio.sleep(99)
            assert pool.ready == 3
            await anyio.sleep(12)
            assert state(pool) == "0 0 0 0 0"
            await anyio.sleep(500)
            assert factory.calls == 3
            async with pool.lease():
                assert factory.calls == 5

    @on_a_jumping_clock
    async def test_what_is_used_now_and_then_stays(self) -> None:
        factory = Factory()
        async with factory.pool(max_idle_time=100) as pool:
            await pool.warmup(2)
            for _ in range(20):
                await anyio.sleep(40)
                await pool.execute("x")
            await anyio.sleep(1)
            assert pool.ready == 2

    @on_a_jumping_clock
    async def test_one_that_is_near_its_maximum_age_is_not_handed_out_but_replaced(self) -> None:
        """Catches a sandbox that ends in the middle of its user's command."""
        factory = Factory(config=FakeConfig(max_age=60.0))
        async with factory.pool(max_idle_time=10_000, max_size=2) as pool:
            await pool.warmup(2)
            first = list(factory.made)
            await anyio.sleep(29)
            assert await pool.acquire() is first[0]
            await pool.release(first[0])
            await anyio.sleep(2)
            later = await pool.acquire()
            assert all(later is not one for one in first)
            assert not first[1].is_live
            await pool.release(later)
            await anyio.sleep(1000)
            assert pool.ready == 2

    @on_a_jumping_clock
    async def test_the_age_counts_from_before_it_was_made(self) -> None:
        factory = Factory(config=FakeConfig(max_age=60.0), create_delay=29)
        async with factory.pool(max_size=1) as pool:
            await pool.warmup(1)
            first = factory.made[0]
            await anyio.sleep(1.5)
            sandbox = await pool.acquire()
            assert sandbox is not first
            await pool.release(sandbox)

    @on_a_jumping_clock
    async def test_a_short_idle_time_is_kept_too(self) -> None:
        factory = Factory()
        async with factory.pool(max_idle_time=0.5) as pool:
            await pool.warmup(1)
            await anyio.sleep(0.7)
            assert pool.size == 0


class TestFailures:
    async def test_who_waits_is_told_what_the_factory_said(self) -> None:
        factory = Factory()
        error = CreateError("no such image", backend="fake", hint="build it")
        factory.errors = [error]
        async with factory.pool(max_size=1) as pool:
            with pytest.raises(CreateError) as caught:
                await pool.acquire()
            assert caught.value is error
            await pool.release(await pool.acquire())

    async def test_only_one_of_those_who_wait_is_told_of_one_failure(self) -> None:
        factory = Factory()
        factory.errors = [CreateError("once")]
        ends: list[str] = []

        async def come() -> None:
            try:
                async with pool.lease():
                    ends.append("served")
            except CreateError:
                ends.append("told")

        async with factory.pool() as pool, anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(come)
        assert sorted(ends) == ["served"] * 19 + ["told"]

    async def test_when_all_fail_all_are_told(self) -> None:
        factory = Factory()
        factory.errors = [CreateError("down") for _ in range(1000)]
        told = 0

        async def come() -> None:
            nonlocal told
            with pytest.raises(CreateError):
                await pool.acquire()
            told += 1

        async with factory.pool() as pool, anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(come)
        assert told == 30
        assert factory.calls <= 30

    @pytest.mark.parametrize(
        ("error", "text"),
        [(OSError("disk"), "OSError: disk"), (KeyError("image"), "KeyError: 'image'")],
    )
    async def test_what_is_not_ours_becomes_typed(self, error: Exception, text: str) -> None:
        factory = Factory()
        factory.errors = [error]
        async with factory.pool() as pool:
            with pytest.raises(CreateError, match=text) as caught:
                await pool.acquire()
            assert caught.value.__cause__ is error

    @pytest.mark.parametrize("made", [None, "a sandbox", 5])
    async def test_a_factory_that_makes_something_else(self, made: object) -> None:
        async def make() -> Any:
            return made

        async with Pool(PoolConfig(factory=make)) as pool:
            with pytest.raises(CreateError, match="no sandbox but"):
                await pool.acquire()

    async def test_a_factory_that_can_not_be_awaited(self) -> None:
        async with Pool(PoolConfig(factory=lambda: 5)) as pool:  # type: ignore[arg-type,return-value]
            with pytest.raises(CreateError, match="TypeError"):
                await pool.acquire()

    async def test_a_factory_that_makes_the_same_again(self) -> None:
        """Catches one sandbox for two users."""
        factory = Factory()
        factory.backend._is_open = True
        only = await factory.backend.create()

        async def make() -> Sandbox:
            return only

        async with Pool(PoolConfig(factory=make, max_size=2)) as pool:
            assert await pool.acquire() is only
            with pytest.raises(CreateError, match="second time"):
                await pool.acquire()
            await pool.release(only)
            with pytest.raises(CreateError, match="second time"):
                await pool.acquire()

    async def test_a_warmup_is_told_too(self) -> None:
        factory = Factory()
        factory.errors = [None, CreateError("no")]
        async with factory.pool() as pool:
            with pytest.raises(CreateError, match="no"):
                await pool.warmup(3)

    @on_a_jumping_clock
    async def test_a_factory_that_hangs_is_given_up(self) -> None:
        factory = Factory(create_delay=1000)
        async with factory.pool(create_timeout=5, acquire_timeout=20) as pool:
            began = anyio.current_time()
            with pytest.raises(CreateTimeoutError, match="within 5 s"):
                await pool.acquire()
            assert anyio.current_time() - began == pytest.approx(5)
            assert not isinstance(CreateTimeoutError("x"), PoolTimeoutError)

    @on_a_jumping_clock
    async def test_nobody_is_there_and_it_rests_longer_after_each(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Catches a loop that asks a daemon which is down ten thousand times a second."""
        factory = Factory()
        async with factory.pool(max_size=2) as pool:
            await pool.warmup(1)
            factory.errors = [CreateError("down") for _ in range(1000)]
            factory.made[0].lose("daemon is down")
            with caplog.at_level(logging.WARNING):
                await anyio.sleep(3600)
            assert 100 < factory.calls < 150  # once in 30 s when it is down for long
            assert 100 < caplog.text.count("tries again in 30.0 s") < 150
            factory.errors.clear()
            await anyio.sleep(31)
            assert pool.ready == 1

    @on_a_jumping_clock
    async def test_who_comes_while_it_rests_is_served_at_once(self) -> None:
        factory = Factory()
        async with factory.pool(max_size=2) as pool:
            factory.errors = [CreateError("down") for _ in range(1000)]
            for _ in range(20):
                with pytest.raises(CreateError):
                    await pool.acquire()
            factory.errors.clear()
            began = anyio.current_time()
            await pool.release(await pool.acquire())
            await pool.warmup(2)
            assert anyio.current_time() == began

    @on_a_jumping_clock
    async def test_a_success_ends_the_rest(self, caplog: pytest.LogCaptureFixture) -> None:
        factory = Factory()
        async with factory.pool(max_size=2) as pool:
            await pool.warmup(1)
            factory.errors = [CreateError("down") for _ in range(4)]
            factory.made[0].lose("killed")
            await anyio.sleep(11.5)  # found by the sweep, and tried three times more
            factory.errors.clear()
            held = await pool.acquire()
            await anyio.sleep(0.05)
            assert pool.ready == 1
            assert "tries again in 0.8 s" in caplog.text
            caplog.clear()
            factory.errors = [CreateError("down again")]
            await pool.release(held)
            await pool.release(await pool.acquire())
            await anyio.sleep(0.05)
            assert "tries again in 0.1 s" in caplog.text


class TestClosing:
    async def test_everything_is_closed_ready_in_use_and_being_made(self) -> None:
        factory = Factory(script=Script(hangs=True))
        async with factory.pool(max_size=5, max_creating=1) as pool:
            await pool.warmup(2)
            sandbox = await pool.acquire()
            process = await sandbox.start(shell("sleep 9"))
            factory.hold()
            await until(lambda: pool.size == 3)
            await pool.aclose()
            assert state(pool) == "0 0 0 0 0"
            assert (factory.backend.live_sandboxes, factory.backend.live_processes) == (0, 0)
            with pytest.raises(SandboxLostError):
                await process.wait()
            with pytest.raises(SandboxClosedError):
                await sandbox.exec("x")
            await pool.release(sandbox)
            await pool.aclose()

    async def test_who_waits_is_told(self) -> None:
        factory = Factory()
        told: list[PoolClosedError] = []

        async def come(wait: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(PoolClosedError) as caught:
                await wait()
            told.append(caught.value)

        async with factory.pool(max_size=2) as pool, anyio.create_task_group() as group:
            factory.hold()
            for _ in range(5):
                group.start_soon(come, pool.acquire)
            group.start_soon(come, partial(pool.warmup, 2))
            await until(lambda: pool.waiting == 5)
            await anyio.lowlevel.checkpoint()
            await pool.aclose()
        assert len(told) == 6

    async def test_one_that_is_served_when_it_closes_is_told_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Catches a caller that goes away with a sandbox which is being closed."""
        factory = Factory()
        async with factory.pool() as pool:
            offer = pool._places.offer

            def offer_and_close(member: Member) -> None:
                offer(member)
                pool._keeper.closed = True

            monkeypatch.setattr(pool._places, "offer", offer_and_close)
            with pytest.raises(PoolClosedError):
                await pool.acquire()
        assert factory.backend.live_sandboxes == 0

    async def test_what_a_factory_makes_in_spite_of_it_is_closed(self) -> None:
        """A factory in a thread can't be cancelled."""
        factory = Factory()

        async def make() -> Sandbox:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.02)
                await factory()
            return factory.made[-1]

        factory.backend._is_open = True
        async with Pool(PoolConfig(factory=make)) as pool, anyio.create_task_group() as group:
            pool._places.wanted = 2
            pool._keeper.make_up()
            await anyio.sleep(0)
            group.start_soon(pool.aclose)
        assert factory.backend.live_sandboxes == 0
        assert pool.size == 0

    async def test_it_is_not_open_before_and_after(self) -> None:
        pool = Factory().pool()
        with pytest.raises(PoolClosedError, match="async with"):
            await pool.acquire()
        async with pool:
            pass
        for call in (pool.acquire, partial(pool.warmup, 1), partial(pool.execute, "x")):
            with pytest.raises(PoolClosedError, match="is closed"):
                await call()
        with pytest.raises(PoolClosedError, match="opened once"):
            async with pool:
                pass

    async def test_it_is_opened_once(self) -> None:
        async with Factory().pool() as pool:
            with pytest.raises(PoolClosedError, match="opened once"):
                await pool.__aenter__()

    async def test_one_that_was_never_opened_can_be_closed(self) -> None:
        await Factory().pool().aclose()

    async def test_a_cancelled_block_closes_it(self) -> None:
        """Also what its user still does under a shield works to the end."""
        factory = Factory()
        with anyio.CancelScope() as scope:
            async with factory.pool() as pool, pool.lease() as sandbox:
                scope.cancel()
                try:
                    await anyio.sleep_forever()
                finally:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(0.01)
                        assert (await sandbox.exec("x")).ok
        assert scope.cancelled_caught
        assert factory.backend.live_sandboxes == 0
        assert pool.size == 0

    async def test_closing_is_shielded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        close = FakeSandbox.aclose

        async def close_slowly(sandbox: FakeSandbox) -> None:
            await anyio.sleep(0.02)
            await close(sandbox)

        monkeypatch.setattr(FakeSandbox, "aclose", close_slowly)
        factory = Factory()
        async with factory.pool() as pool:
            await pool.warmup(3)
            with anyio.CancelScope() as scope:
                scope.cancel()
                await pool.aclose()
            assert factory.backend.live_sandboxes == 0

    async def test_an_exception_comes_out_as_it_is(self) -> None:
        """Catches a group around the caller's own error."""

        async def fail() -> None:
            async with Factory().pool() as pool:
                await pool.warmup(1)
                raise KeyError

        with pytest.raises(KeyError):
            await fail()

    async def test_what_was_never_released_is_a_warning(self) -> None:
        factory = Factory()
        with pytest.warns(ResourceWarning, match=r"before these were released: rf-"):
            async with factory.pool() as pool:
                await pool.acquire()
        assert factory.backend.live_sandboxes == 0

    async def test_it_is_none_if_something_went_wrong_anyway(self) -> None:
        async def fail() -> None:
            async with Factory().pool() as pool:
                await pool.acquire()
                raise KeyError

        with pytest.raises(KeyError):
            await fail()


def test_a_pool_that_was_never_closed_is_a_warning() -> None:
    async def leave() -> None:
        pool = Factory().pool()
        await pool.__aenter__()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        anyio.run(leave)
        gc.collect()
    assert any("was never closed" in str(warning.message) for warning in caught)


def test_its_config_is_one() -> None:
    with pytest.raises(ConfigError, match="PoolConfig"):
        Pool(5)  # type: ignore[arg-type]
