"""Checks of commands with a terminal."""

from __future__ import annotations

import anyio

from ringfence.errors import CommandError, UnsupportedError
from ringfence.models import Command, ExitReason, TerminalSize
from ringfence.process import Process

from . import _expect as expect
from ._context import Context
from ._model import KILL_TREE, LIVE, TERMINAL, Check, check


async def a_terminal_is_had_or_refused(ctx: Context) -> None:
    """A command that needs a terminal is given pipes, and nobody is told."""
    command = _command("test -t 0 && test -t 1 && test -t 2")
    if ctx.capabilities.terminal:
        result = await ctx.run(command)
        expect.equal(result.exit_code, 0, "the exit code of a test for a terminal")
        return
    with expect.raising(UnsupportedError, "a terminal that the capabilities do not have"):
        await ctx.run(command)


async def a_terminal_is_the_session_s_own(ctx: Context) -> None:
    """Programs that ask /dev/tty find none, or somebody else's, and a key signals nobody."""
    result = await ctx.run(_command("stty size </dev/tty; echo err >&2; exit 7", 33, 101))
    expect.equal(result.exit_code, 7, "the exit code")
    expect.equal(_lines(result.stdout), [b"33 101", b"err"], "what came as stdout")
    expect.equal(result.stderr, b"", "stderr")
    result = await ctx.run(_command("test -t 0 || echo plain"))
    expect.equal(_lines(result.stdout), [], "what another command's terminal said")
    result = await ctx.sh("test -t 0 || test -t 1 || test -t 2 || echo plain")
    expect.equal(result.stdout, b"plain\n", "a command without a terminal")


async def keys_do_what_they_do(ctx: Context) -> None:
    """What is typed arrives late or not at all, or Ctrl-C is a byte like others."""
    script = "trap 'echo caught; exit 9' INT; read line; echo got $line; while :; do sleep 1; done"
    process = await ctx.sandbox.start(_command(script), stdin_open=True)
    with ctx.promptly("the dialogue"):
        await process.write_stdin(b"some words\n")
        await _read_until(process, b"got some words")
        await process.write_stdin(b"\x03")
        await _read_until(process, b"caught")
        expect.equal((await process.wait()).code, 9, "the exit code")


async def a_terminal_s_new_size_is_told(ctx: Context) -> None:
    """A person's window changes its size, and the program goes on with the old one."""
    script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.1; done"
    process = await ctx.sandbox.start(_command(script))
    with ctx.promptly("the new size"):
        await _read_until(process, b"ready")
        with expect.raising(CommandError, "a terminal without a column"):
            await process.resize(24, 0)
        await process.resize(50, 132)
        await _read_until(process, b"50 132")
        await process.wait()
    await process.resize(10, 10)  # after the end: nothing
    plain = await ctx.sandbox.start(Command(["sh", "-c", "read x"]), stdin_open=True)
    with expect.raising(CommandError, "a new size without a terminal"):
        await plain.resize(10, 10)
    await plain.kill()
    await plain.wait()


async def a_terminal_s_input_ends(ctx: Context) -> None:
    """A command with a terminal waits for ever for input that nobody will type."""
    with ctx.promptly("a command without input"):
        result = await ctx.run(_command("cat; echo over"))
    expect.true(b"over" in result.stdout, f"it was not told that there is none: {result.stdout!r}")
    command = Command(
        ["sh", "-c", "cat >got; wc -c <got"], stdin=b"a line\nopen", terminal=TerminalSize()
    )
    with ctx.promptly("a command with input"):
        result = await ctx.run(command)
    expect.true(b"11" in result.stdout, f"what was typed is not what was read: {result.stdout!r}")


async def all_of_a_terminal_s_output_arrives(ctx: Context) -> None:
    """Output is lost when the program ends, comes out of order, or is not held to its cap."""
    result = await ctx.run(_command("seq 1 30000; echo end"))
    wanted = [*(str(n).encode() for n in range(1, 30001)), b"end"]
    lines = result.stdout.split()
    right = next((n for n, line in enumerate(lines) if line not in wanted[n : n + 1]), len(lines))
    expect.true(lines == wanted, f"of {len(wanted)} lines the first {right} came as they should")
    command = _command("seq 1 30000")
    result = await ctx.run(
        Command(command.argv, terminal=command.terminal, output_bytes=1000, timeout=20)
    )
    expect.equal((len(result.stdout), result.stdout_truncated), (1000, True), "what was kept")


async def who_keeps_a_terminal_does_not_hold_its_end(ctx: Context) -> None:
    """A child that keeps the terminal, or floods it, keeps the command from ending."""
    for rest in (
        "sleep 300",
        "(trap '' HUP; exec sleep 300)",
        "(trap '' HUP; while :; do echo flood; done)",
    ):
        with ctx.promptly(f"a command that leaves {rest}"):
            result = await ctx.run(
                Command(["sh", "-c", f"{rest} & echo last"], terminal=TerminalSize(), timeout=20)
            )
        expect.equal((result.exit_code, b"last" in result.stdout), (0, True), "the end")


async def a_terminal_s_command_is_killed_in_time(ctx: Context) -> None:
    """A program that ignores the keys and the hang-up outlives its time."""
    script = "trap '' HUP INT TERM; stty raw -echo; while :; do sleep 1; done"
    with ctx.promptly("a command with a second to live"):
        result = await ctx.run(Command(["sh", "-c", script], terminal=TerminalSize(), timeout=1))
    expect.equal(result.exit_reason, ExitReason.TIMED_OUT, "why it ended")


async def many_terminals_at_once_end(ctx: Context) -> None:
    """Terminals are not given back, or get in one another's way."""

    async def one(number: int) -> None:
        result = await ctx.run(_command(f"echo {number}", columns=number + 1))
        expect.equal(_lines(result.stdout), [str(number).encode()], "what one of many wrote")

    for _ in range(5):
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(one, number)


def _command(script: str, rows: int = 24, columns: int = 80) -> Command:
    return Command(["sh", "-c", script], terminal=TerminalSize(rows, columns), timeout=20)


def _lines(output: bytes) -> list[bytes]:
    """Return the lines, without the echo of the end of input."""
    return output.replace(b"^D\b\b", b"").split(b"\r\n")[:-1]


async def _read_until(process: Process, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        chunk = await process.receive()
        if chunk is None:
            expect.fail(f"it ended after {seen!r}, without {wanted!r}")
        seen += chunk.data


CHECKS: tuple[Check, ...] = (
    check(a_terminal_is_had_or_refused),
    check(a_terminal_is_the_session_s_own, TERMINAL),
    check(keys_do_what_they_do, TERMINAL, LIVE),
    check(a_terminal_s_new_size_is_told, TERMINAL, LIVE),
    check(a_terminal_s_input_ends, TERMINAL),
    check(all_of_a_terminal_s_output_arrives, TERMINAL),
    check(who_keeps_a_terminal_does_not_hold_its_end, TERMINAL, LIVE),
    check(a_terminal_s_command_is_killed_in_time, TERMINAL, KILL_TREE),
    check(many_terminals_at_once_end, TERMINAL, timeout=120),
)
