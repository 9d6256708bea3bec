"""The manager on the fake backend: one sandbox for each execution, from first use to end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from ringfence.backend import Process, Sandbox
from ringfence.backends.fake import FakeBackend, FakeSandbox, Script
from ringfence.errors import (
    ConfigError,
    CreateError,
    FileMissingError,
    LeaseStoreError,
    LimitError,
    SandboxClosedError,
    SandboxLostError,
    SessionElsewhereError,
)
from ringfence.leases import Lease, MemoryLeases
from ringfence.models import Command, Enforced, Limits, Network, SandboxSpec
from ringfence.policy import Plan, Policy
from ringfence.sessions import Session, SessionManager
from ringfence.sessions.process import SessionProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def managed(
    fake: FakeBackend | None = None, **settings: Any
) -> AsyncIterator[tuple[SessionManager, FakeBackend]]:
    settings.setdefault("leases", MemoryLeases())
    async with fake or FakeBackend() as backend, SessionManager(backend, **settings) as sessions:
        assert isinstance(backend, FakeBackend)
        yield sessions, backend


def behind(session: Session) -> FakeSandbox:
    """Return the sandbox that a session has now."""
    assert isinstance(session._box, FakeSandbox)
    return session._box


def creations(fake: FakeBackend) -> int:
    return sum(call.verb == "create" for call in fake.calls)


async def until_ended(session: Session) -> None:
    with anyio.fail_after(10):
        while session.is_live:
            await anyio.sleep(0.01)


async def test_nothing_is_made_before_the_first_use() -> None:
    async with managed() as (sessions, fake):
        session = sessions.session("a")
        assert (creations(fake), session.is_live, sessions.sessions) == (0, False, [])
        await sessions.exec("a", "true")
        await session.write_file("x", b"1")
        assert (creations(fake), sessions.sessions) == (1, [session])


async def test_a_script_is_run_by_bash_or_else_by_sh() -> None:
    async with managed() as (sessions, fake):
        await sessions.exec("a", "echo $X | wc")
        assert fake.commands[0].argv == ("bash", "-c", "echo $X | wc")
        assert fake.commands[0].fallback == "sh"


async def test_the_time_to_make_a_sandbox_is_no_time_of_the_command() -> None:
    async with managed(FakeBackend(create_delay=0.3)) as (sessions, _):
        assert (await sessions.exec("a", "true")).duration_s < 0.3
        result = await sessions.exec("b", "true", on_output=lambda chunk: None)
        assert result.duration_s < 0.3


async def test_a_command_gets_thirty_seconds_and_never_more_than_three_hundred() -> None:
    async with managed() as (sessions, _):
        assert (await sessions.exec("a", "true")).timeout == 30
        assert (await sessions.exec("a", "true", timeout=301)).timeout == 300
        assert (await sessions.exec("a", Command(["x"], timeout=10_000))).timeout == 300


async def test_eight_first_calls_make_one_sandbox() -> None:
    """Catches a look and a creation that are two steps: the second sandbox is leaked."""
    async with managed(FakeBackend(create_delay=0.05)) as (sessions, fake):
        results = []

        async def call() -> None:
            results.append(await sessions.exec("a", "true"))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(call)
        assert creations(fake) == 1
        assert [result.ok for result in results] == [True] * 8
        assert sum(result.workspace_is_new for result in results) == 1


async def test_sessions_never_wait_for_one_another() -> None:
    """Catches one lock for all: creations that could go on at once come one after the other."""
    going_on, most = 0, 0
    together = anyio.Event()

    class Slow(FakeBackend):
        async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> FakeSandbox:
            nonlocal going_on, most
            going_on += 1
            most = max(most, going_on)
            if going_on == 4:
                together.set()
            with anyio.fail_after(10):
                await together.wait()
            return await super()._create(spec, limits, sandbox_id)

    async with managed(Slow()) as (sessions, _), anyio.create_task_group() as group:
        for name in "abcd":
            group.start_soon(sessions.exec, name, "true")
    assert most == 4


async def test_a_caller_that_is_cancelled_leaves_the_making_to_the_next() -> None:
    async with managed(FakeBackend(create_delay=0.05)) as (sessions, fake):
        async with anyio.create_task_group() as group:

            async def impatient() -> None:
                with anyio.move_on_after(0.01):
                    await sessions.exec("a", "true")

            group.start_soon(impatient)
            await anyio.sleep(0)
            assert (await sessions.exec("a", "true")).ok
        assert fake.live_sandboxes == 1


async def test_a_creation_that_fails_holds_nothing() -> None:
    store = MemoryLeases()
    async with managed(leases=store) as (sessions, fake):
        fake.create_errors.append(CreateError("no"))
        with pytest.raises(CreateError):
            await sessions.exec("a", "true")
        assert store.live() == []
        assert (await sessions.exec("a", "true")).ok


async def test_the_labels_say_whose_it_is() -> None:
    store = MemoryLeases()
    async with managed(leases=store) as (sessions, fake):
        before = int(time.time())
        session = sessions.session("a", tenant_id="acme", spec=SandboxSpec(labels={"mine": "1"}))
        await session.ensure()
        labels = fake.sandboxes[0].spec.labels
        assert labels["ringfence.execution_id"] == "a"
        assert labels["ringfence.tenant_id"] == "acme"
        assert labels["ringfence.owner"] == sessions.owner
        assert labels["ringfence.store"] == store.id
        assert labels["ringfence.lease"] == str(store.live()[0].token)
        assert before <= int(labels["ringfence.created"]) <= time.time()
        assert int(labels["ringfence.expires"]) - int(labels["ringfence.created"]) == 3600
        assert labels["mine"] == "1"


async def test_two_tenants_with_one_id_never_meet() -> None:
    async with managed() as (sessions, fake):
        await sessions.session("a", tenant_id="t1").write_file("x", b"t1")
        with pytest.raises(FileMissingError):
            await sessions.session("a", tenant_id="t2").read_file("x")
        assert creations(fake) == 2
        await sessions.destroy_execution("a", tenant_id="t2")
        assert await sessions.session("a", tenant_id="t1").read_file("x") == b"t1"


@pytest.mark.parametrize("name", ["", "a b", "a\0", "/a", "-x", "x" * 129, None, 7])
async def test_a_name_that_is_none_is_refused(name: Any) -> None:
    async with managed() as (sessions, _):
        with pytest.raises(ConfigError, match="execution_id"):
            sessions.session(name)
        with pytest.raises(ConfigError, match="tenant_id"):
            sessions.session("a", tenant_id=name)


async def test_other_settings_for_a_session_that_exists_are_refused() -> None:
    async with managed() as (sessions, _):
        asked = SandboxSpec(limits=Limits(pids=10))
        session = sessions.session("a", spec=asked)
        assert sessions.session("a") is session
        assert sessions.session("a", spec=asked) is session
        with pytest.raises(ConfigError, match="other settings"):
            sessions.session("a", spec=SandboxSpec(limits=Limits(pids=11)))


async def test_destroying_again_and_destroying_what_never_was_are_no_errors() -> None:
    async with managed() as (sessions, fake):
        await sessions.exec("a", "true")
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(sessions.destroy_execution, "a")
        await sessions.destroy_execution("a")
        await sessions.destroy_execution("never")
        assert fake.live_sandboxes == 0
        assert (await sessions.exec("a", "true")).workspace_is_new


async def test_a_destroyed_session_is_closed_for_those_who_still_have_it() -> None:
    async with managed() as (sessions, fake):
        session = sessions.session("a")
        await session.write_file("x", b"1")
        await sessions.destroy_execution("a")
        for use in (session.exec("true"), session.read_file("x"), session.ensure()):
            with pytest.raises(SandboxClosedError):
                await use
        assert creations(fake) == 1


async def test_a_sandbox_that_dies_between_calls_is_told_once() -> None:
    """Catches a workspace that is silently empty."""
    async with managed() as (sessions, fake):
        session = sessions.session("a")
        await session.write_file("x", b"1")
        first = session.id
        behind(session).lose("out of memory")
        with pytest.raises(SandboxLostError) as caught:
            await session.read_file("x")
        assert caught.value.cause == "out of memory"
        with pytest.raises(FileMissingError) as missing:
            await session.read_file("x")
        assert "is gone" in str(missing.value)
        assert (await session.exec("true")).workspace_is_new
        assert not (await session.exec("true")).workspace_is_new
        assert (session.generation, session.has_restarted) == (2, True)
        assert session.id != first
        assert creations(fake) == 2


async def test_a_sandbox_that_dies_under_a_command_is_told_at_once() -> None:
    async with managed(FakeBackend(script=Script(hangs=True))) as (sessions, fake):
        session = sessions.session("a")
        outcomes = []

        async def call() -> None:
            with pytest.raises(SandboxLostError) as caught:
                await session.exec("sleep", ["600"])
            outcomes.append(caught.value.cause)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                group.start_soon(call)
                while fake.live_processes < 2:
                    await anyio.sleep(0.01)
                behind(session).lose("killed")
        assert outcomes == ["killed", "killed"]
        await session.write_file("x", b"new")
        assert (session.generation, fake.live_sandboxes) == (2, 1)


async def test_an_idle_sandbox_is_ended_and_the_next_call_is_told() -> None:
    store = MemoryLeases()
    async with managed(leases=store, idle_timeout=0.05) as (sessions, fake):
        session = sessions.session("a")
        await session.write_file("x", b"1")
        await until_ended(session)
        assert (fake.live_sandboxes, store.live()) == (0, [])
        with pytest.raises(SandboxLostError, match="not used for"):
            await session.read_file("x")
        assert (await session.exec("true")).workspace_is_new


async def test_a_call_keeps_its_sandbox_from_being_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches one that is ended under a file operation which takes longer than it may idle."""
    async with managed(idle_timeout=0.05) as (sessions, _):
        session = sessions.session("a")
        await session.ensure()
        write, seen = FakeSandbox._write_file, []

        async def slow(self: FakeSandbox, *args: Any) -> None:
            with anyio.fail_after(10):
                while time.monotonic() - session.last_used < 0.1:
                    await anyio.sleep(0.01)
            seen.append(session.overdue(time.monotonic()))
            await session.end_if_overdue()
            await write(self, *args)

        monkeypatch.setattr(FakeSandbox, "_write_file", slow)
        await session.write_file("x", b"1")
        assert seen == [None]
        assert session.generation == 1


