"""Checks of limits: that they are held, that they are told, that one is not another's."""

from __future__ import annotations

from dataclasses import fields

import anyio

from ringfence.errors import LimitError, SandboxLostError, StreamBrokenError
from ringfence.models import Enforced, Enforcement, ExitReason, Limits, Result, SandboxSpec

from . import _expect as expect
from ._context import Context
from ._host import processes_with
from ._model import (
    HOST_KERNEL,
    ISOLATED,
    KILL_TREE,
    LIVE,
    PROGRAMS,
    Check,
    check,
    enforced,
    held,
)

_MEBIBYTE = 2**20
_EAT_MEMORY = "tail /dev/zero"
"""A program of every system that asks for memory until it gets none."""

_SPARE = 20
"""Processes beyond the limit that a backend may allow for those of its own."""

_SAMPLE: dict[str, float] = {
    "memory_bytes": 256 * _MEBIBYTE,
    "cpus": 1.0,
    "pids": 100,
    "open_files": 100,
    "workspace_bytes": 16 * _MEBIBYTE,
    "workspace_files": 500,
    "tmp_bytes": 16 * _MEBIBYTE,
}


async def a_limit_that_nobody_holds_is_refused(ctx: Context) -> None:
    """A limit that was asked for and can't be held is dropped without a word."""
    for item in fields(Enforced):
        held_by = getattr(ctx.capabilities.limits, item.name)
        limits = Limits(**{item.name: _SAMPLE[item.name]})  # type: ignore[arg-type]
        if held_by is Enforcement.NONE:
            with expect.raising(LimitError, f"asking for {item.name}") as caught:
                await ctx.create(limits)
            expect.equal(caught[0].limit, item.name, "the limit that the error names")
            with expect.raising(LimitError, f"a one-shot with {item.name}"):
                await ctx.backend.execute("true", spec=SandboxSpec(limits=limits))
        else:
            sandbox = await ctx.create(limits)
            expect.equal(getattr(sandbox.limits, item.name), _SAMPLE[item.name], item.name)


async def limits_in_force_are_complete(ctx: Context) -> None:
    """A clock or a cap has no value, so that it holds nothing."""
    ours = ("output_bytes", "timeout", "max_timeout", "kill_grace", "start_timeout", "max_age")
    for name in ours:
        expect.true(getattr(ctx.sandbox.limits, name), f"limits.{name} has no value")


async def open_files_are_limited(ctx: Context) -> None:
    """A program can open descriptors without end, or raise its own limit."""
    sandbox = await ctx.create(Limits(open_files=64))
    result = await sandbox.exec(ctx.script("ulimit -n; ulimit -Hn; ulimit -n 4096; ulimit -n"))
    lines = result.stdout_text.split()
    expect.equal(lines[:2], ["64", "64"], "the soft and hard limit")
    if not await ctx.runs_as_root(sandbox):
        expect.equal(lines[-1], "64", "the limit after raising it")
    opens = 'i=3; while [ $i -lt 200 ]; do eval "exec $i</dev/null" || exit 9; i=$((i+1)); done'
    expect.true(not (await sandbox.exec("bash", ["-c", opens])).ok, "200 descriptors were opened")


async def no_memory_is_written_to_core_files(ctx: Context) -> None:
    """A crash writes the program's memory, with its secrets, to a file."""
    expect.equal(await ctx.sh_ok("ulimit -c"), "0\n", "the limit of core files")


async def processes_are_limited(ctx: Context) -> None:
    """A sandbox starts processes without end, or is dead once its limit is reached."""
    sandbox = await ctx.create(Limits(pids=40))
    marker = ctx.marker()
    script = f"for i in $(seq 120); do sleep {marker} & done 2>/dev/null; echo end"
    await sandbox.exec(ctx.script(script))
    count = len(processes_with(marker))
    expect.true(10 <= count <= 40 + _SPARE, f"{count} processes were started under a limit of 40")
    await sandbox.aclose()
    await ctx.gone(marker, "a process")


