"""Checks of running programs: how they end, what they inherit, and several at once."""

from __future__ import annotations

import time

import anyio

from ringfence.models import Command, ExitReason, shell

from . import _expect as expect
from ._context import Context
from ._model import FILES, HOST_KERNEL, LIVE, PROGRAMS, Check, check


async def every_exit_code_comes_back(ctx: Context) -> None:
    """Exit codes are cut, signed, or taken for a signal or a fault of the sandbox."""
    wrong = {}
    for code in range(256):
        result = await ctx.run(Command(["sh", "-c", f"exit {code}"]))
        if (result.exit_code, result.exit_reason) != (code, ExitReason.EXITED):
            wrong[code] = (result.exit_code, result.exit_reason.value)
    expect.equal(wrong, {}, "what differs")


async def a_command_that_is_not_found_is_127(ctx: Context) -> None:
    """A missing program is an exception, another exit code, or text of ours on stdout."""
    for argv in (["no-such-command-here"], ["./no-such-file"], ["/no/such/dir/x"]):
        result = await ctx.run(Command(argv))
        wanted = (127, b"", ExitReason.EXITED)
        expect.equal((result.exit_code, result.stdout, result.exit_reason), wanted, f"{argv}")
        expect.true(argv[0].encode() in result.stderr, f"stderr does not name {argv[0]}")
    result = await ctx.sh("no-such-command-here")
    expect.equal((result.exit_code, result.stdout), (127, b""), "the shell's own")


async def a_file_that_is_not_executable_is_126(ctx: Context) -> None:
    """A program without the right to run is an exception, or reported as not found."""
    await ctx.sandbox.write_file("plain", "#!/bin/sh\necho ran\n")
    await ctx.sandbox.make_dir("dir")
    await ctx.sandbox.write_file("noise", b"\x01\x02no program\n", mode=0o755)
    for name in ("./plain", "./dir", "./noise"):
        result = await ctx.run(Command([name]))
        expect.equal(
            (result.exit_code, result.stdout), (126, b""), f"exit code and stdout of {name}"
        )
        expect.true(result.stderr, f"stderr says nothing of {name}")


async def a_missing_interpreter_is_127(ctx: Context) -> None:
    """A script whose interpreter is not there looks like a fault of the sandbox."""
    await ctx.sandbox.write_file("script", "#!/no/such/interpreter\n", mode=0o755)
    result = await ctx.run(Command(["./script"]))
    expect.equal((result.exit_code, result.stdout), (127, b""), "exit code and stdout")
    expect.true(result.stderr, "stderr says nothing")


async def a_just_written_script_can_be_run(ctx: Context) -> None:
    """Files made for the sandbox stay open somewhere: running them fails with 'text busy'."""

    async def write_and_run(number: int) -> None:
        await ctx.sandbox.write_file(f"s{number}", f"#!/bin/sh\necho {number}\n", mode=0o755)
        result = await ctx.run(Command([f"./s{number}"]))
        expect.equal(result.stdout, f"{number}\n".encode(), f"script {number}: {result.stderr!r}")

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(write_and_run, number)


async def the_shell_falls_back_to_what_is_there(ctx: Context) -> None:
    """`shell()` fails where there is no bash, or loses its script on the way."""
    result = await ctx.run(shell('echo "$0 one" && exit 4', env={"A": "1"}))
    expect.true(b"one" in result.stdout, f"stdout is {result.stdout!r}")
    expect.equal(result.exit_code, 4, "the exit code")
    result = await ctx.run(Command(["no-such-shell", "-c", "echo $1", "-", "x"], fallback="sh"))
    expect.equal((result.exit_code, result.stdout), (0, b"x\n"), "what the fallback did")


async def death_by_signal_is_128_and_its_number(ctx: Context) -> None:
    """A signal comes back as a negative code, as 0, or as a timeout, and late."""
    for name, number in (("TERM", 15), ("KILL", 9), ("SEGV", 11), ("ABRT", 6), ("HUP", 1)):
        with ctx.promptly(f"death by {name}"):
            result = await ctx.sh(f"ulimit -c 0; kill -{name} $$; sleep 60")
        wanted = (128 + number, ExitReason.SIGNALED, False)
        actual = (result.exit_code, result.exit_reason, result.timed_out)
        expect.equal(actual, wanted, f"the end by SIG{name}")


async def codes_above_128_are_not_taken_for_signals(ctx: Context) -> None:
    """The reason is guessed from the exit code, which a program can set itself."""
    for code in (124, 137, 143, 126, 127):
        result = await ctx.sh(f"exit {code}")
        wanted = (code, ExitReason.EXITED)
        expect.equal((result.exit_code, result.exit_reason), wanted, f"exit {code}")
    result = await ctx.sh("sh -c 'kill -KILL $$'; echo after $?")
    expect.equal(result.stdout, b"after 137\n", "stdout")
    expect.equal((result.exit_code, result.exit_reason), (0, ExitReason.EXITED), "the shell's end")


