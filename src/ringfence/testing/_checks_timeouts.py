"""Checks of deadlines and of cancelled callers."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable

import anyio

from ringfence.errors import CommandError, SandboxLostError
from ringfence.models import Command, ExitReason, Limits, Result, SandboxSpec

from . import _expect as expect
from ._context import Context
from ._model import FILES, KILL_TREE, LIVE, PROGRAMS, Check, check, enforced


async def a_deadline_ends_the_command_and_its_children(ctx: Context) -> None:
    """The client stops waiting, but the command goes on; or only its leader dies."""
    one, two = ctx.marker(), ctx.marker()
    result = await ctx.sh(f"sleep {one} & sleep {two}", timeout=0.7)
    _timed_out(ctx, result, 0.7)
    await ctx.is_gone(one, "the child", ctx.live_sandbox)
    await ctx.is_gone(two, "the command", ctx.live_sandbox)


async def a_deadline_reaches_those_that_left_the_group(ctx: Context) -> None:
    """What called setsid or forked twice is missed by a signal to the group."""
    marker = ctx.marker()
    script = (
        f"setsid sleep {marker} & (setsid sh -c 'sleep {marker} & sleep {marker}' &) ; sleep 60"
    )
    _timed_out(ctx, await ctx.sh(script, timeout=0.7), 0.7)
    await ctx.is_gone(marker, "the process that left", ctx.live_sandbox)


async def a_deadline_ends_what_ignores_every_signal(ctx: Context) -> None:
    """TERM is sent, and nothing after it."""
    marker = ctx.marker()
    script = f"trap '' TERM INT HUP QUIT; sh -c \"sleep {marker}; sleep {marker}\"; sleep {marker}"
    result = await ctx.sh(script, timeout=0.5)
    _timed_out(ctx, result, 0.5)
    await ctx.is_gone(marker, "the stubborn process", ctx.live_sandbox)


async def a_deadline_ends_what_has_stopped(ctx: Context) -> None:
    """A stopped process does not get TERM, and its killer waits for it."""
    marker = ctx.marker()
    result = await ctx.sh(f"sleep {marker} & kill -STOP $!; kill -STOP $$", timeout=0.5)
    _timed_out(ctx, result, 0.5)
    await ctx.is_gone(marker, "the stopped process", ctx.live_sandbox)


async def a_deadline_gives_a_short_grace(ctx: Context) -> None:
    """KILL comes first, so that a program can't flush its files; or the grace is endless."""
    script = "trap 'echo flushed; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    patient = SandboxSpec(limits=Limits(kill_grace=ctx.soon))
    result = await _ended_when(ctx, script, lambda result: b"ready" in result.stdout, patient)
    expect.equal(result.stdout, b"ready\nflushed\n", "stdout")


async def a_deadline_keeps_the_output_so_far(ctx: Context) -> None:
    """The output of a timed-out command is thrown away."""
    script = "echo first; echo e >&2; sleep 300"
    result = await _ended_when(ctx, script, lambda result: result.stderr)
    expect.equal((result.stdout, result.stderr), (b"first\n", b"e\n"), "the output")


async def a_deadline_ends_a_flood(ctx: Context) -> None:
    """A command that prints without end is so busy being read that its time never comes."""
    result = await _ended_when(ctx, "yes & yes", lambda result: result.stdout_truncated)
    expect.equal((len(result.stdout), result.stdout_truncated), (2**20, True), "what was kept")


async def a_deadline_ends_a_command_with_closed_streams(ctx: Context) -> None:
    """The clock is tied to the pipes, which the program has closed."""
    marker = ctx.marker()
    result = await ctx.sh(f"exec <&- >&- 2>&-; sleep {marker}", timeout=0.5)
    _timed_out(ctx, result, 0.5)
    await ctx.is_gone(marker, "the command", ctx.live_sandbox)


async def a_deadline_does_not_wait_for_a_source_of_stdin(ctx: Context) -> None:
    """A caller's input that never comes holds the deadline up."""

    async def source() -> AsyncIterator[bytes]:
        yield b"x"
        await anyio.sleep(60)

    _timed_out(ctx, await ctx.sh("cat", stdin=source(), timeout=0.5), 0.5)


