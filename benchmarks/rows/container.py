"""Containers: a command in a live one, one made for one command, and what an idle one costs."""

from __future__ import annotations

import time

import anyio

from ringfence.backend import Backend, Sandbox
from ringfence.backends.docker import ContainerBackend

from ..engine import PlainEngine, config, run_argv, run_once
from ..hardening import check_container, check_look
from ..measure import TOTAL, Side, Times, alternate, check, summarize
from ..processes import pss_mib
from ..report import Line, compare
from ..settings import Settings
from .live import exec_side

__all__ = ("run", "run_side")

_ECHO = ["/bin/echo", "hello"]
_SAID = b"hello\n"


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure against the engine's own exec API and `docker run --rm`."""
    engine = PlainEngine()
    settings_of_it = config(engine)
    try:
        async with ContainerBackend(settings_of_it) as backend:
            async with await backend.create() as sandbox:
                await check_container(sandbox, engine.pids(sandbox.id))
                live = await _live(settings, sandbox, engine)
            cold = await _cold(settings, backend, engine, settings_of_it.image)
            return [live, cold, *await _memory(settings, backend, engine, not_run)]
    finally:
        engine.close()


async def _live(settings: Settings, sandbox: Sandbox, engine: PlainEngine) -> Line:
    async def by_api() -> Times:
        return engine.exec(sandbox.id, _ECHO, _SAID)

    sides = {"ours": exec_side(sandbox, _ECHO, _SAID), "the exec API": by_api}
    # The engine goes on clearing an exec of its API away after it has answered.
    taken = await alternate(sides, settings.rounds(100, 5), pause=settings.pause, warm_up=3)
    return compare(
        "/bin/echo in a live container",
        taken,
        limit=1 / 25,
        note="in the same container; the API is spoken to over a kept connection and a second one",
    )


async def _cold(settings: Settings, backend: Backend, engine: PlainEngine, image: str) -> Line:
    check_look(run_argv(engine, image, ["/bin/sh", "-c"]), "a docker run")

    async def ours() -> Times:
        began = time.perf_counter()
        async with await backend.create() as sandbox:
            created = time.perf_counter()
            result = await sandbox.exec(_ECHO[0], _ECHO[1:])
            done = time.perf_counter()
        await anyio.to_thread.run_sync(engine.wait_until_removed, sandbox.id)
        removed = time.perf_counter()
        check(result.ok and result.stdout == _SAID, f"exec() gave {result}")
        return {
            TOTAL: removed - began,
            "create": created - began,
            "exec": done - created,
            "close and remove": removed - done,
        }

    sides = {"ours": ours, "docker run --rm": run_side(engine, image)}
    taken = await alternate(sides, settings.rounds(20, 1), pause=settings.pause * 3)
    return compare(
        "create, exec and remove",
        taken,
        limit=1.05,
        note="until the engine has it no more; both hardened alike, network none",
    )


def run_side(engine: PlainEngine, image: str) -> Side:
    """Return a side that runs a command by the engine's command line tool."""
    argv = run_argv(engine, image, _ECHO)

    async def side() -> Times:
        return run_once(argv, _SAID)

    return side


async def _memory(
    settings: Settings, backend: Backend, engine: PlainEngine, not_run: list[str]
) -> list[Line]:
    found = []
    for _ in range(settings.rounds(5, 1)):
        async with await backend.create() as sandbox:
            check((await sandbox.exec(_ECHO[0], _ECHO[1:])).ok, "exec() failed")
            await anyio.sleep(settings.pause)
            try:
                found.append(sum(map(pss_mib, engine.pids(sandbox.id))))
            except PermissionError:
                not_run.append("a container's memory: only root may read a warden's")
                return []
    note = "PSS of what we have inside: the warden and its keepers; the engine's shim is not ours"
    return [Line("an idle live container", summarize(found), unit="MiB", limit=1.0, note=note)]
