"""Draining a process into a result: deadlines, caps, decoding, stdin, cancellation."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import (
    Chunk,
    Command,
    CommandError,
    Enforced,
    Exit,
    ExitReason,
    FakeBackend,
    FakeConfig,
    Process,
    Result,
    SandboxLostError,
    Script,
    Usage,
    execution,
    feed,
)
from ringfence.backends.fake import FakeSandbox, Scripts
from ringfence.execution import Run
from ringfence.models import Stream
from ringfence.process import FIRST_STDIN_BYTES, Launch

pytestmark = pytest.mark.anyio

DEADLINE = 30.0
"""Seconds after which a test that should have ended long ago is stopped."""

PIECES = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=9)), max_size=12
)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def short_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "HOST_SLACK", 0.05)


async def opened(script: Scripts, **limits: Any) -> tuple[FakeBackend, FakeSandbox]:
    backend = await FakeBackend(FakeConfig(kill_grace=0.01, **limits), script=script).__aenter__()
    sandbox = await backend.create()
    assert isinstance(sandbox, FakeSandbox)
    return backend, sandbox


class Replay(Process):
    """Hands out what it is given, whatever the launch asks for, as a hostile sandbox would."""

    def __init__(self, chunks: Iterable[Chunk], end: Exit) -> None:
        self._chunks = iter(chunks)
        self._end = end
        self.kills = 0

    async def receive(self) -> Chunk | None:
        await anyio.lowlevel.checkpoint()
        return next(self._chunks, None)

    async def wait(self) -> Exit:
        await anyio.lowlevel.checkpoint()
        return self._end

    async def kill(self, signal: int | None = None) -> None:
        self.kills += 1

    async def write_stdin(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...


def replay(
    pieces: Sequence[tuple[Stream, bytes]], end: Exit, cap: int | None
) -> tuple[list[Chunk], Result]:
    """Run a replayed process to its end; returns what was streamed, and the result."""

    async def start(launch: Launch) -> Process:
        return Replay([Chunk(stream, data) for stream, data in pieces], end)

    async def destroy(cause: str) -> None:
        raise AssertionError(cause)

    async def drain() -> tuple[list[Chunk], Result]:
        async with Run(start, destroy, Launch(Command(["x"]), 5, cap, 0), None, Enforced()) as run:
            chunks = [chunk async for chunk in run]
        return chunks, run.result

    return anyio.run(drain)


def joined(pieces: Sequence[tuple[Stream, bytes]], stream: str) -> bytes:
    return b"".join(data for name, data in pieces if name == stream)


EXITED = Exit(0, ExitReason.EXITED)


@given(PIECES)
def test_incremental_text_is_the_text_of_the_whole(pieces: list[tuple[Stream, bytes]]) -> None:
    """Catches a character that is torn or doubled where two chunks meet."""
    chunks, result = replay(pieces, EXITED, None)
    for stream in ("stdout", "stderr"):
        whole = joined(pieces, stream)
        assert "".join(c.text for c in chunks if c.stream == stream) == whole.decode(
            "utf-8", "replace"
        )
        assert b"".join(c.data for c in chunks if c.stream == stream) == whole
        assert getattr(result, stream) == whole


@given(text=st.text(max_size=20), cuts=st.lists(st.integers(0, 80), max_size=6))
def test_no_character_is_lost_at_any_cut(text: str, cuts: list[int]) -> None:
    data = text.encode("utf-8", "replace")
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces: list[tuple[Stream, bytes]] = [("stdout", data[a:b]) for a, b in pairwise(places)]
    chunks, _ = replay(pieces, EXITED, None)
    assert "".join(chunk.text for chunk in chunks) == data.decode()


@given(pieces=PIECES, cap=st.integers(0, 30))
def test_each_stream_is_cut_at_its_cap_and_said_to_be(
    pieces: list[tuple[Stream, bytes]], cap: int
) -> None:
    chunks, result = replay(pieces, Exit(3, ExitReason.EXITED), cap)
    assert result.exit_code == 3
    for stream in ("stdout", "stderr"):
        whole = joined(pieces, stream)
        kept = b"".join(c.data for c in chunks if c.stream == stream)
        assert getattr(result, stream) == kept == whole[:cap]
        assert getattr(result, f"{stream}_bytes") == len(whole)
        assert getattr(result, f"{stream}_truncated") == (len(whole) > cap)


def test_bytes_that_the_sandbox_dropped_are_counted() -> None:
    _, result = replay([("stdout", b"ab")], Exit(0, ExitReason.EXITED, stdout_bytes=9), 2)
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == (b"ab", 9, True)


def test_a_sandbox_that_counts_less_than_it_sent_is_not_believed() -> None:
    _, result = replay([("stderr", b"abc")], Exit(0, ExitReason.EXITED, stderr_bytes=1), None)
    assert (result.stderr_bytes, result.stderr_truncated) == (3, False)


@pytest.mark.parametrize("cap", [None, 100, 8, 0])
def test_the_line_of_a_missing_program_is_on_stderr_for_all(cap: int | None) -> None:
    """Catches the line being shown only to those who do not stream, or in spite of the cap."""
    line = b"nosuch: not found\n"
    chunks, result = replay([], Exit(127, ExitReason.EXITED, message=line.decode()), cap)
    assert result.stderr == line[:cap]
    assert "".join(chunk.text for chunk in chunks) == line[:cap].decode()
    assert result.stderr_bytes == len(line)
    assert (result.exit_code, result.stdout) == (127, b"")


def test_what_the_backend_saw_is_in_the_result() -> None:
    usage = Usage(1.5, 4096)
    _, result = replay([], Exit(137, ExitReason.OUT_OF_MEMORY, usage=usage), None)
    assert (result.exit_code, result.out_of_memory, result.usage) == (137, True, usage)
    assert result.timeout == 5
    assert 0 <= result.duration_s < DEADLINE


async def test_output_arrives_while_the_program_runs() -> None:
    backend, sandbox = await opened(Script([b"one", Chunk("stderr", b"two"), 60.0, b"three"]))
    with anyio.fail_after(DEADLINE):
        async with sandbox.stream("x") as run:
            first = await anext(aiter(run))
            second = await anext(run)
            with pytest.raises(RuntimeError, match="not ended"):
                _ = run.result
    assert [(c.stream, c.text) for c in (first, second)] == [("stdout", "one"), ("stderr", "two")]
    assert backend.live_processes == 0


async def test_a_run_can_be_finished_after_some_of_it_was_streamed() -> None:
    _, sandbox = await opened(Script([b"one", b"two"], exit_code=4))
    async with sandbox.stream("x") as run:
        await anext(aiter(run))
        result = await run.finish()
    assert (result.stdout, result.exit_code) == (b"onetwo", 4)
    assert await run.finish() is result


async def test_a_timeout_keeps_the_output_and_the_sandbox() -> None:
    backend, sandbox = await opened([Script([b"partial"], hangs=True), Script([b"fine"])])
    with anyio.fail_after(DEADLINE):
        result = await sandbox.exec("x", timeout=0.05)
    assert (result.stdout, result.exit_code) == (b"partial", 124)
    assert (result.timed_out, result.timeout) == (True, 0.05)
    assert (await sandbox.exec("x")).stdout == b"fine"
    assert "destroy" not in [call.verb for call in backend.calls]


@pytest.mark.usefixtures("short_slack")
async def test_a_sandbox_that_misses_the_deadline_is_destroyed() -> None:
    """Catches a caller that waits for ever for a sandbox that has gone silent."""
    backend, sandbox = await opened(Script([b"partial"], unkillable=True))
    with anyio.fail_after(DEADLINE):
        result = await sandbox.exec("x", timeout=0.05)
    assert (result.stdout, result.timed_out, result.exit_code) == (b"partial", True, 124)
    assert [call.detail for call in backend.calls if call.verb == "destroy"]
    with pytest.raises(SandboxLostError, match="did not answer"):
        await sandbox.exec("x")


@pytest.mark.usefixtures("short_slack")
async def test_a_sandbox_that_never_starts_a_command_is_destroyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, sandbox = await opened(Script())

    async def silent(launch: Launch) -> Process:
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(sandbox, "_start", silent)
    with anyio.fail_after(DEADLINE), pytest.raises(SandboxLostError, match="did not start"):
        await sandbox.exec("x", timeout=0.05)
    assert not sandbox.is_live


@pytest.mark.usefixtures("short_slack")
async def test_a_command_that_can_not_be_killed_takes_the_sandbox_with_it() -> None:
    _, sandbox = await opened(Script([b"one"], unkillable=True))
    with anyio.fail_after(DEADLINE):
        async with sandbox.stream("x") as run:
            await anext(aiter(run))
    with pytest.raises(SandboxLostError, match="could not be killed"):
        await sandbox.exec("x")


async def test_a_sandbox_that_dies_is_an_error_and_no_result() -> None:
    _, sandbox = await opened(Script([b"one"], loses="out of memory"))
    with anyio.fail_after(DEADLINE), pytest.raises(SandboxLostError) as caught:
        await sandbox.exec("x")
    assert caught.value.cause == "out of memory"


async def test_a_callback_gets_every_chunk_and_may_be_async() -> None:
    _, sandbox = await opened(Script([b"\xc3", b"\xa9", Chunk("stderr", b"x")]))
    seen: list[str] = []

    async def note(chunk: Chunk) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(chunk.text)

    assert (await sandbox.exec("x", on_output=note)).stdout_text == "é"
    assert (await sandbox.exec("x", on_output=lambda chunk: seen.append(chunk.text))).ok
    assert seen == ["", "é", "x", "", "é", "x"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_of_the_callback_stops_the_command_and_reaches_the_caller(
    is_async: bool,
) -> None:
    backend, sandbox = await opened(Script([b"one"], hangs=True))

    def fail(chunk: Chunk) -> None:
        raise ZeroDivisionError

    async def fail_later(chunk: Chunk) -> None:
        await anyio.lowlevel.checkpoint()
        raise ZeroDivisionError

    with anyio.fail_after(DEADLINE), pytest.raises(ZeroDivisionError):
        await sandbox.exec("x", on_output=fail_later if is_async else fail)
    assert backend.live_processes == 0
    assert [call.verb for call in backend.calls].count("kill") == 1


async def pieces_of(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        await anyio.lowlevel.checkpoint()
        yield piece


class TestStdin:
    @pytest.mark.parametrize("size", [0, 1, FIRST_STDIN_BYTES, FIRST_STDIN_BYTES + 1, 300_000])
    async def test_bytes_arrive_whole(self, size: int) -> None:
        _, sandbox = await opened(Script(echo=True), output_bytes=10**6)
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)
        with anyio.fail_after(DEADLINE):
            result = await sandbox.exec(Command(["cat"], stdin=data))
        assert result.stdout == data

    async def test_text_is_sent_as_utf8(self) -> None:
        _, sandbox = await opened(Script(echo=True))
        assert (await sandbox.exec(Command(["cat"], stdin="é"))).stdout == "é".encode()

    @pytest.mark.parametrize("make", [pieces_of, lambda *pieces: feed(pieces)])
    async def test_an_iterable_arrives_in_order(self, make: Callable[..., Any]) -> None:
        _, sandbox = await opened(Script(echo=True))
        with anyio.fail_after(DEADLINE):
            result = await sandbox.exec(Command(["cat"], stdin=make(b"a", b"", b"bc", b"d")))
        assert result.stdout == b"abcd"

    async def test_an_iterable_that_fails_stops_the_command_and_reaches_the_caller(self) -> None:
        backend, sandbox = await opened(Script(echo=True))

        async def broken() -> AsyncIterator[bytes]:
            yield b"a"
            raise ZeroDivisionError

        with anyio.fail_after(DEADLINE), pytest.raises(ZeroDivisionError):
            await sandbox.exec(Command(["cat"], stdin=broken()))
        assert backend.live_processes == 0

    async def test_a_piece_that_is_not_bytes_is_refused(self) -> None:
        _, sandbox = await opened(Script(echo=True))
        bad: Any = ["text"]
        with anyio.fail_after(DEADLINE), pytest.raises(CommandError, match="not str"):
            await sandbox.exec(Command(["cat"], stdin=feed(bad)))

    async def test_a_program_that_ends_first_is_not_held_up(self) -> None:
        """Catches a result that waits for an iterable which never ends."""

        async def endless() -> AsyncIterator[bytes]:
            while True:
                await anyio.sleep(0.001)
                yield b"x"

        _, sandbox = await opened(Script([b"done"]))
        with anyio.fail_after(DEADLINE):
            result = await sandbox.exec(Command(["x"], stdin=endless()))
        assert result.stdout == b"done"

    async def test_a_sandbox_that_dies_while_it_is_fed_is_an_error(self) -> None:
        _, sandbox = await opened(Script([0.01], loses="killed"))

        async def endless() -> AsyncIterator[bytes]:
            while True:
                await anyio.sleep(0.001)
                yield b"x"

        with anyio.fail_after(DEADLINE), pytest.raises(SandboxLostError):
            await sandbox.exec(Command(["x"], stdin=endless()))


async def pause(chunk: Chunk) -> None:
    await anyio.sleep(0)


BUSY = Script([b"a", 0.0, b"b", Chunk("stderr", b"c")], echo=True)


async def cancelled_after(steps: int, call: Callable[[], Any]) -> bool:
    """Cancel a call after so many turns of the event loop; returns whether it was cut short."""
    ended = False
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                nonlocal ended
                await call()
                ended = True
                scope.cancel()

            tasks.start_soon(run)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            scope.cancel()
    return not ended


@pytest.mark.parametrize("form", ["exec", "callback", "fed", "execute", "create"])
async def test_cancelling_at_any_await_leaves_nothing_running(form: str) -> None:
    """Catches clean-up that is itself cancelled, at whichever await the caller gave up."""
    cut = 0
    for steps in range(400):
        backend, sandbox = await opened(BUSY)
        command = Command(["x"], stdin=pieces_of(b"1", b"2") if form == "fed" else None)
        calls: dict[str, Callable[[], Any]] = {
            "exec": lambda: sandbox.exec(command),  # noqa: B023  # called within this round
            "fed": lambda: sandbox.exec(command),  # noqa: B023
            "callback": lambda: sandbox.exec(command, on_output=pause),  # noqa: B023
            "execute": lambda: backend.execute(command),  # noqa: B023
            "create": lambda: backend.create(),  # noqa: B023, PLW0108
        }
        with anyio.fail_after(DEADLINE):
            was_cut = await cancelled_after(steps, calls[form])
        assert backend.live_processes == 0, steps
        assert sandbox.is_live
        if form == "execute":
            assert backend.live_sandboxes == 1, steps
        if was_cut:
            cut += 1
        elif steps > 20:
            break
    else:
        pytest.fail("the call never ended by itself")
    assert cut >= 2


@pytest.mark.parametrize("one_shot", [False, True])
async def test_cancelling_a_waiting_command_kills_it(one_shot: bool) -> None:
    backend, sandbox = await opened(Script([b"a"], hangs=True))
    call = backend.execute if one_shot else sandbox.exec
    with anyio.fail_after(DEADLINE), anyio.move_on_after(0.02) as scope:
        await call("x", timeout=60)
    assert scope.cancelled_caught
    assert (backend.live_processes, backend.live_sandboxes) == (0, 1)


async def test_a_decoder_is_made_for_each_stream() -> None:
    _, sandbox = await opened(Script([b"\xe2\x82", Chunk("stderr", b"\xe2"), b"\xac"]))
    async with sandbox.stream("x") as run:
        text = {"stdout": "", "stderr": ""}
        async for chunk in run:
            text[chunk.stream] += chunk.text
    assert text == {"stdout": "€", "stderr": codecs.decode(b"\xe2", "utf-8", "replace")}
