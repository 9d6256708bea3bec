"""Checks of what is left behind: after use, after a leak, after a cancel at any moment."""

from __future__ import annotations

import gc
import os
import random
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio

from ringfence.errors import SandboxClosedError

from . import _expect as expect
from ._context import Context
from ._host import settled, steady
from ._model import FILES, LIVE, PROGRAMS, Check, check

_SPARE = 3
"""Temporary files that a backend may have of its own, whatever was done with it."""

_LEAST_ROUNDS = 5
_HALF_SECONDS = 15.0


async def a_leak_is_told(ctx: Context) -> None:
    """A sandbox that was never closed vanishes without a word."""

    async def leak() -> None:
        await ctx.backend.create()

    with warnings.catch_warnings(record=True) as caught, _own_temporary_directory(ctx):
        warnings.simplefilter("always")
        await leak()
        for _ in range(20):
            gc.collect()
            if told := any(entry.category is ResourceWarning for entry in caught):
                break
            await anyio.sleep(0.05)
    expect.true(told, f"the warnings are {[entry.category for entry in caught]}")


async def a_hundred_sandboxes_leave_nothing(ctx: Context) -> None:
    """Each sandbox leaves a descriptor, a thread, a process or a file behind."""

    async def once() -> None:
        async with await ctx.backend.create() as sandbox:
            await sandbox.exec(ctx.script("sleep 60 & echo x >f"))
        await ctx.backend.execute("true")

    await _leaves_nothing(ctx, once, rounds=50)


async def cancelled_creations_leave_nothing(ctx: Context) -> None:
    """Cancelling while a sandbox is made leaves half of it."""

    async def once() -> None:
        with anyio.move_on_after(random.uniform(0, 0.03)):  # noqa: S311 - any moment will do
            sandbox = await ctx.backend.create()
            with anyio.CancelScope(shield=True):
                await sandbox.aclose()

    await _leaves_nothing(ctx, once, rounds=20)


async def cancelled_commands_leave_nothing(ctx: Context) -> None:
    """Cancelling while a command starts, runs or ends leaves it, or breaks the sandbox."""
    marker = ctx.marker()

    async def once() -> None:
        with anyio.move_on_after(random.uniform(0, 0.02)):  # noqa: S311 - any moment will do
            await ctx.sandbox.exec(ctx.script(f"echo x; sleep 0.01; echo y; sleep {marker}"))

    await _leaves_nothing(ctx, once, rounds=20)
    await ctx.gone(marker, "a cancelled command", ctx.sandbox)
    await ctx.prints_ok(ctx.sandbox)


async def cancelled_file_operations_leave_nothing(ctx: Context) -> None:
    """Cancelling a read or a write leaves the sandbox out of step: answers get mixed up."""
    content = os.urandom(4 * 2**20)
    await ctx.sandbox.write_file("big", content)

    async def once() -> None:
        with anyio.move_on_after(random.uniform(0, 0.02)):  # noqa: S311 - any moment will do
            await ctx.sandbox.write_file("other", content)
            await ctx.sandbox.read_file("big")
            await ctx.sandbox.list_files()

    await _leaves_nothing(ctx, once, rounds=20)
    expect.true(await ctx.sandbox.read_file("big") == content, "the next read is wrong")
    await ctx.prints_ok(ctx.sandbox)


async def cancelled_one_shots_leave_nothing(ctx: Context) -> None:
    """Cancelling a one-shot at any moment leaves its sandbox."""
    marker = ctx.marker()

    async def once() -> None:
        with anyio.move_on_after(random.uniform(0, 0.06)):  # noqa: S311 - any moment will do
            await ctx.backend.execute(ctx.script(f"sleep 0.01; sleep {marker} & sleep 0.02"))

    await _leaves_nothing(ctx, once, rounds=20)
    await ctx.gone(marker, "a cancelled one-shot")


async def cancelled_closings_end_all_the_same(ctx: Context) -> None:
    """Cancelling while a sandbox is closed leaves it open for ever."""
    marker = ctx.marker()

    async def once() -> None:
        sandbox = await ctx.backend.create()
        await sandbox.start(ctx.script(f"trap '' TERM; sleep {marker}; sleep {marker}"))
        with anyio.move_on_after(random.uniform(0, 0.01)):  # noqa: S311 - any moment will do
            await sandbox.aclose()
        with expect.raising(SandboxClosedError, "using it after a cancelled close"):
            await sandbox.exec("true")

    await _leaves_nothing(ctx, once, rounds=8)
    await ctx.gone(marker, "a command of a closed sandbox")


async def _leaves_nothing(ctx: Context, once: Callable[[], Awaitable[None]], rounds: int) -> None:
    """Require the second half of many rounds to leave no more than the first did.

    There are fewer where one takes long. What a backend has for all of its sandboxes, as spares,
    may be fewer in the moment of a look; so where there is more, the same number of rounds tells
    whether it is more each time.
    """
    with _own_temporary_directory(ctx) as directory:
        began, done = time.monotonic(), 0
        while done < rounds and (done < _LEAST_ROUNDS or time.monotonic() - began < _HALF_SECONDS):
            await once()
            done += 1
        looks = [await steady()]
        while len(looks) < 2 or (looks[-1].grown_over(looks[-2]) and len(looks) < 3):
            for _ in range(done):
                await once()
            looks.append(await settled(looks[-1], ctx.soon))
        grown = looks[-1].grown_over(looks[-2])
        expect.true(not grown, f"{done} rounds leave more each time: {looks}")

        async def are_gone() -> bool:
            return len(os.listdir(directory)) <= _SPARE

        await ctx.eventually(are_gone, "temporary files are left")


@contextmanager
def _own_temporary_directory(ctx: Context) -> Iterator[str]:
    """Let this process make its temporary files where nobody else does."""
    before = tempfile.tempdir
    tempfile.tempdir = ctx.host_dir()
    try:
        yield tempfile.tempdir
    finally:
        tempfile.tempdir = before


CHECKS: tuple[Check, ...] = (
    check(a_leak_is_told, LIVE),
    check(a_hundred_sandboxes_leave_nothing, LIVE, PROGRAMS, timeout=120),
    check(cancelled_creations_leave_nothing, LIVE, timeout=120),
    check(cancelled_commands_leave_nothing, LIVE, PROGRAMS, timeout=120),
    check(cancelled_file_operations_leave_nothing, FILES, PROGRAMS, timeout=120),
    check(cancelled_one_shots_leave_nothing, PROGRAMS, timeout=120),
    check(cancelled_closings_end_all_the_same, LIVE, PROGRAMS, timeout=120),
)
