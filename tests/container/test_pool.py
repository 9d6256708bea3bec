"""A pool of containers: clean each time, never too many, and none left whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import anyio
import pytest

from ringfence import Pool, PoolConfig, SandboxLostError, inventory, shell

from .conftest import MINIMAL, containers
from .seen import Left, Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(180)]


def pool_of(backend: object, max_size: int) -> Pool:
    return Pool(PoolConfig(factory=backend.create, max_size=max_size))  # type: ignore[attr-defined]


def test_nothing_of_one_user_is_there_for_the_next(seen: Seen) -> None:
    look = "ls -A . $HOME /tmp 2>&1 | grep left; grep sleep /proc/[0-9]*/comm"
    spoil = f"(setsid sleep 4321 &) ; mkdir -p $HOME; touch left $HOME/left /tmp/left; {look}"

    async def main() -> None:
        names = set()
        async with containers(seen.socket) as backend, pool_of(backend, 1) as pool:
            for _ in range(3):
                async with pool.lease() as sandbox:
                    assert (await sandbox.exec("sh", ["-c", look])).stdout == b""
                    assert (await sandbox.exec("sh", ["-c", spoil])).stdout
                    names.add(sandbox.id)
        assert len(names) == 3

    anyio.run(main)


def test_a_burst_succeeds_within_its_size(seen: Seen) -> None:
    async def main() -> None:
        outputs: list[bytes] = []
        most = 0

        async def run(number: int) -> None:
            result = await pool.execute("echo", [str(number)])
            outputs.append(result.stdout)

        async def count() -> None:
            nonlocal most
            while len(outputs) < 20:
                most = max(most, await anyio.to_thread.run_sync(running))
                await anyio.sleep(0.05)

        def running() -> int:
            filters = json.dumps({"label": [f"ringfence.store={inventory.store_id()}"]})
            return len(seen.call("GET", "/containers/json", filters=filters))

        async with containers(seen.socket) as backend:
            pool = Pool(PoolConfig(factory=backend.create, max_size=4, acquire_timeout=120.0))
            async with pool, anyio.create_task_group() as group:
                group.start_soon(count)
                for number in range(20):
                    group.start_soon(run, number)
        assert sorted(outputs, key=int) == [b"%d\n" % number for number in range(20)]
        assert 0 < most <= 4

    anyio.run(main)


@pytest.mark.parametrize("action", ["kill", "pause"])
def test_one_that_was_killed_or_paused_is_replaced(seen: Seen, action: str) -> None:
    async def main() -> None:
        async with containers(seen.socket) as backend, pool_of(backend, 2) as pool:
            await pool.warmup(2)
            for member in list(pool._places.ready):
                seen.do(member.sandbox.id, action)
            assert (await pool.execute("echo", ["ok"])).stdout == b"ok\n"
            await pool.warmup(2)

    anyio.run(main)


def test_one_that_is_removed_in_use_is_lost_for_its_user_alone(seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket) as backend, pool_of(backend, 1) as pool:
            async with pool.lease() as sandbox:
                seen.do(sandbox.id, "kill")
                with pytest.raises(SandboxLostError):
                    await sandbox.exec("sleep", ["60"])
            assert (await pool.execute("true")).ok

    anyio.run(main)


def test_a_cancelled_caller_leaves_nothing_running(seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket) as backend, pool_of(backend, 2) as pool:
            await pool.warmup(1)
            for delay in (0.0, 0.001, 0.01, 0.1):
                with anyio.move_on_after(delay):
                    await pool.execute(shell("sleep 60"))
                assert (pool.in_use, pool.waiting) == (0, 0)
            assert (await pool.execute("true")).ok

    anyio.run(main)


def test_the_containers_end_with_their_process(seen: Seen) -> None:
    """Catches ready containers that live on when their worker is killed."""
    code = f"""
        import anyio, os
        from ringfence import Pool, PoolConfig, open_backend
        from ringfence.config import ContainerConfig

        async def main():
            config = ContainerConfig(
                image={MINIMAL!r}, socket_path={seen.socket!r}, reconnect_timeout=0.0
            )
            async with open_backend(config) as backend:
                async with Pool(PoolConfig(factory=backend.create)) as pool:
                    await pool.warmup(2)
                    print(*[member.sandbox.id for member in pool._places.ready], flush=True)
                    os.kill(os.getpid(), 9)

        anyio.run(main)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    names = done.stdout.split()
    assert len(names) == 2, done.stderr

    async def until_gone() -> None:
        with anyio.fail_after(60):
            while any(map(seen.inspect, names)):
                await anyio.sleep(0.1)

    anyio.run(until_gone)
    seen.nothing_left(Left(volumes=seen.left().volumes))