async def test_a_session_that_nobody_has_used_for_long_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches memory for every execution that there ever was, and two sessions for one of them."""
    monkeypatch.setattr("ringfence.sessions.sweep.CLOSED_AFTER", 0.05)
    async with managed(idle_timeout=0.05) as (sessions, fake):
        session = sessions.session("a")
        await session.ensure()
        with anyio.fail_after(10):
            while sessions._sessions:
                await anyio.sleep(0.01)
        with pytest.raises(SandboxClosedError):
            await session.exec("true")
        assert (await sessions.exec("a", "true")).ok
        assert (creations(fake), fake.live_sandboxes) == (2, 1)


async def test_a_command_that_runs_is_use() -> None:
    """Catches an idle time that ends what is busy, because no call began meanwhile."""
    async with managed(FakeBackend(script=Script([0.4])), idle_timeout=0.05) as (
        sessions,
        _,
    ):
        assert (await sessions.exec("a", "true")).ok


async def test_a_command_in_the_background_alone_is_no_use() -> None:
    """Catches a sandbox that lives for ever because something was started in it."""
    script = Script(hangs=True)
    async with managed(FakeBackend(script=script), idle_timeout=0.05) as (sessions, _):
        session = sessions.session("a")
        await session.start(Command(["server"]))
        await until_ended(session)


async def test_the_maximum_age_is_not_put_off_by_use() -> None:
    async with managed() as (sessions, _):
        session = sessions.session("a", spec=SandboxSpec(limits=Limits(max_age=0.1)))

        async def use_for_ever() -> None:
            while True:
                await session.exec("true")
                await anyio.sleep(0.01)

        with anyio.fail_after(10), pytest.raises(SandboxLostError) as caught:
            await use_for_ever()
        assert caught.value.cause == "maximum age"


async def test_a_plan_s_idle_time_bounds_the_manager_s() -> None:
    policy = Policy({"free": Plan("free", idle_timeout=0.05)})
    async with managed(policy=policy, idle_timeout=600) as (sessions, _):
        session = sessions.session("a")
        assert session._idle_timeout == 0.05


async def test_a_plan_bounds_how_many_there_are_at_once() -> None:
    policy = Policy({"free": Plan("free", max_sandboxes=2)})
    async with managed(policy=policy) as (sessions, fake):
        await sessions.exec("a", "true")
        await sessions.exec("b", "true")
        with pytest.raises(LimitError) as caught:
            await sessions.exec("c", "true")
        assert (caught.value.limit, caught.value.plan) == ("max_sandboxes", "free")
        await sessions.exec("c", "true", tenant_id="other")
        await sessions.destroy_execution("a")
        await sessions.exec("c", "true")
        assert fake.live_sandboxes == 3


async def test_another_worker_s_execution_is_refused_until_it_is_destroyed() -> None:
    store = MemoryLeases()
    async with managed(leases=store) as (one, _), managed(leases=store) as (other, fake):
        await one.exec("a", "true")
        with pytest.raises(SessionElsewhereError) as caught:
            await other.exec("a", "true")
        assert caught.value.owner == one.owner
        assert caught.value.retryable
        assert creations(fake) == 0
        await one.destroy_execution("a")
        assert (await other.exec("a", "true")).ok


async def test_a_worker_that_lost_its_lease_gives_the_sandbox_up() -> None:
    """Catches two sandboxes of one execution, each with half of its files."""
    now = 0.0
    store = MemoryLeases(clock=lambda: now)
    async with managed(leases=store) as (one, fake), managed(leases=store) as (other, _):
        session = one.session("a")
        await session.ensure()
        now += 31
        await other.exec("a", "true")
        assert other.session("a").has_restarted
        assert one._home is not None
        one._home.renewal.renew()
        with pytest.raises(SandboxLostError, match="taken its lease over"):
            await session.exec("true")
        assert fake.live_sandboxes == 0
        with pytest.raises(SessionElsewhereError):
            await session.exec("true")


async def test_nothing_is_begun_while_it_may_be_another_s() -> None:
    """Catches a worker that goes on although the store has been away for too long."""
    async with managed() as (sessions, fake):
        await sessions.exec("a", "true")
        assert sessions._home is not None
        sessions._home.renewal.confirmed_until = time.monotonic() - 1
        with pytest.raises(LeaseStoreError) as caught:
            await sessions.exec("a", "true")
        assert caught.value.retryable
        sessions._home.renewal.renew()
        assert (await sessions.exec("a", "true")).ok
        assert creations(fake) == 1


async def test_what_dead_workers_left_is_reaped_at_the_start_and_on_request() -> None:
    now = 0.0
    store = MemoryLeases(clock=lambda: now)
    store.acquire("default", "a", "a-worker-that-died")
    now += 31
    async with managed(leases=store) as (sessions, fake):
        assert store.live() == []
        assert sum(call.verb == "reap" for call in fake.calls) == 1
        store.acquire("default", "b", "another")
        await sessions.exec("c", "true")
        now += 29
        assert await sessions.cleanup_stale() == 0
        assert {lease.execution_id for lease in store.live()} == {"b", "c"}


async def test_leaving_the_block_destroys_what_is_ours_and_nothing_else() -> None:
    store = MemoryLeases()
    async with managed(leases=store) as (one, mine):
        await one.exec("a", "true")
        async with managed(leases=store) as (other, theirs):
            await other.exec("b", "true")
        assert (mine.live_sandboxes, theirs.live_sandboxes) == (1, 0)
        assert [lease.execution_id for lease in store.live()] == ["a"]
    assert store.live() == []


async def test_leaving_the_block_is_shielded() -> None:
    store = MemoryLeases()
    fake = FakeBackend()
    async with fake:
        with anyio.move_on_after(0.05):
            async with SessionManager(fake, leases=store) as sessions:
                await sessions.exec("a", "true")
                await anyio.sleep(60)
        assert (fake.live_sandboxes, store.live()) == (0, [])


async def test_a_closed_manager_says_so() -> None:
    async with managed() as (sessions, _):
        session = sessions.session("a")
        await session.ensure()
    with pytest.raises(SandboxClosedError, match="not open"):
        await sessions.exec("a", "true")
    with pytest.raises(SandboxClosedError):
        await session.exec("true")


async def test_a_manager_that_is_never_closed_is_told_of() -> None:
    async with FakeBackend() as fake:
        sessions = SessionManager(fake, leases=MemoryLeases())
        await sessions.__aenter__()
        exits, sessions._exits = sessions._exits, None
        await sessions.aclose()
        assert exits is not None
        await exits.aclose()
        sessions._closed, sessions._exits = False, exits
        held = [sessions]
        del sessions
        with pytest.warns(ResourceWarning, match="never closed"):
            held.clear()


async def test_a_lease_that_nobody_waited_for_is_found_again_or_given_up() -> None:
    """Catches leases that are renewed for ever after a call was cancelled in a bad moment."""
    store = MemoryLeases()
    async with managed(leases=store) as (sessions, _):
        home = sessions._home
        assert home is not None
        plan = sessions.policy.plan(None)
        lost = await home.acquire("default", "a", plan)
        assert await home.acquire("default", "a", plan) is lost
        await home.release_orphans(())
        assert [lease.execution_id for lease in store.live()] == ["a"]  # it may be on its way
        await home.release_orphans(())
        assert store.live() == []
        assert lost.lost


class Away(MemoryLeases):
    """A store that stops answering."""

    away = False

    def release(self, lease: Lease) -> bool:
        if self.away:
            raise LeaseStoreError("it does not answer")
        return super().release(lease)


async def test_an_end_does_not_need_the_store() -> None:
    """Catches a sandbox that stays because the database is down."""
    store = Away()
    async with managed(leases=store) as (sessions, fake):
        await sessions.exec("a", "true")
        store.away = True
        await sessions.destroy_execution("a")
        assert fake.live_sandboxes == 0


# A session as a sandbox.


async def test_a_session_passes_on_all_that_a_sandbox_has() -> None:
    """Catches something new in the contract that works on sandboxes and not on sessions."""
    follows = {"_clamp", "_launch", "_write_whole"}  # from the rest
    asked = {name for name in vars(Sandbox) if name[0] == "_" and name[1] not in "_a"} - follows
    assert asked <= set(vars(Session))
    assert {name for name in vars(Process) if name[0] != "_"} - {"pid"} <= set(vars(SessionProcess))


# Sandboxes that are ready.


async def until_ready(sessions: SessionManager, count: int) -> None:
    assert sessions._home is not None
    pool = sessions._home._pool
    assert pool is not None
    with anyio.fail_after(10):
        while pool.ready < count:
            await anyio.sleep(0.01)


async def test_a_plain_session_gets_a_sandbox_that_is_ready() -> None:
    async with managed(warm=2) as (sessions, fake):
        await until_ready(sessions, 2)
        ready = {sandbox.id for sandbox in fake.sandboxes}
        first, second = sessions.session("a"), sessions.session("b", tenant_id="t", plan="pro")
        for session in (first, second):
            assert (await session.exec("true")).workspace_is_new
        assert {first.id, second.id} == ready
        labels = behind(first).spec.labels
        assert labels["ringfence.owner"] == sessions.owner
        await until_ready(sessions, 2)
        await sessions.destroy_execution("a")
        assert not any(box.is_live for box in fake.sandboxes if box.id == first.id)
    assert fake.live_sandboxes == 0


async def test_who_asks_for_something_gets_a_sandbox_of_its_own() -> None:
    async with managed(warm=1) as (sessions, fake):
        await until_ready(sessions, 1)
        ready = fake.sandboxes[0].id
        for name, spec in (
            ("a", SandboxSpec(limits=Limits(pids=20))),
            ("b", SandboxSpec(env={"TOKEN": "1"})),
        ):
            session = sessions.session(name, spec=spec)
            await session.ensure()
            assert session.id != ready
            assert behind(session).spec.labels["ringfence.execution_id"] == name


async def test_one_that_was_ready_and_has_died_is_not_handed_out() -> None:
    async with managed(warm=1) as (sessions, fake):
        await until_ready(sessions, 1)
        fake.sandboxes[0].lose()
        assert (await sessions.exec("a", "true")).ok


async def test_sessions_do_without_what_can_t_be_made_ahead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = FakeBackend()
    fake.create_errors = [CreateError("no room")]
    async with managed(fake, warm=1) as (sessions, _):
        with anyio.fail_after(10):
            while "no room" not in caplog.text:
                await anyio.sleep(0.01)
        assert (await sessions.exec("a", "true")).ok


@pytest.mark.parametrize("warm", [-1, 1.5, True, None])
async def test_a_number_of_ready_ones_that_is_none_is_refused(warm: Any) -> None:
    with pytest.raises(ConfigError, match="warm"):
        SessionManager(FakeBackend(), warm=warm)


# Policy, where it meets a backend.


async def test_more_than_the_plan_allows_is_refused_before_anything_is_made() -> None:
    async with managed() as (sessions, fake):
        with pytest.raises(LimitError) as caught:
            sessions.session("a", spec=SandboxSpec(limits=Limits(memory_bytes=1 << 30)))
        assert (caught.value.limit, caught.value.plan) == ("memory_bytes", "free")
        with pytest.raises(LimitError, match="bridge"):
            sessions.session("a", spec=SandboxSpec(network=Network("bridge")))
        allowed = sessions.session("a", plan="pro", spec=SandboxSpec(network=Network("bridge")))
        assert allowed.spec.network == Network("bridge")
        assert creations(fake) == 0


async def test_what_the_profile_alone_wants_is_best_effort_and_what_was_asked_for_is_not() -> None:
    able = replace(FakeBackend().capabilities, limits=Enforced())
    async with managed(FakeBackend(capabilities=able)) as (sessions, fake):
        assert (await sessions.exec("a", "true")).ok
        assert fake.sandboxes[0].spec.limits.memory_bytes is None
        asked = SandboxSpec(limits=Limits(memory_bytes=1 << 20))
        with pytest.raises(LimitError, match="can't enforce memory_bytes"):
            await sessions.session("b", spec=asked).ensure()


@pytest.mark.parametrize("seconds", [0, -1, True, float("nan")])
async def test_an_idle_time_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigError, match="idle_timeout"):
        SessionManager(FakeBackend(), idle_timeout=seconds)
