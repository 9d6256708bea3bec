"""Checks of making, closing, losing and cancelling sandboxes, and of what is left of them."""

from __future__ import annotations

import contextlib
import os

import anyio

from ringfence.backend import Sandbox
from ringfence.errors import (
    ConfigError,
    CreateError,
    LimitError,
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
    UnsupportedError,
)
from ringfence.models import Command, Limits, Mount, Network, SandboxSpec

from . import _expect as expect
from ._context import Context
from ._model import FILES, ISOLATED, LIVE, PROGRAMS, Check, check

_ENDED = (SandboxClosedError, SandboxLostError)


async def closing_twice_is_the_same_as_once(ctx: Context) -> None:
    """A second or a simultaneous close raises, or returns before the sandbox has ended."""
    sandbox = await ctx.create()
    await sandbox.aclose()
    await sandbox.aclose()
    sandbox = await ctx.create()
    marker = ctx.marker()
    await sandbox.start(ctx.script(f"sleep {marker}"))
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(sandbox.aclose)
    await ctx.is_gone(marker, "its command")
    backend = await ctx.another()
    await backend.aclose()
    await backend.aclose()


async def using_a_closed_sandbox_is_a_typed_error(ctx: Context) -> None:
    """A closed sandbox hangs, runs things somewhere else, or fails with an error of its parts."""
    sandbox = await ctx.create()
    await sandbox.aclose()
    with ctx.promptly("all calls"):
        await expect.each_raises(
            SandboxClosedError,
            sandbox.exec("true"), sandbox.start(Command(["true"])), sandbox.write_file("f", "x"),
            sandbox.read_file("f"), sandbox.list_files(), sandbox.stat("f"), sandbox.make_dir("d"),
            sandbox.remove("f"), sandbox.move("f", "g"), sandbox.ping(),
        )  # fmt: skip
        with expect.raising(SandboxClosedError, "streaming"):
            async with sandbox.stream("true"):
                expect.fail("a stream was opened")


async def using_a_closed_backend_is_a_typed_error(ctx: Context) -> None:
    """A closed backend goes on making sandboxes that nobody will close."""
    backend = await ctx.another()
    await backend.aclose()
    with ctx.promptly("both calls"):
        await expect.each_raises(SandboxClosedError, backend.create(), backend.execute("true"))


async def closing_ends_what_is_running(ctx: Context) -> None:
    """Closing waits for running commands, or leaves them and their callers hanging."""
    sandbox = await ctx.create()
    marker = ctx.marker()
    outcomes: list[object] = []

    async def one() -> None:
        try:
            outcomes.append(await sandbox.exec(ctx.script(f"sleep {marker}")))
        except SandboxError as error:
            outcomes.append(error)

    with ctx.promptly("closing"):
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
            await anyio.sleep(0.3)
            await sandbox.aclose()
    for outcome in outcomes:
        expect.true(isinstance(outcome, _ENDED), f"a running call ended with {outcome!r}")
    await ctx.gone(marker, "a running command")


async def an_error_in_the_block_closes_the_sandbox(ctx: Context) -> None:
    """An exception in the `async with` block leaves the sandbox, or is lost in closing it."""
    marker = ctx.marker()
    with expect.raising(ZeroDivisionError, "the block"):
        async with await ctx.backend.create() as sandbox:
            await sandbox.exec(ctx.script(f"sleep {marker} & exit 0"))
            raise ZeroDivisionError
    await ctx.gone(marker, "its left-over")


async def two_one_shots_share_nothing(ctx: Context) -> None:
    """Files of one call are there in the next: one user sees another's data."""
    places = '"$HOME/mark" mark' + (
        " /tmp/mark /dev/shm/mark" if ISOLATED.met(ctx.capabilities) else ""
    )
    script = f"for f in {places}; do test -e $f && echo $f; : >$f; done; true"
    for turn in ("first", "second"):
        result = await ctx.backend.execute(ctx.script(script))
        expect.equal((result.exit_code, result.stdout), (0, b""), f"what the {turn} call finds")


async def two_sandboxes_share_nothing(ctx: Context) -> None:
    """Two live sandboxes have the same workspace, home or temporary files."""
    one, other = await ctx.create(), await ctx.create()
    expect.true(one.id != other.id, "both have the same id")
    expect.true(one.id in repr(one), f"the id is not in {one!r}")
    await one.write_file("f", "x")
    expect.equal((await other.list_files()).total, 0, "the other's files")
    places = '"$HOME/mark" "$TMPDIR/mark" mark'
    await one.exec(ctx.script(f"for f in {places}; do : >$f; done"))
    result = await other.exec(ctx.script(f"ls {places} 2>/dev/null"))
    expect.equal(result.stdout, b"", "the other's marks")


