"""Checks of what programs print: bytes, text, order, caps, floods, and who reads it."""

from __future__ import annotations

import anyio

from ringfence.models import Chunk, Command, Result

from . import _expect as expect
from ._context import Context
from ._host import memory_growth
from ._model import LIVE, PROGRAMS, SEPARATE, STREAMING, Check, check

_MEBIBYTE = 2**20


class _CallbackError(Exception):
    """What a caller's own callback raises."""


async def characters_survive_chunk_borders(ctx: Context) -> None:
    """Each chunk is decoded alone: a split character turns into two U+FFFD, or raises."""
    script = """
        printf x; yes "$(printf '\\303\\251')" | head -n 40000 | tr -d '\\n'
        { yes "$(printf '\\360\\237\\230\\200')" | head -n 40000 | tr -d '\\n'; } >&2
    """
    wanted = {"stdout": "x" + "é" * 40_000, "stderr": "😀" * 40_000}
    result, streamed = await _streamed(ctx, script)
    expect.equal(result.stdout_text, wanted["stdout"], "stdout")
    expect.equal(result.stderr_text, wanted["stderr"], "stderr")
    expect.equal(streamed, wanted, "the joined chunks")
    script = 'for o in 360 237 230 200; do printf "\\\\$o"; sleep 0.05; done'
    _, streamed = await _streamed(ctx, script)
    expect.equal(streamed["stdout"], "😀", "a character written byte by byte")


async def bytes_that_are_no_text_are_kept(ctx: Context) -> None:
    """A byte that is not UTF-8 ends the call, or vanishes; a last half character is lost."""
    result, streamed = await _streamed(ctx, "printf '\\377\\000\\376'; printf '\\303' >&2")
    expect.equal((result.stdout, result.stderr), (b"\xff\x00\xfe", b"\xc3"), "the bytes")
    expect.equal(result.stdout_text, "\ufffd\x00\ufffd", "stdout as text")
    expect.equal(streamed, {"stdout": "\ufffd\x00\ufffd", "stderr": "\ufffd"}, "the chunks' text")


async def line_ends_are_left_alone(ctx: Context) -> None:
    """A terminal or a text mode adds carriage returns, or takes them away."""
    result = await ctx.sh("printf 'a\\nb\\r\\nc\\r'")
    expect.equal(result.stdout, b"a\nb\r\nc\r", "stdout")


async def the_two_streams_are_kept_apart(ctx: Context) -> None:
    """Stderr is mixed into stdout."""
    result = await ctx.sh("i=0; while [ $i -lt 500 ]; do echo o; echo e >&2; i=$((i+1)); done")
    expect.equal((result.stdout, result.stderr), (b"o\n" * 500, b"e\n" * 500), "the streams")


async def output_arrives_while_the_program_runs(ctx: Context) -> None:
    """Output is collected first and handed out at the end, or in another order."""
    script = "echo one; read line; echo two >&2; read line; echo three"
    process = await ctx.sandbox.start(ctx.script(script), stdin_open=True)
    for wanted in (
        Chunk("stdout", b"one\n"),
        Chunk("stderr", b"two\n"),
        Chunk("stdout", b"three\n"),
    ):
        with ctx.promptly("what it prints"):
            expect.equal(await process.receive(), wanted, "what came before the program went on")
        await process.write_stdin(b"go on\n")
    await process.wait()


