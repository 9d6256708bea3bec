"""Hostile trees, grown and killed many times over, beside a neighbour that must not notice."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from ringfence.backend import Backend, Sandbox
from ringfence.errors import FileMissingError
from ringfence.models import Command, ExitReason, Limits, SandboxSpec
from ringfence.process import Process
from ringfence.warden.sandbox import WardenSandbox

from ..machine import processes_with, until

GRACE = 0.01
PROGRAM = Path(__file__).with_name("hostile.c")

LIMITS = Limits(pids=64, cpus=2.0, kill_grace=GRACE)


@cache
def hostile_program() -> bytes:
    """Return the program that grows the trees."""
    with TemporaryDirectory() as scratch:
        target = f"{scratch}/hostile"
        subprocess.run(["cc", "-O1", "-pthread", "-o", target, PROGRAM], check=True)
        return Path(target).read_bytes()


@dataclass
class Trials:
    """How many kills there were, and what they took."""

    kind: str
    milliseconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        times = sorted(self.milliseconds)
        return (
            f"{self.kind}: {len(times)} kills, median {statistics.median(times):.1f} ms, "
            f"95 % {times[len(times) * 95 // 100]:.1f} ms, most {times[-1]:.1f} ms"
        )


class Neighbour:
    """A command that counts while others are killed, with a child that has stopped itself."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.ticks = 0

    async def follow(self) -> None:
        while (chunk := await self._process.receive()) is not None:
            self.ticks += chunk.data.count(b".")

    async def ticks_on(self) -> None:
        before = self.ticks
        # A kill stops everybody for as long as it takes, seconds on a machine that is busy.
        await until(lambda: self.ticks > before, seconds=60, what="the neighbour went on")

    async def end(self) -> None:
        await self._process.close_stdin()
        end = await self._process.wait()
        assert (end.code, end.reason) == (42, ExitReason.EXITED)


async def kill_many(backend: Backend, kind: str, count: int, *, side_by_side: int = 4) -> Trials:
    """Grow and kill `count` trees of a kind, in several sandboxes at once."""
    trials = Trials(kind)
    spec = SandboxSpec(limits=LIMITS) if backend.name == "bubblewrap" else None
    async with anyio.create_task_group() as group:
        for number in range(side_by_side):
            share = count // side_by_side
            group.start_soon(
                _one_sandbox, backend, spec, f"mark-{os.getpid()}-{kind}-{number}", share, trials
            )
    return trials


async def _one_sandbox(
    backend: Backend, spec: SandboxSpec | None, mark: str, count: int, trials: Trials
) -> None:
    async with await backend.create(spec) as sandbox, anyio.create_task_group() as group:
        await sandbox.write_file("hostile", hostile_program(), mode=0o755)
        started = await sandbox.start(
            Command(("./hostile", "neighbour", "neighbour")), stdin_open=True
        )
        neighbour = Neighbour(started)
        group.start_soon(neighbour.follow)
        await neighbour.ticks_on()
        for number in range(count):
            await _one_trial(sandbox, trials, f"{mark}-{number}.")
            await neighbour.ticks_on()
        await neighbour.end()
        if trials.kind == "wakers":  # which let it go on themselves
            return
        try:
            await sandbox.stat("woken")
        except FileMissingError:
            return
        raise AssertionError("a process that had stopped itself was let go on")


async def _one_trial(sandbox: Sandbox, trials: Trials, mark: str) -> None:
    # The kernel may end the main process of a bomb first, for want of memory.
    command = Command(("./hostile", trials.kind, mark), leftovers="kill")
    process = await sandbox.start(command)
    said = b""
    while b"ready\n" not in said and (chunk := await process.receive()) is not None:
        said += chunk.data
    began = time.perf_counter()
    await process.kill()
    await process.wait()
    trials.milliseconds.append((time.perf_counter() - began) * 1000)
    survivors = processes_with(mark)
    assert isinstance(sandbox, WardenSandbox)
    assert sandbox.connection.lost is None, f"{trials.kind}: {sandbox.connection.lost}"
    assert not survivors, f"{trials.kind}: alive after the kill: {survivors}"
    inside = await sandbox.exec("./hostile", ["scan", mark])
    assert (inside.exit_code, inside.stdout) == (0, b""), inside
