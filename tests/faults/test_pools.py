"""A pool of real sandboxes: nothing of one user reaches the next, and nothing is left of any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from ringfence import Pool, PoolConfig, Sandbox, SandboxError, SandboxLostError, shell

from ..machine import new_mark, nothing_left, processes_with, steady, until, until_gone
from .conftest import Factory
from .test_cancellation import WAYS, run_on_loop
from .test_lost_wardens import warden_of

pytestmark = pytest.mark.timeout(300)

MARK = new_mark()


@asynccontextmanager
async def pool_of(factory: Factory, max_size: int) -> AsyncIterator[Pool]:
    async with (
        factory() as backend,
        Pool(PoolConfig(factory=backend.create, max_size=max_size)) as pool,
    ):
        yield pool


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_nothing_of_one_user_is_there_for_the_next(jails: Factory, loop: str) -> None:
    """Files, processes, and what is left in HOME and in /tmp."""
    spoil = (
        f"(setsid sleep {MARK} &) ; touch left; mkdir -p $HOME; touch $HOME/left $TMPDIR/left; "
        "until pgrep -x sleep; do :; done"
    )

    async def main() -> None:
        async with pool_of(jails, 1) as pool:
            await pool.warmup(1)
            for _ in range(4):
                async with pool.lease() as sandbox:
                    found = await sandbox.exec(
                        shell("ls -A . $HOME $TMPDIR 2>&1 | grep left; pgrep -x sleep")
                    )
                    assert found.stdout == b""
                    assert (await sandbox.exec(shell(spoil))).stdout
            await until(lambda: pool.ready == 1)
            assert not until_gone(processes_with(MARK))

    anyio.run(main, backend=loop)


@pytest.mark.slow
def test_hundreds_of_callers_share_few_sandboxes(factory: Factory) -> None:
    async def main() -> None:
        async with factory() as backend:
            await backend.execute("true")
            before = await steady()
            ids: list[str] = []
            most = 0

            async def come() -> None:
                nonlocal most
                async with pool.lease(timeout=200) as sandbox:
                    most = max(most, pool.size)
                    ids.append(sandbox.id)
                    result = await sandbox.exec("sh", ["-c", "echo $$ > mine; cat mine"])
                    assert result.ok

            pool = Pool(PoolConfig(factory=backend.create, max_size=6))
            async with pool, anyio.create_task_group() as group:
                for _ in range(200):
                    group.start_soon(come)
            assert len(set(ids)) == 200
            assert most == 6
            await nothing_left(before)

    anyio.run(main)


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_was_killed_or_stopped_while_it_was_ready_is_replaced(
    factory: Factory, signal_: signal.Signals
) -> None:
    async def main() -> None:
        async with pool_of(factory, 2) as pool:
            await pool.warmup(2)
            for member in list(pool._places.ready):
                os.kill(warden_of(member.sandbox), signal_)
            assert (await pool.execute("true")).ok
            await until(lambda: pool.ready == 2)

    anyio.run(main)


def test_one_that_dies_in_use_is_lost_for_its_user_alone(factory: Factory) -> None:
    async def main() -> None:
        async with pool_of(factory, 1) as pool:
            async with pool.lease() as sandbox:
                os.kill(warden_of(sandbox), signal.SIGKILL)
                with pytest.raises(SandboxLostError):
                    await sandbox.exec("sleep", [MARK])
            assert (await pool.execute("true")).ok

    anyio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["execute", "open"])
def test_cancelled_at_any_await_it_leaves_nothing(factory: Factory, name: str, way: str) -> None:
    async def execute(pool: Pool) -> None:
        await pool.execute(shell(f"(setsid sleep {MARK} &) ; sleep 0.01"))

    async def open_and_close(pool: Pool) -> None:
        config = PoolConfig(factory=pool.config.factory, max_size=1)
        async with Pool(config) as own, own.lease() as sandbox:
            await sandbox.exec("true")

    async def main() -> None:
        async with pool_of(factory, 2) as pool:
            work = {"execute": execute, "open": open_and_close}[name]
            await pool.warmup(2)
            await work(pool)
            await until(lambda: pool.ready == 2)
            before = await steady()
            for count in range(1, 60):
                reached = await WAYS[way](work(pool), count)
                assert not until_gone(processes_with(MARK)), f"alive after await {count}"
                assert (pool.in_use, pool.waiting) == (0, 0)
                await until(lambda: pool.ready == 2)
                await nothing_left(before)
                if not reached:
                    assert count > 2
                    return
            raise AssertionError("more than 60 awaits")

    run_on_loop(main, way)


def test_a_sandbox_that_is_wanted_after_the_pool_was_closed_is_closed(factory: Factory) -> None:
    async def main() -> None:
        kept: list[Sandbox] = []
        async with factory() as backend:
            before = await steady()
            async with Pool(PoolConfig(factory=backend.create)) as pool:
                kept.append(await pool.acquire())
                await kept[0].start(shell(f"sleep {MARK}"))
                await pool.aclose()
                assert not processes_with(MARK)
                with pytest.raises(SandboxError):
                    await kept[0].exec("true")
            await nothing_left(before)

    anyio.run(main)


@pytest.mark.parametrize("end", ["sys.exit()", "os.kill(os.getpid(), 9)", "raise KeyError"])
def test_the_ready_ones_end_with_their_process(jails: Factory, end: str) -> None:
    """Closed or not: catches a pool whose sandboxes live on when its worker is killed."""
    code = f"""
        import anyio, os, sys
        from ringfence import Pool, PoolConfig, open_backend, shell

        async def main():
            async with open_backend("bubblewrap") as backend:
                async with Pool(PoolConfig(factory=backend.create)) as pool:
                    await pool.warmup(2)
                    sandbox = await pool.acquire()
                    await sandbox.start(shell("sleep {MARK}"))
                    await anyio.sleep(0.2)
                    print("up", flush=True)
                    {end}

        anyio.run(main)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "up\n"
    assert not until_gone(processes_with(MARK))
