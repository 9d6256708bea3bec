"""Checks of what a command leaves running, and of killing whole trees."""

from __future__ import annotations

import signal

import anyio

from ringfence.models import Command, ExitReason, Limits

from . import _expect as expect
from ._context import Context
from ._model import FILES, KILL_TREE, LIVE, PROGRAMS, Check, check


async def a_leftover_that_holds_the_pipes_delays_nothing(ctx: Context) -> None:
    """The call waits for the end of the pipes, which a background child holds open."""
    for script in ("sleep 300 & echo hi", "(sleep 300 &) ; echo hi"):
        with ctx.promptly(f"{script!r}"):
            result = await ctx.sh(script, timeout=60)
        actual = (result.exit_code, result.stdout, result.timed_out)
        expect.equal(actual, (0, b"hi\n", False), f"the end of {script!r}")


async def a_leftover_that_floods_delays_nothing(ctx: Context) -> None:
    """A background child that never stops printing keeps its command from ending."""
    with ctx.promptly("the command"):
        result = await ctx.sh("yes & echo $!; exit 6", timeout=60)
    expect.equal(result.exit_code, 6, "the exit code")


async def leftovers_live_on_in_a_live_sandbox(ctx: Context) -> None:
    """A server that was started with '&' dies with the command that started it."""
    marker = ctx.marker()
    await ctx.sandbox.exec(ctx.script(f"sleep {marker} & echo started"))
    await anyio.sleep(0.3)
    expect.true(await ctx.alive(marker, ctx.sandbox), "the left-over did not live")
    await ctx.sandbox.aclose()
    await ctx.gone(marker, "a left-over of a closed sandbox")


async def leftovers_can_go_on_printing(ctx: Context) -> None:
    """A server that logs dies of a closed pipe, or hangs on a full one, after its command."""
    server = "i=0; while [ $i -lt 50 ]; do yes | head -c 8192 || exit; i=$((i+1)); done; touch done"
    result = await ctx.sh(f"({server}) & exit 0")
    expect.equal(result.exit_code, 0, "the exit code")
    await ctx.file_appears(ctx.sandbox, "done")


async def leftovers_die_if_the_command_says_so(ctx: Context) -> None:
    """`leftovers="kill"` is ignored, or returns before they are gone."""
    marker = ctx.marker()
    result = await ctx.sh(f"sleep {marker} & echo hi", leftovers="kill")
    expect.equal((result.exit_code, result.stdout), (0, b"hi\n"), "the end")
    await ctx.is_gone(marker, "the left-over", ctx.sandbox)


async def leftovers_that_left_the_group_die_if_the_command_says_so(ctx: Context) -> None:
    """A left-over that called setsid or forked twice is not found."""
    marker = ctx.marker()
    script = f"(setsid sleep {marker} &) ; (trap '' TERM; (sleep {marker} &)) & echo hi"
    result = await ctx.sh(script, leftovers="kill")
    expect.equal((result.exit_code, result.stdout), (0, b"hi\n"), "the end")
    await ctx.is_gone(marker, "the left-over", ctx.sandbox)


async def one_command_s_leftovers_are_not_another_s(ctx: Context) -> None:
    """Ending what one command left kills the server that another one started."""
    mine, other = ctx.marker(), ctx.marker()
    await ctx.sh(f"sleep {other} & exit 0")
    await ctx.sh(f"sleep {mine} & exit 0", leftovers="kill")
    await ctx.gone(mine, "the left-over", ctx.sandbox)
    expect.true(await ctx.alive(other, ctx.sandbox), "the other command's left-over was killed")


async def a_one_shot_leaves_nothing_running(ctx: Context) -> None:
    """What a one-shot left running goes on after its sandbox."""
    marker = ctx.marker()
    result = await ctx.backend.execute(ctx.script(f"sleep {marker} & echo hi"))
    expect.equal((result.exit_code, result.stdout), (0, b"hi\n"), "the end")
    await ctx.gone(marker, "the left-over")


async def a_one_shot_leaves_no_daemon_running(ctx: Context) -> None:
    """A daemon of a one-shot, out of its group and session, goes on."""
    marker = ctx.marker()
    script = f"(setsid sh -c 'sleep {marker} & sleep {marker}' &) ; sleep 0.1; echo hi"
    result = await ctx.backend.execute(ctx.script(script))
    expect.equal((result.exit_code, result.stdout), (0, b"hi\n"), "the end")
    await ctx.gone(marker, "the daemon")