async def a_fork_bomb_is_held(ctx: Context) -> None:
    """A fork bomb takes the host down, outlives its deadline, or kills the sandbox's future."""
    sandbox = await ctx.create(Limits(pids=60))
    marker = ctx.marker()
    bomb = f"b() {{ sleep {marker} & b | b & b; }}; b"
    most = 0
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(processes_with(marker)))
                await anyio.sleep(0.05)

        group.start_soon(watch)
        await _survives(sandbox.exec(ctx.script(bomb, leftovers="kill"), timeout=1.0))
        group.cancel_scope.cancel()
    expect.true(most <= 60 + _SPARE, f"the bomb had {most} processes under a limit of 60")
    await ctx.gone(marker, "a process of the bomb")
    await _survives(ctx.prints_ok(sandbox))
    fresh = await ctx.backend.execute("echo", ["ok"])
    expect.equal(fresh.stdout, b"ok\n", "a new sandbox's stdout")


async def one_sandbox_s_processes_are_not_another_s(ctx: Context) -> None:
    """Processes are counted by user over all sandboxes, which eat one another's limit."""
    marker = ctx.marker()
    failures: list[str] = []

    async def fill() -> None:
        sandbox = await ctx.create(Limits(pids=70))
        script = f"for i in $(seq 50); do sleep {marker} & done; echo $?"
        result = await sandbox.exec(ctx.script(script))
        if result.stderr or not result.ok:
            failures.append(result.stderr_text)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(fill)
    expect.equal(failures, [], "what failed")

    async def all_run() -> bool:  # a child that was forked is not at once the program that it runs
        return len(processes_with(marker)) >= 200

    await ctx.eventually(all_run, "not all of 4 x 50 processes run")


async def memory_is_limited_and_the_end_is_told(ctx: Context) -> None:
    """A program killed by the memory limit is just '137', or the sandbox is dead after it."""
    sandbox = await ctx.create(Limits(memory_bytes=64 * _MEBIBYTE))
    result = await sandbox.exec("tail", ["/dev/zero"], timeout=20)
    actual = (result.exit_code, result.exit_reason)
    expect.equal(actual, (137, ExitReason.OUT_OF_MEMORY), f"({result.stderr!r}) the end")
    expect.true(result.out_of_memory, "out_of_memory is false")
    await ctx.prints_ok(sandbox)


async def a_child_out_of_memory_is_its_parent_s_business(ctx: Context) -> None:
    """A child that is killed by the memory limit makes a result of the whole command."""
    sandbox = await ctx.create(Limits(memory_bytes=64 * _MEBIBYTE))
    result = await sandbox.exec(ctx.script(f"{_EAT_MEMORY}; echo after $?"), timeout=20)
    expect.equal(result.stdout, b"after 137\n", f"({result.stderr!r}) stdout")
    expect.equal((result.exit_code, result.exit_reason), (0, ExitReason.EXITED), "the end")


async def a_kill_of_its_own_is_not_out_of_memory(ctx: Context) -> None:
    """Any death by KILL counts as out of memory, or one real case colours all later ones."""
    sandbox = await ctx.create(Limits(memory_bytes=64 * _MEBIBYTE))
    for turn in ("before", "after"):
        result = await sandbox.exec(ctx.script("kill -KILL $$"))
        actual = (result.exit_code, result.exit_reason)
        expect.equal(actual, (137, ExitReason.SIGNALED), f"the end, {turn} a real one")
        result = await sandbox.exec(ctx.script("exit 137"))
        expect.equal(result.exit_reason, ExitReason.EXITED, f"the reason of exit 137, {turn}")
        if turn == "before":
            await sandbox.exec("tail", ["/dev/zero"], timeout=20)


async def files_in_memory_count_as_memory(ctx: Context) -> None:
    """A workspace in memory is outside of the memory limit: it fills the host's."""
    sandbox = await ctx.create(Limits(memory_bytes=64 * _MEBIBYTE))
    script = "head -c 1000000000 /dev/zero >big; rm -f big; head -c 1000000000 /dev/zero >/tmp/big"
    await _survives(sandbox.exec(ctx.script(script), timeout=20))
    await _survives(sandbox.exec(ctx.script("rm -f big /tmp/big"), timeout=20))
    kib = await ctx.sh_ok("cat big /tmp/big 2>/dev/null | wc -c")
    expect.true(int(kib) < 100 * _MEBIBYTE, "another sandbox sees the files")