async def commands_keep_nothing_of_ours_ignored(ctx: Context) -> None:
    """Signals that the host ignores or blocks stay so in programs: a broken pipe goes unseen."""
    # Without a shell between, which ignores signals of its own accord.
    status = (await ctx.run(Command(("cat", "/proc/self/status")))).stdout_text
    lines = [line.split() for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn"))]
    masks = {name: int(mask, 16) for name, mask in lines}
    masks["SigIgn:"] &= ~(0b11 << 31)  # the C library's own two, which its spawn leaves so
    expect.equal(masks, {"SigBlk:": 0, "SigIgn:": 0}, "blocked and ignored signals")
    with ctx.promptly("a pipeline that its reader ends"):
        result = await ctx.sh("yes | head -n 1; echo done", timeout=10)
    expect.equal(result.stdout, b"y\ndone\n", "stdout")


async def commands_have_no_terminal(ctx: Context) -> None:
    """Programs get the host's terminal: they can read keys, push input, or wait for it."""
    result = await ctx.sh("test -t 0 || test -t 1 || test -t 2 || : </dev/tty")
    expect.true(not result.ok, "a terminal can be reached")


async def two_commands_run_at_once(ctx: Context) -> None:
    """Commands of one sandbox wait for one another."""
    met: list[bytes] = []

    async def meet(mine: str, other: str) -> None:
        script = ': >"$1"; until test -e "$2"; do sleep 0.05; done; echo met'
        met.append((await ctx.sandbox.exec(ctx.script(script, mine, other))).stdout)

    async with anyio.create_task_group() as group:
        group.start_soon(meet, "one", "two")
        group.start_soon(meet, "two", "one")
    expect.equal(met, [b"met\n"] * 2, "what two commands print that wait for one another")


async def sixteen_commands_keep_their_output_apart(ctx: Context) -> None:
    """Output or exit codes of commands that run together get mixed up."""
    results = {}

    async def one(number: int) -> None:
        script = f"yes {number:02d} | head -c 300000; echo e{number} >&2; exit {number}"
        results[number] = await ctx.sandbox.exec(ctx.script(script))

    async with anyio.create_task_group() as group:
        for number in range(16):
            group.start_soon(one, number)
    for number, result in results.items():
        expect.equal(result.exit_code, number, f"the exit code of command {number}")
        expect.equal(result.stderr, f"e{number}\n".encode(), f"stderr of command {number}")
        expect.equal(result.stdout, (f"{number:02d}\n" * 100_000).encode(), f"stdout of {number}")


async def three_hundred_commands_in_a_row_work(ctx: Context) -> None:
    """Something runs out after many commands: descriptors, zombies, ids, threads."""
    for number in range(300):
        result = await ctx.sandbox.exec("true")
        expect.equal(result.exit_code, 0, f"the exit code of command {number}: {result.stderr!r}")


async def the_result_says_what_was_in_force(ctx: Context) -> None:
    """Duration, timeout or limits of a result are missing or made up."""
    began = time.monotonic()
    result = await ctx.sh("sleep 0.3", timeout=20)
    took = time.monotonic() - began
    expect.true(0.25 <= result.duration_s <= took, f"duration_s is {result.duration_s} of {took}")
    expect.equal(result.timeout, 20.0, "timeout")
    expect.equal(result.enforced, ctx.capabilities.limits, "enforced")
    if (cpu := result.usage.cpu_s) is not None:
        expect.true(0 <= cpu < 0.3, f"CPU seconds of a sleep are {cpu}")


async def used_cpu_time_is_told_where_it_can_be(ctx: Context) -> None:
    """The CPU time or memory of a result is that of another process, or in other units."""
    result = await ctx.sh("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
    cpu, memory = result.usage.cpu_s, result.usage.peak_memory_bytes
    if cpu is None and memory is None:
        raise expect.NotApplicable("usage is not told")
    if cpu is not None:
        expect.true(0.02 < cpu <= result.duration_s * 1.5 + 0.1, f"{cpu} CPU seconds for a loop")
    if memory is not None:
        expect.true(200_000 < memory < 2**28, f"a shell's peak memory is {memory} bytes")


CHECKS: tuple[Check, ...] = (
    check(every_exit_code_comes_back, PROGRAMS, LIVE),
    check(a_command_that_is_not_found_is_127, PROGRAMS),
    check(a_file_that_is_not_executable_is_126, PROGRAMS, FILES),
    check(a_missing_interpreter_is_127, PROGRAMS, FILES),
    check(a_just_written_script_can_be_run, PROGRAMS, FILES),
    check(the_shell_falls_back_to_what_is_there, PROGRAMS),
    check(death_by_signal_is_128_and_its_number, PROGRAMS),
    check(codes_above_128_are_not_taken_for_signals, PROGRAMS),
    check(commands_keep_nothing_of_ours_ignored, PROGRAMS, HOST_KERNEL),
    check(commands_have_no_terminal, PROGRAMS),
    check(two_commands_run_at_once, PROGRAMS, LIVE),
    check(sixteen_commands_keep_their_output_apart, PROGRAMS, LIVE),
    check(three_hundred_commands_in_a_row_work, PROGRAMS, LIVE),
    check(the_result_says_what_was_in_force, PROGRAMS),
    check(used_cpu_time_is_told_where_it_can_be, PROGRAMS),
)
