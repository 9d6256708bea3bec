"""Output as it arrives: a reader may be as slow as it likes, and loses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from ringfence.backends.fake import FakeBackend, Script
from ringfence.errors import SandboxLostError
from ringfence.leases import MemoryLeases
from ringfence.models import Chunk, Command
from ringfence.sessions import SessionManager
from ringfence.sessions.streaming import MAX_CHUNKS

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def running(script: Script) -> AsyncIterator[tuple[SessionManager, FakeBackend]]:
    fake = FakeBackend(script=script)
    async with fake, SessionManager(fake, leases=MemoryLeases()) as sessions:
        yield sessions, fake


def of(chunks: list[Chunk], stream: str) -> bytes:
    return b"".join(chunk.data for chunk in chunks if chunk.stream == stream)


MIXED = Script([b"a", Chunk("stderr", b"x"), 0.01, b"b"], exit_code=3)


async def test_chunks_come_in_order_and_then_the_result() -> None:
    async with running(MIXED) as (sessions, _):
        async with sessions.exec_streaming("a", "go") as run:
            chunks = [(chunk.stream, chunk.text) async for chunk in run]
        assert chunks == [("stdout", "a"), ("stderr", "x"), ("stdout", "b")]
        assert (run.result.stdout, run.result.exit_code) == (b"ab", 3)


async def test_a_callback_gets_the_same_and_may_be_async() -> None:
    got: list[str] = []

    async def slow(chunk: Chunk) -> None:
        await anyio.sleep(0.01)
        got.append(chunk.text)

    async with running(MIXED) as (sessions, _):
        result = await sessions.exec("a", "go", on_output=slow)
        assert ("".join(got), result.exit_code) == ("axb", 3)
        plain: list[Chunk] = []
        await sessions.exec("a", "go", on_output=plain.append)
        assert of(plain, "stdout") == b"ab"


async def test_a_command_ends_although_nobody_reads() -> None:
    """Catches a run that stands still, and runs into its deadline, because of its reader."""
    steps = [b"x" * 4096] * 500
    async with running(Script(steps)) as (sessions, fake):
        async with sessions.exec_streaming("a", "go", timeout=300) as run:
            with anyio.fail_after(50):
                result = await run.finish()
            assert fake.live_processes == 0
            data = of([chunk async for chunk in run], "stdout")
        assert data == result.stdout
        assert (result.stdout_truncated, len(data)) == (True, 1 << 20)


async def test_what_waits_for_a_slow_reader_is_few_things() -> None:
    """Catches a million objects for a program that writes a million single bytes."""
    steps = [Chunk("stdout" if n % 3 else "stderr", b"%d" % (n % 10)) for n in range(4000)]
    async with running(Script(steps)) as (sessions, _):
        async with sessions.exec_streaming("a", "go", timeout=300) as run:
            await run.finish()
            assert len(run._waiting) <= MAX_CHUNKS + 1
            chunks = [chunk async for chunk in run]
        for stream in ("stdout", "stderr"):
            wanted = b"".join(chunk.data for chunk in steps if chunk.stream == stream)
            assert of(chunks, stream) == wanted
        assert "".join(chunk.text for chunk in chunks if chunk.stream == "stdout").encode() == of(
            chunks, "stdout"
        )


async def test_a_callback_that_raises_stops_the_command_and_is_heard() -> None:
    def refuse(chunk: Chunk) -> None:
        raise LookupError(chunk.text)

    async with running(Script([b"a"], hangs=True)) as (sessions, fake):
        with pytest.raises(LookupError, match="a"):
            await sessions.exec("a", "go", on_output=refuse)
        assert fake.live_processes == 0


async def test_leaving_early_kills_the_command() -> None:
    async with running(Script([b"a"], hangs=True)) as (sessions, fake):
        async with sessions.exec_streaming("a", "go") as run:
            async for _ in run:
                break
        assert fake.live_processes == 0
        with pytest.raises(RuntimeError):
            _ = run.result


async def test_a_cancelled_reader_leaves_nothing_running() -> None:
    async with running(Script([b"a"], hangs=True)) as (sessions, fake):
        with anyio.move_on_after(0.05):
            async with sessions.exec_streaming("a", "go") as run:
                async for _ in run:
                    pass
        assert fake.live_processes == 0


async def test_a_sandbox_that_dies_is_told_after_what_it_printed() -> None:
    async with running(Script([b"a"], loses="out of memory")) as (sessions, _):
        chunks = []
        with pytest.raises(SandboxLostError) as caught:  # noqa: PT012  # a block within a block
            async with sessions.exec_streaming("a", "go") as run:
                async for chunk in run:
                    chunks.append(chunk.text)  # noqa: PERF401  # kept although it raises
        assert (chunks, caught.value.cause) == (["a"], "out of memory")


async def test_a_timed_out_command_keeps_what_it_printed() -> None:
    async with running(Script([b"first\n"], hangs=True)) as (sessions, _):
        result = await sessions.exec("a", "go", timeout=0.1, on_output=lambda chunk: None)
        assert (result.stdout, result.timed_out, result.exit_code) == (b"first\n", True, 124)


async def test_a_stdin_that_fails_is_heard() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise LookupError("no more")

    async with running(Script(hangs=True)) as (sessions, fake):
        command = Command(["cat"], stdin=broken())
        with pytest.raises(LookupError, match="no more"):
            await sessions.exec("a", command, on_output=lambda chunk: None)
        assert fake.live_processes == 0