async def a_deadline_holds_though_nobody_reads(ctx: Context) -> None:
    """A started command has no clock of its own: it lives while nobody asks for output."""
    marker = ctx.marker()
    process = await ctx.sandbox.start(ctx.script(f"yes & sleep {marker}", timeout=0.5))
    await ctx.gone(marker, "the command", ctx.sandbox)
    with ctx.promptly("its end"):
        end = await process.wait()
    expect.equal((end.code, end.reason), (124, ExitReason.TIMED_OUT), "the end")


async def the_sandbox_lives_on_after_a_timeout(ctx: Context) -> None:
    """A timeout takes the sandbox, its files or its other commands with it."""
    await ctx.sandbox.write_file("kept", "x")
    other = await ctx.sandbox.start(ctx.script("sleep 1.2; echo whole; exit 4"))
    _timed_out(ctx, await ctx.sh("sleep 60 & sleep 60", timeout=0.4), 0.4)
    expect.equal(await ctx.sandbox.read_file("kept"), b"x", "the file")
    result = await ctx.sandbox.exec("echo", ["ok"])
    expect.equal(result.stdout, b"ok\n", "the next command's stdout")
    with ctx.promptly("the other command"):
        chunk = await other.receive()
        expect.equal(chunk and chunk.data, b"whole\n", "the other command's stdout")
        expect.equal((await other.wait()).code, 4, "the other command's exit code")


async def one_of_many_times_out_alone(ctx: Context) -> None:
    """Deadlines of commands that run together are mixed up."""
    results: dict[float, Result] = {}

    async def one(timeout: float) -> None:
        results[timeout] = await ctx.sandbox.exec(
            ctx.script("sleep 1; echo whole"), timeout=timeout
        )

    async with anyio.create_task_group() as group:
        for timeout in (0.3, 0.5, 50.0, 60.0):
            group.start_soon(one, timeout)
    for timeout, result in results.items():
        expect.equal(result.timed_out, timeout < 1, f"timed_out with {timeout} s")
        expect.equal(result.stdout, b"" if timeout < 1 else b"whole\n", f"stdout with {timeout} s")


async def timeouts_are_clamped_visibly(ctx: Context) -> None:
    """The default or the maximum is ignored, or applied without a word."""
    asked = {None: 30.0, 5.0: 5.0, 301.0: 300.0, 10_000.0: 300.0}
    for timeout, wanted in asked.items():
        result = await ctx.backend.execute(Command(["true"], timeout=timeout))
        expect.equal(result.timeout, wanted, f"the timeout in force for {timeout}")
    sandbox = await ctx.create(Limits(timeout=7.0, max_timeout=0.6))
    result = await sandbox.exec("true")
    expect.equal(result.timeout, 0.6, "the timeout in force with a default above the maximum")
    result = await sandbox.exec("sleep", ["60"], timeout=100)
    expect.equal((result.timed_out, result.timeout), (True, 0.6), "a clamped command's end")


async def timeouts_that_are_none_are_refused(ctx: Context) -> None:
    """Zero, a negative number or NaN means 'no limit', or ends the command at once."""
    for timeout in (0, -1, -0.5, math.nan, math.inf, -math.inf, True, "5"):
        with expect.raising(CommandError, f"timeout={timeout!r}"):
            await ctx.backend.execute(Command(["true"], timeout=timeout))  # type: ignore[arg-type]
        with expect.raising(CommandError, f"timeout={timeout!r} beside the command"):
            await ctx.backend.execute("true", timeout=timeout)  # type: ignore[arg-type]


async def ten_timeouts_leave_no_zombies(ctx: Context) -> None:
    """Killed processes are never waited for, and fill the process table."""
    name = "z" + ctx.marker()[-10:]
    await ctx.make_sleeper(name)

    async def one() -> None:
        await ctx.sh(f"./{name} 60 & (setsid ./{name} 60 &) ; ./{name} 60", timeout=0.3)

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(one)
    await ctx.none_left(name)


async def cancelling_the_caller_kills_the_command(ctx: Context) -> None:
    """The caller is gone, but its command runs on."""
    marker = ctx.marker()
    with ctx.promptly("the cancelled call"), anyio.move_on_after(0.4):
        await ctx.sandbox.exec(ctx.script(f"sleep {marker} & sleep {marker}"))
    await ctx.is_gone(marker, "the command", ctx.sandbox)
    await ctx.prints_ok(ctx.sandbox)


