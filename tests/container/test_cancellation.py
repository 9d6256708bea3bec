"""Whatever is cancelled, and whenever: nothing of it is left, here or in the engine."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.to_thread
import pytest

from ringfence import inventory
from ringfence.backend import Backend, Sandbox
from ringfence.models import Command, Network, SandboxSpec
from ringfence.pool import Pool, PoolConfig

from ..machine import held, nothing_left, processes_with, until_gone
from .between import Between
from .conftest import containers
from .seen import Left, Seen

pytestmark = [pytest.mark.container, pytest.mark.slow, pytest.mark.timeout(240)]

TIMES = 20
SHORTLY = 0.03  # seconds after a request within which its own phase is cancelled
IDLE_CONNECTIONS = 6  # that the client and the server between keep open for the next request
MARK = "86397.125"


@dataclass
class Ground:
    """What a phase runs on.

    Attributes:
        backend: Open, with one live sandbox.
        sandbox: That one.
        rng: Says when to cancel.
        closing: Sandboxes that a phase has taken to closing.
    """

    backend: Backend
    sandbox: Sandbox
    between: Between
    rng: random.Random
    closing: list[Sandbox] = field(default_factory=list)


async def connect(ground: Ground) -> None:
    async with containers(ground.between.path):
        pass


async def create(ground: Ground) -> None:
    await (await ground.backend.create()).aclose()


async def create_on_bridge(ground: Ground) -> None:
    spec = SandboxSpec(network=Network("bridge"))
    await (await ground.backend.create(spec)).aclose()


async def run(ground: Ground) -> None:
    script = f"(setsid sleep {MARK} &); sleep 0.05; echo a"
    await ground.sandbox.exec(Command(("sh", "-c", script), leftovers="kill"))


async def stream(ground: Ground) -> None:
    script = f"sleep {MARK} & for i in 1 2 3 4; do echo $i; sleep 0.01; done"
    command = Command(("sh", "-c", script), leftovers="kill")
    async with ground.sandbox.stream(command) as chunks:
        async for _ in chunks:
            await anyio.sleep(0.001)


async def files(ground: Ground) -> None:
    box = ground.sandbox
    await box.write_file("d/large", b"x" * 2_000_000)
    assert len(await box.read_file("d/large")) == 2_000_000
    await box.list_files("d")
    await box.move("d/large", "d/moved")
    await box.remove("d")


async def close(ground: Ground) -> None:
    sandbox = ground.closing.pop()
    await sandbox.start(Command(("sleep", MARK)))
    await sandbox.aclose()


async def execute(ground: Ground) -> None:
    await ground.backend.execute(Command(("sh", "-c", f"sleep {MARK} & sleep 0.02")))


async def pool(ground: Ground) -> None:
    config = PoolConfig(factory=ground.backend.create, max_size=2)
    async with Pool(config) as places, places.lease() as sandbox:
        await sandbox.exec("true")


Phase = Callable[[Ground], Awaitable[None]]

AFTER_REQUEST = {"volume": connect, "create": create, "attach": create, "start": create}
"""What is cancelled when the engine has just been asked for something."""

AT_ANY_TIME: dict[str, Phase] = {
    "connect": connect,
    "bridge": create_on_bridge,
    "exec": run,
    "stream": stream,
    "files": files,
    "close": close,
    "execute": execute,
    "pool": pool,
}


@asynccontextmanager
async def ground(seen: Seen, between: Between, name: str) -> AsyncIterator[Ground]:
    """Open a backend with a sandbox and see that nothing is left of either at the end."""
    seed = int(os.environ.get("RINGFENCE_TEST_SEED", "0")) or random.randrange(10**6)
    print(f"RINGFENCE_TEST_SEED={seed}")
    before = held()
    async with (
        between.serve(),
        containers(between.path) as backend,
        await backend.create() as sandbox,
    ):
        yield Ground(backend, sandbox, between, random.Random(f"{seed} {name}"))
    await seen.until_nothing_left()
    await nothing_left(before)
    assert len(asyncio.all_tasks()) == 1


async def settle(on: Ground, seen: Seen, sockets: int) -> None:
    """Wait until nothing is left of what was cancelled, and check that the rest is sound."""
    await seen.until_nothing_left(Left(containers=(on.sandbox.id,)))
    assert not until_gone(processes_with(MARK))
    assert (await on.sandbox.exec("echo", ["good"])).stdout == b"good\n"
    with anyio.fail_after(60):
        while entries() != {on.sandbox.id}:
            await anyio.sleep(0.02)
    assert open_sockets() <= sockets + 2 * IDLE_CONNECTIONS


def entries() -> set[str]:
    return {found.entry.id for found in inventory.scan() if found.entry.owner_pid == os.getpid()}


def open_sockets() -> int:
    return sum("socket" in name for name in held().descriptors)


async def cancelled(work: Awaitable[None], trigger: Callable[[asyncio.Task[None]], object]) -> bool:
    """Run something that is to be cancelled and return whether it was; it may also be done."""

    async def body() -> None:
        await work

    task = asyncio.ensure_future(body())
    trigger(task)
    with anyio.fail_after(60):
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()  # which raises what else it ended with
    return task.cancelled()


@pytest.mark.parametrize("request_name", AFTER_REQUEST)
def test_while_the_engine_is_at_it(seen: Seen, between: Between, request_name: str) -> None:
    async def main() -> None:
        async with ground(seen, between, request_name) as on:
            sockets, count = open_sockets(), 0
            for _ in range(TIMES):
                delay = on.rng.uniform(0, SHORTLY)

                def arm(task: asyncio.Task[None], delay: float = delay) -> None:
                    loop = asyncio.get_running_loop()

                    def see(name: str) -> None:
                        if name == request_name:
                            between.on_request = lambda _: None
                            loop.call_later(delay, task.cancel)

                    between.on_request = see

                count += await cancelled(AFTER_REQUEST[request_name](on), arm)
                await settle(on, seen, sockets)
            assert count > TIMES // 2
            await AFTER_REQUEST[request_name](on)

    anyio.run(main)


@pytest.mark.parametrize("name", AT_ANY_TIME)
def test_at_any_time(seen: Seen, between: Between, name: str) -> None:
    phase = AT_ANY_TIME[name]

    async def main() -> None:
        async with ground(seen, between, name) as on:
            sockets, count = open_sockets(), 0
            for number in range(TIMES + 1):
                if phase is close:
                    on.closing.append(await on.backend.create())
                    doomed = on.closing[0]
                began = time.monotonic()
                if number == 0:
                    await phase(on)
                    took = time.monotonic() - began
                    continue
                delay = on.rng.uniform(0, took)

                def arm(task: asyncio.Task[None], delay: float = delay) -> None:
                    asyncio.get_running_loop().call_later(delay, task.cancel)

                count += await cancelled(phase(on), arm)
                if phase is close:
                    on.closing.clear()
                    await doomed.aclose()
                await settle(on, seen, sockets)
            assert count > TIMES // 4
            if phase is not close:
                await phase(on)

    anyio.run(main)