async def a_workspace_lasts_as_long_as_its_sandbox(ctx: Context) -> None:
    """Each command gets a workspace of its own, or files of one are lost to the next."""
    await ctx.sh_ok("echo one >f; mkdir -p $HOME/d; echo two >$HOME/d/g; echo three >$TMPDIR/h")
    wanted = "one\ntwo\nthree\n"
    expect.equal(await ctx.sh_ok("cat f $HOME/d/g $TMPDIR/h"), wanted, "what the next command sees")


async def ten_sandboxes_can_be_made_at_once(ctx: Context) -> None:
    """Sandboxes are made one after the other, or get into each other's way."""
    results = {}

    async def one(number: int) -> None:
        async with await ctx.backend.create() as sandbox:
            await sandbox.write_file("f", str(number))
            results[number] = (await sandbox.exec("cat", ["f"])).stdout_text

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(one, number)
    expect.equal(results, {number: str(number) for number in range(10)}, "what they print")


async def a_destroyed_sandbox_is_lost_for_good(ctx: Context) -> None:
    """A sandbox that was given up goes on running, or later calls get it back empty."""
    sandbox = await ctx.create()
    marker = ctx.marker()
    lost: list[SandboxLostError] = []

    async def one() -> None:
        with expect.raising(SandboxLostError, "a running command") as caught:
            await sandbox.exec(ctx.script(f"sleep {marker}"))
        lost.extend(caught)

    with ctx.promptly("all of it"):
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            await anyio.sleep(0.3)
            await sandbox._destroy("the suite says so")
        await ctx.gone(marker, "its command")
        lost += await expect.each_raises(
            SandboxLostError,
            sandbox.exec("true"), sandbox.read_file("f"), sandbox.list_files(), sandbox.ping(),
        )  # fmt: skip
        expect.equal({error.cause for error in lost}, {"the suite says so"}, "the causes")
        await sandbox.aclose()
    expect.equal((await ctx.run(Command(["echo", "ok"]))).stdout, b"ok\n", "another sandbox")


async def a_ping_is_answered_beside_a_command(ctx: Context) -> None:
    """A sandbox that is busy, or asked by many at once, is taken for a dead one."""
    sandbox = await ctx.create()
    for script in ("sleep 300", "while :; do :; done", "yes"):
        async with sandbox.stream(ctx.script(script, timeout=300)):
            await anyio.sleep(0.2)
            async with anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(lambda: sandbox.ping(timeout=ctx.soon))
    await sandbox.ping()


async def a_sandbox_ends_at_its_maximum_age(ctx: Context) -> None:
    """A sandbox that nobody closes lives for ever."""
    marker = ctx.marker()
    for age in (1.0, ctx.soon / 3):  # on a busy machine it may be too old before its command starts
        sandbox = await ctx.create(Limits(max_age=age))
        with contextlib.suppress(SandboxLostError):
            process = await sandbox.start(ctx.script(f"echo up; sleep {marker}"))
            expect.true(await process.receive() is not None, "its command did not start")
            break
    else:
        expect.fail(f"its command did not start within {age:g} s")
    with ctx.promptly("its end"), expect.raising(SandboxLostError, "waiting for its command"):
        await process.wait()
    await ctx.gone(marker, "a command of a sandbox that is too old")
    with expect.raising(SandboxLostError, "using it"):
        await sandbox.exec("true")


async def what_is_not_to_be_had_is_refused(ctx: Context) -> None:
    """A network or a mount that a backend does not have is left out without a word."""
    spec = SandboxSpec(network=Network("no-such-network"))
    await expect.each_raises(
        UnsupportedError, ctx.backend.create(spec), ctx.backend.execute("true", spec=spec)
    )
    source = ctx.host_dir()
    spec = SandboxSpec(mounts=(Mount(source, "/mnt/shown"),))
    if not ctx.capabilities.mounts:
        await expect.each_raises(UnsupportedError, ctx.backend.create(spec))
    for path in ("relative", "/a/../b", "/a\0b"):
        with expect.raising(ConfigError, f"a mount of {path!r}"):
            Mount(path)
    with expect.raising(LimitError, "a limit of zero"):
        await ctx.create(Limits(pids=0))