async def cancelling_reaches_those_that_left_the_group(ctx: Context) -> None:
    """A cancelled caller's daemons run on."""
    marker = ctx.marker()
    script = f"(setsid sh -c 'trap \"\" TERM; sleep {marker}; sleep {marker}' &) ; sleep 60"
    with ctx.promptly("the cancelled call"), anyio.move_on_after(0.4):
        await ctx.sandbox.exec(ctx.script(script))
    await ctx.is_gone(marker, "the daemon", ctx.sandbox)


async def cancelling_a_one_shot_leaves_nothing(ctx: Context) -> None:
    """A cancelled one-shot leaves its sandbox running."""
    marker = ctx.marker()
    with ctx.promptly("the cancelled call"), anyio.move_on_after(0.4):
        await ctx.backend.execute(ctx.script(f"sleep {marker} & sleep {marker}"))
    await ctx.gone(marker, "the command")


async def a_tree_that_forks_without_end_is_ended(ctx: Context) -> None:
    """A tree that forks faster than it is killed survives its deadline."""
    sandbox = await ctx.create(Limits(pids=100))
    marker = ctx.marker()
    fork = f"while :; do (setsid sleep {marker} &) ; done"
    try:
        with ctx.promptly("ending it"):
            result = await sandbox.exec(ctx.script(fork), timeout=0.7)
    except SandboxLostError:
        pass  # it may be given up as a whole; then nothing of it may be left
    else:
        _timed_out(ctx, result, 0.7)
        result = await sandbox.exec("echo", ["ok"])
        expect.equal(result.stdout, b"ok\n", "the next command's stdout")
    await ctx.gone(marker, "a process of the tree")


async def _ended_when(
    ctx: Context, script: str, come: Callable[[Result], object], spec: SandboxSpec | None = None
) -> Result:
    """Return the result of a script that was ended once it had got somewhere, as it does soon."""
    for timeout in (0.7, ctx.soon):
        command = ctx.script(script, timeout=timeout)
        result = await (ctx.backend.execute(command, spec=spec) if spec else ctx.run(command))
        _timed_out(ctx, result, timeout)
        if come(result):
            break
    return result


def _timed_out(ctx: Context, result: Result, timeout: float) -> None:
    """Require a result to be that of a command that our clock ended in time."""
    actual = (result.exit_code, result.exit_reason, result.timed_out, result.timeout)
    expect.equal(actual, (124, ExitReason.TIMED_OUT, True, timeout), "the end")
    took = result.duration_s
    expect.true(timeout * 0.9 <= took <= timeout + ctx.soon, f"it took {took:.2f} s of {timeout} s")


CHECKS: tuple[Check, ...] = (
    check(a_deadline_ends_the_command_and_its_children, PROGRAMS),
    check(a_deadline_reaches_those_that_left_the_group, PROGRAMS, KILL_TREE),
    check(a_deadline_ends_what_ignores_every_signal, PROGRAMS),
    check(a_deadline_ends_what_has_stopped, PROGRAMS),
    check(a_deadline_gives_a_short_grace, PROGRAMS),
    check(a_deadline_keeps_the_output_so_far, PROGRAMS),
    check(a_deadline_ends_a_flood, PROGRAMS),
    check(a_deadline_ends_a_command_with_closed_streams, PROGRAMS),
    check(a_deadline_does_not_wait_for_a_source_of_stdin, PROGRAMS),
    check(a_deadline_holds_though_nobody_reads, PROGRAMS, LIVE),
    check(the_sandbox_lives_on_after_a_timeout, PROGRAMS, FILES),
    check(one_of_many_times_out_alone, PROGRAMS, LIVE),
    check(timeouts_are_clamped_visibly, PROGRAMS, LIVE),
    check(timeouts_that_are_none_are_refused),
    check(ten_timeouts_leave_no_zombies, PROGRAMS, LIVE, KILL_TREE),
    check(cancelling_the_caller_kills_the_command, PROGRAMS, LIVE),
    check(cancelling_reaches_those_that_left_the_group, PROGRAMS, LIVE, KILL_TREE),
    check(cancelling_a_one_shot_leaves_nothing, PROGRAMS),
    check(
        a_tree_that_forks_without_end_is_ended, PROGRAMS, LIVE, KILL_TREE, enforced("pids"),
        hostile=True,
    ),
)  # fmt: skip
