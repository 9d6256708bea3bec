"""A pool of containers: one command in a clean one, and more callers than it has places."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.to_thread

from ringfence import Pool, PoolConfig, Sandbox
from ringfence.backends.docker import ContainerBackend

from ..engine import LABEL, PlainEngine, config
from ..hardening import check_container
from ..measure import TOTAL, CheckError, Times, alternate, check, percentile, summarize
from ..peer import CONTAINER_PEERS, SWE_REX, Peer, PeerError, started
from ..peer_image import base_image, with_package
from ..report import Line, compare
from ..settings import Settings
from .container import run_side

__all__ = ("run",)

_SIZE = 16
_READY_SECONDS = 120.0
_HOW = {
    "llm-sandbox[docker]": "theirs are used again and not clean",
    "swe-rex": "theirs are made for each, as many at once, on a bridge, with a server inside",
}
_WORKERS = 4  # as many as a pool makes at once


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure a warm `execute` against `docker run --rm`, and a burst against the engine alone."""
    engine = PlainEngine()
    settings_of_it = config(engine)
    try:
        async with ContainerBackend(settings_of_it) as backend:
            warm = await _warm(settings, backend.create, engine, settings_of_it.image)
            lines = [warm, *await _burst(settings, backend.create, engine)]
            return [*lines, *await _peers(settings, backend.create, engine, not_run)]
    finally:
        engine.close()


async def _warm(
    settings: Settings,
    factory: Callable[[], Awaitable[Sandbox]],
    engine: PlainEngine,
    image: str,
) -> Line:
    async with Pool(PoolConfig(factory=factory, max_size=4)) as pool:

        async def ours() -> Times:
            with anyio.fail_after(_READY_SECONDS):
                while pool.ready < 3 or pool.size != pool.ready:
                    await anyio.sleep(0.005)
            await anyio.sleep(settings.pause)
            began = time.perf_counter()
            result = await pool.execute("/bin/echo", ["hello"])
            took = time.perf_counter() - began
            check(result.ok and result.stdout == b"hello\n", f"execute() gave {result}")
            return {TOTAL: took}

        await pool.warmup(3)
        async with pool.lease() as sandbox:
            await check_container(sandbox, engine.pids(sandbox.id))
        sides = {"ours": ours, "docker run --rm": run_side(engine, image)}
        taken = await alternate(sides, settings.rounds(30, 2))
    return compare(
        "pool.execute() of /bin/echo, with one ready",
        taken,
        limit=1 / 100,
        note="hand-over, ping and command in a clean container each time, which is made before and "
        "removed after; the pool is full again before the next",
    )


def _crowd(settings: Settings) -> tuple[int, int]:
    """Return how many callers there are, and how many places."""
    return (6, 3) if settings.quick else (100, _SIZE)


async def _crowded(
    factory: Callable[[], Awaitable[Sandbox]], count: int, size: int
) -> tuple[float, list[float]]:
    """Let many callers come at once; return the seconds of all, and of each."""
    took: list[float] = []

    async def run_one(number: int) -> None:
        began = time.perf_counter()
        result = await pool.execute("/bin/echo", [str(number)])
        took.append(time.perf_counter() - began)
        check(result.stdout == b"%d\n" % number, f"execute() gave {result}")

    began = time.perf_counter()
    async with Pool(PoolConfig(factory=factory, max_size=size, acquire_timeout=600.0)) as pool:
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(run_one, number)
        done = time.perf_counter()
    check(len(took) == count, f"{len(took)} of {count} succeeded")
    return done - began, took


async def _burst(
    settings: Settings, factory: Callable[[], Awaitable[Sandbox]], engine: PlainEngine
) -> list[Line]:
    count, size = _crowd(settings)
    each: list[float] = []
    sandbox = await factory()
    body = engine.copy_of(sandbox.id)
    await sandbox.aclose()

    async def ours() -> Times:
        total, took = await _crowded(factory, count, size)
        each.extend(took)
        return {TOTAL: total}

    async def alone() -> Times:
        began = time.perf_counter()
        await anyio.to_thread.run_sync(_make_and_remove, body, count)
        return {TOTAL: time.perf_counter() - began}

    taken = await alternate(
        {"ours": ours, f"the engine alone, {count} made and removed": alone},
        settings.rounds(2, 1),
        pause=settings.pause * 10,
        warm_up=0,
    )
    ended = f"p50 {percentile(each, 0.5):.2f} s, p99 {percentile(each, 0.99):.2f} s"
    return [
        compare(
            f"{count} callers at once on an empty pool of {size}",
            taken,
            limit=1.15,
            note=f"each in a clean container; {ended}; all {len(each)} succeeded; the engine alone "
            f"starts the same container and runs nothing in it, {_WORKERS} at once",
        ),
        Line(f"one of {count} callers at once, from its call to its result", summarize(each)),
    ]


async def _peers(
    settings: Settings,
    factory: Callable[[], Awaitable[Sandbox]],
    engine: PlainEngine,
    not_run: list[str],
) -> list[Line]:
    """Measure the same burst on the pools of other packages."""
    if not settings.peers:
        not_run.append("other packages: --no-peers was given")
        return []
    lines = []
    for peer in CONTAINER_PEERS:
        try:
            image = await anyio.to_thread.run_sync(_image_of, peer)
            lines.append(await _against(peer, image, settings, factory))
        except (PeerError, CheckError) as error:
            not_run.append(f"{peer.name} {peer.version}: {error}")
        finally:
            engine.remove_labelled()
    return lines


def _image_of(peer: Peer) -> str:
    """Return the image that a package's containers are made of."""
    engine = PlainEngine()
    try:
        if peer is SWE_REX:
            return with_package(engine, peer, "swerex-remote", "swerex.server")
        return base_image(engine)
    finally:
        engine.close()


async def _against(
    peer: Peer, image: str, settings: Settings, factory: Callable[[], Awaitable[Sandbox]]
) -> Line:
    count, size = _crowd(settings)
    each: list[float] = []
    others: list[float] = []
    variables = {"RINGFENCE_BENCHMARK_IMAGE": image, "RINGFENCE_BENCHMARK_LABEL": LABEL}
    with started(peer, variables) as worker:

        async def theirs() -> Times:
            total, took = await anyio.to_thread.run_sync(worker.burst, count, size)
            others.extend(took)
            return {TOTAL: total}

        async def ours() -> Times:
            total, took = await _crowded(factory, count, size)
            each.extend(took)
            return {TOTAL: total}

        name = f"{peer.name} {peer.version}"
        # Once: removing a container takes one of them ten seconds.
        taken = await alternate({"ours": ours, name: theirs}, 1, warm_up=0)
    p50, p99 = (
        f"{percentile(each, share):.2f} s, theirs {percentile(others, share):.2f} s"
        for share in (0.5, 0.99)
    )
    return compare(
        f"{count} callers at once on an empty pool of {size}, beside another package",
        taken,
        note=f"one caller's p50 {p50}; p99 {p99}; all {len(each)} and {len(others)} succeeded; "
        f"{_HOW[peer.name]}, ours are made for each",
    )


def _make_and_remove(body: dict[str, object], count: int) -> None:
    """Have an engine make and remove many containers, several at once."""

    def lane(number: int) -> None:
        own = PlainEngine()
        for _ in range(number, count, _WORKERS):
            own.make_and_remove(body)
        own.close()

    with ThreadPoolExecutor(_WORKERS) as threads:
        list(threads.map(lane, range(_WORKERS)))