async def a_slow_reader_loses_nothing(ctx: Context) -> None:
    """Output that its reader is slow to take is dropped, or fills the host's memory."""
    total = 4 * _MEBIBYTE
    seen = {"stdout": bytearray(), "stderr": bytearray()}

    async def on_output(chunk: Chunk) -> None:
        if len(seen["stdout"]) < total // 2:
            await anyio.sleep(0.005)
        seen[chunk.stream].extend(chunk.data)

    script = f"yes 0123456 | head -c {total}; echo end >&2; exit 3"
    command = ctx.script(script, output_bytes=2 * total)
    result = await ctx.sandbox.exec(command, on_output=on_output)
    expect.equal((result.exit_code, len(result.stdout)), (3, total), "exit code and length")
    expect.true(result.stdout == b"0123456\n" * (total // 8), "stdout is not what was written")
    expect.true(seen["stdout"] == result.stdout, "the chunks of stdout are not the result's")
    expect.equal(bytes(seen["stderr"]), b"end\n", "the chunks of stderr")


async def a_slow_reader_holds_up_nobody_else(ctx: Context) -> None:
    """One command whose output nobody takes stops all the others of its sandbox."""
    stuck = await ctx.sandbox.start(ctx.script("yes", timeout=120))
    with ctx.promptly("the first output"):
        await stuck.receive()
    await anyio.sleep(0.2)
    with ctx.promptly("another command"):
        result = await ctx.sandbox.exec("echo", ["ok"])
    expect.equal(result.stdout, b"ok\n", "its stdout")
    with ctx.promptly("killing the first"):
        await stuck.kill()
        await stuck.wait()


async def an_error_in_the_callback_stops_the_command(ctx: Context) -> None:
    """An exception of the caller's callback is swallowed, or the command runs on."""
    marker = ctx.marker()

    def on_output(chunk: Chunk) -> None:
        raise _CallbackError(chunk.data)

    with ctx.promptly("the error"), expect.raising(_CallbackError, "the call"):
        await ctx.sandbox.exec(ctx.script(f"echo hi; sleep {marker}"), on_output=on_output)
    await ctx.gone(marker, "the command", ctx.sandbox)
    await ctx.prints_ok(ctx.sandbox)


async def leaving_a_stream_early_kills_the_command(ctx: Context) -> None:
    """A command whose reader has left goes on for ever."""
    marker = ctx.marker()
    async with ctx.sandbox.stream(ctx.script(f"echo hi; sleep {marker}")) as run:
        async for chunk in run:
            expect.equal(chunk.data, b"hi\n", "the first chunk")
            break
    await ctx.gone(marker, "the command", ctx.sandbox)


async def a_flood_of_output_is_drained_and_counted(ctx: Context) -> None:
    """A flood fills the host's memory, or stops at the cap and blocks the program for ever."""
    script = "head -c 2000000000 /dev/zero | tr '\\0' y; echo tail >&2; exit 3"
    with memory_growth() as grown:
        result = await ctx.sh(script, timeout=300)
    expect.equal(result.exit_code, 3, "the exit code")
    expect.equal((len(result.stdout), result.stdout[-2:]), (_MEBIBYTE, b"yy"), "what was kept")
    expect.equal((result.stderr, result.stderr_truncated), (b"tail\n", False), "stderr")
    expect.equal(result.stdout_bytes, 2_000_000_000, "the count")
    expect.true(result.stdout_truncated, "stdout_truncated is false")
    expect.true(grown.bytes < 50_000_000, f"the host's memory grew by {grown.bytes} bytes")


async def the_cap_is_exact(ctx: Context) -> None:
    """The cap is off by some bytes, says 'truncated' when nothing is missing, or counts both."""
    for length, cap in ((1000, 1000), (1001, 1000), (999, 1000), (5, 0), (0, 0), (70_000, 65_536)):
        script = f"yes | head -c {length}; yes n | head -c {length} >&2"
        result = await ctx.sh(script, output_bytes=cap)
        kept = min(length, cap)
        what = f"with {length} bytes and a cap of {cap}"
        expect.equal((len(result.stdout), len(result.stderr)), (kept, kept), f"the kept {what}")
        expect.equal((result.stdout_bytes, result.stderr_bytes), (length,) * 2, f"counts {what}")
        expect.equal(result.stdout_truncated, length > cap, f"stdout_truncated {what}")
        expect.equal(result.stderr_truncated, length > cap, f"stderr_truncated {what}")


async def the_callback_gets_nothing_past_the_cap(ctx: Context) -> None:
    """What is streamed is not what is kept: a flood reaches the reader past the cap."""
    seen = bytearray()
    command = ctx.script("yes | head -c 3000000", output_bytes=100_000)
    result = await ctx.sandbox.exec(command, on_output=lambda chunk: seen.extend(chunk.data))
    expect.equal(len(seen), 100_000, "what was streamed")
    expect.true(bytes(seen) == result.stdout, "what was streamed is not what was kept")


async def both_streams_can_flood_at_once(ctx: Context) -> None:
    """A full pipe of one stream blocks the other: a deadlock."""
    script = "yes o | head -c 20000000 & yes e | head -c 20000000 >&2; wait; echo end"
    result = await ctx.sh(script, timeout=60)
    counts = (result.exit_code, result.stdout_bytes, result.stderr_bytes)
    expect.equal(counts, (0, 20_000_004, 20_000_000), "exit code and counts")


async def closed_streams_are_not_the_end(ctx: Context) -> None:
    """End of file on both streams is taken for the end of the program."""
    with ctx.promptly("the command"):
        result = await ctx.sh("exec >&- 2>&-; sleep 0.4; exit 5", timeout=10)
    expect.equal((result.exit_code, result.timed_out), (5, False), "the end")
    expect.true(result.duration_s > 0.35, f"the result came after {result.duration_s} s")


async def all_that_was_printed_before_the_end_is_kept(ctx: Context) -> None:
    """The end of the program overtakes its last output."""
    for number in range(20):
        result = await ctx.sh(f"yes {number} | head -c 60000; echo last >&2")
        expect.equal((result.stdout_bytes, result.stderr), (60_000, b"last\n"), f"run {number}")


async def a_process_hands_out_chunks_and_its_end(ctx: Context) -> None:
    """The primitive below `exec` loses output, or can't be asked twice how it ended."""
    process = await ctx.sandbox.start(ctx.script("echo out; echo err >&2; exit 9"))
    with ctx.promptly("the command"):
        seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        async for chunk in process:
            seen[chunk.stream] += chunk.data
        expect.equal(seen, {"stdout": b"out\n", "stderr": b"err\n"}, "the chunks")
        expect.equal(await process.receive(), None, "what follows the last chunk")
        expect.equal((await process.wait()).code, 9, "the exit code")
        expect.equal((await process.wait()).code, 9, "the exit code, asked again")
        await process.kill()
        process = await ctx.sandbox.start(Command(["sh", "-c", "yes | head -c 3000000; exit 4"]))
        expect.equal((await process.wait()).code, 4, "the code of one whose output nobody reads")


async def _streamed(ctx: Context, script: str) -> tuple[Result, dict[str, str]]:
    """Run a script and return its result and the joined text of its chunks."""
    joined = {"stdout": "", "stderr": ""}

    def on_output(chunk: Chunk) -> None:
        joined[chunk.stream] += chunk.text

    return await ctx.sandbox.exec(ctx.script(script), on_output=on_output), joined


CHECKS: tuple[Check, ...] = (
    check(characters_survive_chunk_borders, PROGRAMS, LIVE, STREAMING, SEPARATE),
    check(bytes_that_are_no_text_are_kept, PROGRAMS, LIVE, STREAMING, SEPARATE),
    check(line_ends_are_left_alone, PROGRAMS),
    check(the_two_streams_are_kept_apart, PROGRAMS, SEPARATE),
    check(output_arrives_while_the_program_runs, PROGRAMS, LIVE, STREAMING, SEPARATE),
    check(a_slow_reader_loses_nothing, PROGRAMS, LIVE, STREAMING),
    check(a_slow_reader_holds_up_nobody_else, PROGRAMS, LIVE, STREAMING),
    check(an_error_in_the_callback_stops_the_command, PROGRAMS, LIVE),
    check(leaving_a_stream_early_kills_the_command, PROGRAMS, LIVE, STREAMING),
    check(a_flood_of_output_is_drained_and_counted, PROGRAMS, SEPARATE, hostile=True, timeout=400),
    check(the_cap_is_exact, PROGRAMS, SEPARATE),
    check(the_callback_gets_nothing_past_the_cap, PROGRAMS, LIVE),
    check(both_streams_can_flood_at_once, PROGRAMS, SEPARATE),
    check(closed_streams_are_not_the_end, PROGRAMS),
    check(all_that_was_printed_before_the_end_is_kept, PROGRAMS, SEPARATE),
    check(a_process_hands_out_chunks_and_its_end, PROGRAMS, LIVE),
)
