"""Checks of what programs read."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import anyio

from ringfence.errors import CommandError
from ringfence.models import Chunk, Command

from . import _expect as expect
from ._context import Context
from ._model import LIVE, PROGRAMS, STREAMING, Check, check


class _SourceError(Exception):
    """What a caller's own source of input raises."""


async def without_stdin_there_is_end_of_file(ctx: Context) -> None:
    """A command inherits the service's stdin: it takes its input, or waits for ever."""
    for argv, wanted in ((["sh", "-c", "cat; echo done"], b"done\n"), (["cat"], b"")):
        with ctx.promptly(f"{argv}"):
            result = await ctx.run(Command(argv))
        expect.equal((result.exit_code, result.stdout), (0, wanted), f"the end of {argv}")


async def empty_stdin_is_end_of_file(ctx: Context) -> None:
    """Empty input is taken for no input, and the command waits for ever."""
    for empty in (b"", "", _parts()):
        with ctx.promptly(f"stdin {empty!r}"):
            result = await ctx.run(Command(["cat"], stdin=empty, timeout=10))
        expect.equal((result.exit_code, result.stdout), (0, b""), f"the end with {empty!r}")


async def every_byte_of_stdin_arrives(ctx: Context) -> None:
    """Input is decoded, cut at NUL, or has its line ends changed."""
    data = bytes(range(256)) * 3 + b"\r\n\x04\x1a\n"
    result = await ctx.run(Command(["cat"], stdin=data))
    expect.equal(result.stdout, data, "what came back")
    result = await ctx.run(Command(["cat"], stdin="ünï😀"))
    expect.equal(result.stdout, "ünï😀".encode(), "text")


async def fifty_mebibytes_of_stdin_arrive(ctx: Context) -> None:
    """Large input is put in an argument, kept twice, or deadlocks with the output."""
    data = b"0123456789abcdef" * (50 * 65_536)
    result = await ctx.run(Command(["sha256sum"], stdin=data, timeout=60))
    expect.equal(result.stdout.split()[0].decode(), hashlib.sha256(data).hexdigest(), "the hash")
    result = await ctx.run(Command(["cat"], stdin=data[: 5 * 2**20], output_bytes=6 * 2**20))
    expect.equal(len(result.stdout), 5 * 2**20, "the length of what came back")


async def stdin_from_an_iterable_arrives(ctx: Context) -> None:
    """A stream of input is collected first, loses a part, or is never closed."""
    result = await ctx.run(Command(["cat"], stdin=_parts(b"one ", b"", b"two ", b"x" * 300_000)))
    expect.equal(result.stdout, b"one two " + b"x" * 300_000, "what came back")


async def input_and_output_can_take_turns(ctx: Context) -> None:
    """Input is held back until there is all of it, so that no dialogue is possible."""
    echoed = anyio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"first\n"
        with ctx.promptly("the echo"):
            await echoed.wait()
        yield b"second\n"

    def on_output(chunk: Chunk) -> None:
        if b"first" in chunk.data:
            echoed.set()

    command = Command(["cat"], stdin=source(), timeout=10)
    result = await ctx.sandbox.exec(command, on_output=on_output)
    expect.equal(result.stdout, b"first\nsecond\n", "stdout")


async def a_failing_source_of_stdin_reaches_its_caller(ctx: Context) -> None:
    """An error of the caller's own iterable is lost, or the command waits for the rest."""
    marker = ctx.marker()

    async def source() -> AsyncIterator[bytes]:
        yield b"x"
        raise _SourceError("no more")

    with ctx.promptly("the error"), expect.raising(_SourceError, "the command"):
        await ctx.sh(f"cat >/dev/null; sleep {marker}", stdin=source(), timeout=20)
    await ctx.gone(marker, "the command")


async def stdin_that_nobody_reads_does_no_harm(ctx: Context) -> None:
    """A program that ends without reading its input gives a broken pipe to its caller."""
    data = b"x" * 2**22
    with ctx.promptly("a program that reads nothing"):
        result = await ctx.run(Command(["true"], stdin=data))
    expect.equal((result.exit_code, result.stderr), (0, b""), "its end")
    result = await ctx.sh("exec <&-; sleep 0.2; echo ok", stdin=data, timeout=10)
    expect.equal(result.stdout, b"ok\n", "stdout of one that closes its stdin")
    result = await ctx.sh("head -c 5; exit 7", stdin=data, timeout=10)
    expect.equal((result.exit_code, result.stdout), (7, b"xxxxx"), "one that reads a little")


async def a_source_that_never_ends_does_not_hold_the_result(ctx: Context) -> None:
    """The result waits for the input's end although the program has ended."""

    async def source() -> AsyncIterator[bytes]:
        yield b"x\n"
        await anyio.sleep(60)

    with ctx.promptly("a program that has ended"):
        result = await ctx.sh("head -n 1", stdin=source(), timeout=20)
    expect.equal(result.stdout, b"x\n", "stdout")


async def programs_can_open_their_streams_by_name(ctx: Context) -> None:
    """Streams are sockets or closed to the program's user: /dev/stdin and its kin fail."""
    script = "cat /dev/stdin; echo out >/dev/stdout; echo err >/dev/stderr"
    result = await ctx.sh(script, stdin=b"in\n")
    expect.equal(
        (result.exit_code, result.stdout), (0, b"in\nout\n"), f"({result.stderr!r}) stdout"
    )
    expect.equal(result.stderr, b"err\n", "stderr")


async def a_process_can_be_fed_by_hand(ctx: Context) -> None:
    """Input that is written to a running process arrives late, or its end never does."""
    with expect.raising(CommandError, "a started command with an iterable"):
        await ctx.sandbox.start(Command(["cat"], stdin=_parts(b"x")))
    process = await ctx.sandbox.start(Command(["cat"], timeout=20), stdin_open=True)
    await process.write_stdin(b"by hand\n")
    with ctx.promptly("the process"):
        chunk = await process.receive()
        expect.equal(chunk, Chunk("stdout", b"by hand\n"), "the first chunk")
        await process.close_stdin()
        await process.close_stdin()
        expect.equal(await process.receive(), None, "what follows")
        expect.equal((await process.wait()).code, 0, "the exit code")
    with ctx.promptly("writing to an ended process"):
        await process.write_stdin(b"too late")


async def _parts(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        await anyio.sleep(0.01)
        yield part


CHECKS: tuple[Check, ...] = (
    check(without_stdin_there_is_end_of_file, PROGRAMS),
    check(empty_stdin_is_end_of_file, PROGRAMS),
    check(every_byte_of_stdin_arrives, PROGRAMS),
    check(fifty_mebibytes_of_stdin_arrive, PROGRAMS, timeout=120),
    check(stdin_from_an_iterable_arrives, PROGRAMS),
    check(input_and_output_can_take_turns, PROGRAMS, LIVE, STREAMING),
    check(a_failing_source_of_stdin_reaches_its_caller, PROGRAMS, LIVE),
    check(stdin_that_nobody_reads_does_no_harm, PROGRAMS),
    check(a_source_that_never_ends_does_not_hold_the_result, PROGRAMS),
    check(programs_can_open_their_streams_by_name, PROGRAMS),
    check(a_process_can_be_fed_by_hand, PROGRAMS, LIVE),
)