async def processor_time_is_limited(ctx: Context) -> None:
    """A sandbox uses more of the processor than it was given."""
    sandbox = await ctx.create(Limits(cpus=0.25))
    script = """
        for i in 1 2; do (while :; do :; done) & p="$p $!"; done
        sleep 1.5; kill $p; wait; times
    """
    result = await sandbox.exec(ctx.script(script))
    used = sum(_seconds(field) for field in result.stdout_text.split()[-2:])
    share = used / result.duration_s
    expect.true(0 < share < 0.6, f"two loops used {share:.2f} of a core, and were given a quarter")


async def orphans_are_reaped(ctx: Context) -> None:
    """Nobody waits for orphans: zombies pile up until no process can be started."""
    name = "z" + ctx.marker()[-10:]
    await ctx.make_sleeper(name)
    for _ in range(20):
        await ctx.sh_ok(f"(./{name} 0.05 &) ; true")
    await ctx.none_left(name)


async def many_commands_work_under_a_small_limit(ctx: Context) -> None:
    """Commands that have ended go on counting as processes."""
    sandbox = await ctx.create(Limits(pids=30))
    leaves_one = ctx.script("(sleep 0.01 &) ; exit 0")
    for number in range(100):
        result = await sandbox.exec(leaves_one)
        with anyio.move_on_after(ctx.soon):
            while result.exit_code or result.stderr:
                await anyio.sleep(0.2)  # a busy machine has not come to the ends of the others yet
                result = await sandbox.exec(leaves_one)
        expect.equal((result.exit_code, result.stderr), (0, b""), f"command {number}")


async def _survives(work: object) -> Result | None:
    """Await a call that may lose its sandbox or the way to it, but not fail in any other way.

    Memory that files hold can't be had back by killing, so the limit takes all that is inside: the
    warden too, and the relay to it where the way in is a process of the sandbox.
    """
    try:
        return await work  # type: ignore[misc, no-any-return]
    except (SandboxLostError, StreamBrokenError):
        return None


def _seconds(text: str) -> float:
    """Return the seconds of a time as the shell's `times` prints it: 0m1.234567s."""
    minutes, _, seconds = text.rstrip("s").partition("m")
    return int(minutes) * 60 + float(seconds)


CHECKS: tuple[Check, ...] = (
    check(a_limit_that_nobody_holds_is_refused, LIVE),
    check(limits_in_force_are_complete, LIVE),
    check(open_files_are_limited, PROGRAMS, LIVE, held("open_files")),
    check(no_memory_is_written_to_core_files, PROGRAMS),
    check(processes_are_limited, PROGRAMS, LIVE, HOST_KERNEL, enforced("pids"), hostile=True),
    check(a_fork_bomb_is_held, PROGRAMS, LIVE, enforced("pids"), hostile=True, timeout=45),
    check(one_sandbox_s_processes_are_not_another_s, PROGRAMS, LIVE, HOST_KERNEL, enforced("pids")),
    check(
        memory_is_limited_and_the_end_is_told,
        *(PROGRAMS, LIVE, HOST_KERNEL, enforced("memory_bytes")),
        hostile=True,
    ),
    check(
        a_child_out_of_memory_is_its_parent_s_business,
        *(PROGRAMS, LIVE, HOST_KERNEL, enforced("memory_bytes")),
        hostile=True,
    ),
    check(
        a_kill_of_its_own_is_not_out_of_memory,
        *(PROGRAMS, LIVE, HOST_KERNEL, enforced("memory_bytes")),
        hostile=True,
    ),
    check(
        files_in_memory_count_as_memory, PROGRAMS, LIVE, ISOLATED, enforced("memory_bytes"),
        hostile=True,
    ),
    check(processor_time_is_limited, PROGRAMS, LIVE, enforced("cpus")),
    check(orphans_are_reaped, PROGRAMS, LIVE, KILL_TREE),
    check(many_commands_work_under_a_small_limit, PROGRAMS, LIVE, enforced("pids")),
)  # fmt: skip