async def mounts_are_shown_read_only(ctx: Context) -> None:
    """A mount can be written, shows something else, or a missing one is left out."""
    if not ctx.capabilities.mounts:
        raise expect.NotApplicable("mounts")
    source = ctx.host_dir()
    with open(os.path.join(source, "f"), "w") as file:
        file.write("shown")
    mounts = (Mount(source, "/mnt/shown"), Mount(os.path.join(source, "f"), "/mnt/file"))
    sandbox = await ctx.create(mounts=mounts)
    script = "cat /mnt/shown/f /mnt/file; echo x >/mnt/shown/f; echo x >/mnt/file; : >/mnt/shown/g"
    result = await sandbox.exec(ctx.script(script + "; true"))
    expect.equal(result.stdout, b"shownshown", "what is shown")
    expect.equal(os.listdir(source), ["f"], "the files of the mounted directory")
    with open(os.path.join(source, "f")) as file:
        expect.equal(file.read(), "shown", "the content of the mounted file")
    with expect.raising((CreateError, ConfigError), "a mount whose source is missing"):
        await ctx.create(mounts=(Mount(os.path.join(source, "missing"), "/mnt/x"),))


async def probing_and_reaping_leave_the_living_alone(ctx: Context) -> None:
    """A probe or a sweep ends the sandboxes of this process, or of another live one."""
    marker = ctx.marker()
    await ctx.sandbox.start(ctx.script(f"sleep {marker}"))
    await ctx.appears(marker, ctx.sandbox)
    await ctx.sandbox.write_file("f", "x")
    other = await ctx.another()
    probe = await other.probe()
    expect.true(probe.ok, f"the probe of a usable backend is {probe}")
    reaped = await other.reap()
    expect.true(isinstance(reaped, int), f"reap returned {reaped!r}")
    await ctx.backend.reap()
    expect.true(await ctx.alive(marker, ctx.sandbox), "the running command is gone")
    expect.equal(await ctx.sandbox.read_file("f"), b"x", "the file")


async def capabilities_say_what_they_mean(ctx: Context) -> None:
    """Capabilities change with time, or differ between a backend and its sandboxes."""
    able = ctx.capabilities
    expect.equal(ctx.sandbox.capabilities, able, "the sandbox's capabilities")
    expect.equal(ctx.sandbox.backend, ctx.backend.name, "the sandbox's backend")
    expect.true(able.network_modes, "there is not one network mode")
    for note in able.notes:
        expect.true(note.strip(), "a note is empty")


async def two_backends_do_not_touch_one_another(ctx: Context) -> None:
    """Closing one backend ends the sandboxes of another."""
    other = await ctx.another()
    sandbox: Sandbox = await other.create()
    marker = ctx.marker()
    await ctx.sandbox.start(ctx.script(f"sleep {marker}"))
    await ctx.appears(marker, ctx.sandbox)
    await sandbox.aclose()
    await other.aclose()
    expect.true(await ctx.alive(marker, ctx.sandbox), "the command of the first one is gone")
    await ctx.prints_ok(ctx.sandbox)


CHECKS: tuple[Check, ...] = (
    check(closing_twice_is_the_same_as_once, LIVE, PROGRAMS),
    check(using_a_closed_sandbox_is_a_typed_error, FILES),
    check(using_a_closed_backend_is_a_typed_error),
    check(closing_ends_what_is_running, LIVE, PROGRAMS),
    check(an_error_in_the_block_closes_the_sandbox, LIVE, PROGRAMS),
    check(two_one_shots_share_nothing, PROGRAMS),
    check(two_sandboxes_share_nothing, FILES, PROGRAMS),
    check(a_workspace_lasts_as_long_as_its_sandbox, LIVE, PROGRAMS),
    check(ten_sandboxes_can_be_made_at_once, FILES, PROGRAMS),
    check(a_destroyed_sandbox_is_lost_for_good, FILES, PROGRAMS),
    check(a_ping_is_answered_beside_a_command, LIVE, PROGRAMS),
    check(a_sandbox_ends_at_its_maximum_age, LIVE, PROGRAMS),
    check(what_is_not_to_be_had_is_refused, LIVE),
    check(mounts_are_shown_read_only, LIVE, PROGRAMS),
    check(probing_and_reaping_leave_the_living_alone, FILES, PROGRAMS),
    check(capabilities_say_what_they_mean, LIVE),
    check(two_backends_do_not_touch_one_another, LIVE, PROGRAMS),
)