async def closing_the_sandbox_ends_its_daemons(ctx: Context) -> None:
    """Processes that left their group and session outlive the sandbox."""
    marker = ctx.marker()
    await ctx.sh(f"(setsid sh -c 'sleep {marker} & sleep {marker}' &) ; sleep 0.1")
    expect.true(await ctx.alive(marker, ctx.sandbox), "the daemon did not live")
    await ctx.sandbox.aclose()
    await ctx.gone(marker, "the daemon")


async def a_signal_reaches_the_whole_tree(ctx: Context) -> None:
    """A signal that was sent to a command reaches its main process only, or kills it."""
    script = (
        "sh -c 'trap \"echo child; exit 0\" USR1; echo ready; while :; do sleep 0.05; done' & "
        "trap 'echo main; wait; exit 3' USR1; echo ready; while :; do sleep 0.05; done"
    )
    process = await ctx.sandbox.start(ctx.script(script))
    seen = b""
    with ctx.promptly("the signal"):
        while seen.count(b"ready") < 2:
            chunk = await process.receive()
            seen += chunk.data if chunk else b""
        await process.kill(signal.SIGUSR1)
        async for chunk in process:
            seen += chunk.data
        end = await process.wait()
    expect.true(b"main" in seen and b"child" in seen, f"only {seen!r} was printed")
    expect.equal((end.code, end.reason), (3, ExitReason.EXITED), "the end")


async def killing_a_process_ends_its_tree(ctx: Context) -> None:
    """`kill()` ends the main process only, returns too early, or fails after the end."""
    marker = ctx.marker()
    sandbox = await ctx.create(Limits(kill_grace=ctx.soon))
    process = await sandbox.start(ctx.script(f"sleep {marker} & sleep {marker}"))
    await anyio.sleep(0.2)
    with ctx.promptly("kill"):
        await process.kill()
        end = await process.wait()
    expect.equal((end.code, end.reason), (143, ExitReason.SIGNALED), "the end")
    await ctx.is_gone(marker, "a child", sandbox)
    await process.kill()
    await process.kill(signal.SIGTERM)


async def killing_a_process_ends_those_that_left_its_group(ctx: Context) -> None:
    """`kill()` misses what called setsid, forked twice, ignores TERM or has stopped."""
    marker = ctx.marker()
    script = (
        f"setsid sleep {marker} & "
        f"(setsid sh -c 'trap \"\" TERM; sleep {marker}; sleep {marker}' &) ; "
        # In a session of its own: gVisor hangs up a group of which one stopped and another ended.
        f"setsid sh -c 'kill -STOP $$; sleep {marker}' & sleep {marker}"
    )
    process = await ctx.sandbox.start(ctx.script(script))
    await anyio.sleep(0.3)
    with ctx.promptly("kill"):
        await process.kill()
        await process.wait()
    await ctx.is_gone(marker, "a child", ctx.sandbox)
    await ctx.prints_ok(ctx.sandbox)


async def killing_one_command_leaves_the_others(ctx: Context) -> None:
    """Killing one command's tree kills or stops those of other commands."""
    other = await ctx.sandbox.start(
        ctx.script("i=0; while [ $i -lt 20 ]; do sleep 0.05; i=$((i+1)); done; echo whole")
    )
    for _ in range(5):
        process = await ctx.sandbox.start(Command(["sleep", "60"]))
        await process.kill()
        await process.wait()
    with ctx.promptly("the other command"):
        chunk = await other.receive()
        expect.equal(chunk and chunk.data, b"whole\n", "what the other command printed")
        expect.equal((await other.wait()).code, 0, "its exit code")


CHECKS: tuple[Check, ...] = (
    check(a_leftover_that_holds_the_pipes_delays_nothing, PROGRAMS),
    check(a_leftover_that_floods_delays_nothing, PROGRAMS),
    check(leftovers_live_on_in_a_live_sandbox, PROGRAMS, LIVE),
    check(leftovers_can_go_on_printing, PROGRAMS, FILES),
    check(leftovers_die_if_the_command_says_so, PROGRAMS, LIVE),
    check(leftovers_that_left_the_group_die_if_the_command_says_so, PROGRAMS, LIVE, KILL_TREE),
    check(one_command_s_leftovers_are_not_another_s, PROGRAMS, LIVE),
    check(a_one_shot_leaves_nothing_running, PROGRAMS),
    check(a_one_shot_leaves_no_daemon_running, PROGRAMS, KILL_TREE),
    check(closing_the_sandbox_ends_its_daemons, PROGRAMS, LIVE, KILL_TREE),
    check(a_signal_reaches_the_whole_tree, PROGRAMS, LIVE),
    check(killing_a_process_ends_its_tree, PROGRAMS, LIVE),
    check(killing_a_process_ends_those_that_left_its_group, PROGRAMS, LIVE, KILL_TREE),
    check(killing_one_command_leaves_the_others, PROGRAMS, LIVE),
)
