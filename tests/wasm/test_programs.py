"""What a program may do, what stops it, and what its result says."""

from __future__ import annotations

import struct
import time
from typing import Any

import anyio
import pytest

from ringfence.errors import CommandError, SandboxClosedError, UnsupportedError
from ringfence.models import Command, ExitReason, SandboxSpec

from . import programs
from .conftest import Make

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_output_and_exit_code_are_the_program_s_own(make: Make) -> None:
    async with make(programs.HELLO) as backend:
        result = await backend.execute("anything", ["at", "all"])
    assert (result.stdout, result.stderr, result.exit_code) == (b"hello\n", b"", 0)
    assert result.ok


@pytest.mark.parametrize("code", [0, 1, 7, 126, 127, 255])
async def test_proc_exit_keeps_its_code(make: Make, code: int) -> None:
    """Catches an exit that is taken for a crash; the runtime's own refuses codes from 126 on."""
    async with make(programs.binary(f"(call $proc_exit (i32.const {code}))")) as backend:
        result = await backend.execute("x")
    assert (result.exit_code, result.exit_reason) == (code, ExitReason.EXITED)
    assert (result.stdout, result.stderr) == (b"", b"")


async def test_each_run_has_a_fresh_instance(make: Make) -> None:
    async with make(programs.COUNT) as backend, await backend.create() as sandbox:
        for _ in range(3):
            assert (await backend.execute("x")).exit_code == 11
            assert (await sandbox.exec("x")).exit_code == 11


@pytest.mark.parametrize("name", programs.TRAPS)
async def test_a_trap_is_a_result_that_names_it(make: Make, name: str) -> None:
    async with make(programs.binary(programs.TRAPS[name])) as backend:
        result = await backend.execute("x")
        again = await backend.execute("x")
    assert (result.exit_code, result.exit_reason) == (134, ExitReason.SIGNALED)
    assert result.stderr_text.startswith(f"wasm trap: {name}")
    assert again.exit_code == 134


async def test_an_exception_that_nobody_catches_is_named(make: Make) -> None:
    async with make(programs.binary("(throw $e)", "(tag $e)")) as backend:
        result = await backend.execute("x")
    assert result.exit_code == 134
    assert result.stderr_text.startswith("wasm trap: UNCAUGHT_EXCEPTION")


async def test_a_trap_keeps_the_output_before_it(make: Make) -> None:
    data = r'(data (i32.const 16) "hello\0a")'
    async with make(programs.binary(programs.write(16, 6) + "unreachable", data)) as backend:
        result = await backend.execute("x")
    assert (result.stdout, result.exit_code) == (b"hello\n", 134)


@pytest.mark.parametrize("program", [programs.LOOP, programs.SLEEP_60, programs.FLOOD])
async def test_a_deadline_ends_it_and_leaves_the_loop_free(make: Make, program: bytes) -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.01)
            beats += 1

    async with make(program) as backend, anyio.create_task_group() as group:
        group.start_soon(beat)
        with anyio.fail_after(30):
            result = await backend.execute("x", timeout=0.5)
        group.cancel_scope.cancel()
    assert (result.exit_code, result.exit_reason) == (124, ExitReason.TIMED_OUT)
    assert result.duration_s >= 0.5
    assert beats > 2


async def test_partial_output_is_kept_on_timeout(make: Make) -> None:
    async with make(programs.HELLO_THEN_LOOP) as backend:
        for timeout in (0.3, 10):
            result = await backend.execute("x", timeout=timeout)
            assert result.timed_out
            if result.stdout:  # a busy machine may not come to it in the shorter time
                break
    assert result.stdout == b"hello\n"


async def test_one_deadline_leaves_other_programs_alone(make: Make) -> None:
    """Catches an interrupt of the engine that ends every program in it."""
    async with make(programs.LOOP) as looping, make(programs.binary(programs.sleep(1))) as sleeping:
        codes: dict[Any, list[int]] = {looping: [], sleeping: []}

        async def run(backend: Any, timeout: float) -> None:
            codes[backend].append((await backend.execute("x", timeout=timeout)).exit_code)

        async with anyio.create_task_group() as group:
            group.start_soon(run, sleeping, 50)
            group.start_soon(run, looping, 1.2)
            for _ in range(4):
                group.start_soon(run, looping, 0.2)
    assert codes == {looping: [124] * 5, sleeping: [0]}


async def test_output_past_the_cap_is_counted_and_dropped(make: Make) -> None:
    async with make(programs.FLOOD_THEN_EXIT) as backend:
        result = await backend.execute(Command(["x"], output_bytes=1000))
        none = await backend.execute(Command(["x"], output_bytes=0))
    assert (len(result.stdout), result.stdout_bytes, result.exit_code) == (1000, 6_500_000, 5)
    assert result.stdout_truncated
    assert (none.stdout, none.stdout_bytes) == (b"", 6_500_000)


async def test_arguments_arrive_as_they_are(make: Make) -> None:
    args = ["", "a b", "ü€", "-x", "$HOME", "*"]
    async with make(programs.ARGS) as backend:
        result = await backend.execute("name", args)
    assert result.stdout.split(b"\0") == [b"name", *(arg.encode() for arg in args), b""]


async def test_what_is_not_utf8_is_refused(make: Make) -> None:
    async with make(programs.ARGS) as backend:
        with pytest.raises(UnsupportedError, match="argument is not UTF-8"):
            await backend.execute(Command(["x", b"\xff"]))
        with pytest.raises(UnsupportedError, match="variable is not UTF-8"):
            await backend.execute(Command(["x"], env={"A": b"\xff"}))
        with pytest.raises(CommandError, match="NUL"):
            await backend.execute("x", ["a\0b"])


async def test_the_environment_is_the_caller_s_alone(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    async with make(programs.ENV) as backend:
        assert (await backend.execute("x")).stdout == b""
        result = await backend.execute(
            Command(["x"], env={"A": "1"}), spec=SandboxSpec(env={"B": "2"})
        )
    assert set(result.stdout.split(b"\0")) == {b"A=1", b"B=2", b""}


async def test_a_one_shot_has_no_directory(make: Make) -> None:
    async with make(programs.PRESTAT) as backend:
        assert (await backend.execute("x")).exit_code == 8  # EBADF


async def test_stdin_is_read_to_its_end(make: Make) -> None:
    async with make(programs.CAT) as backend:
        assert (await backend.execute("x")).stdout == b""
        assert (await backend.execute(Command(["x"], stdin="some"))).stdout == b"some"
        big = b"0123456789" * 50_000
        assert (await backend.execute(Command(["x"], stdin=big))).stdout == big


async def test_stdin_can_be_sent_while_it_runs(make: Make) -> None:
    async with make(programs.CAT) as backend, await backend.create() as sandbox:
        process = await sandbox.start(Command(["x"]), stdin_open=True)
        for part in (b"one", b"two"):
            await process.write_stdin(part)
            chunk = await process.receive()
            assert chunk is not None
            assert chunk.data == part
        await process.close_stdin()
        assert await process.receive() is None
        assert (await process.wait()).code == 0
        await process.write_stdin(b"nobody reads this")


async def test_a_program_waits_for_a_slow_reader(make: Make) -> None:
    """Catches output that piles up in memory when nobody takes it."""
    async with make(programs.FLOOD) as backend, await backend.create() as sandbox:
        process = await sandbox.start(Command(["x"], timeout=20))
        await anyio.sleep(0.3)
        assert (await process.receive()) is not None
        seen = process.guest.seen["stdout"]  # type: ignore[attr-defined]
        assert seen < 1_000_000
        await process.kill()
        assert (await process.wait()).code == 143


async def test_a_kill_ends_it(make: Make) -> None:
    async with make(programs.SLEEP_60) as backend, await backend.create() as sandbox:
        process = await sandbox.start(Command(["x"]))
        with pytest.raises(UnsupportedError, match="no signals"):
            await process.kill(10)
        await process.kill(9)
        end = await process.wait()
        assert (end.code, end.reason) == (137, ExitReason.SIGNALED)
        await process.kill()


async def test_cancelling_the_caller_ends_it(make: Make) -> None:
    async with make(programs.LOOP) as backend, await backend.create() as sandbox:
        with anyio.move_on_after(0.2) as scope:
            await sandbox.exec("x")
        assert scope.cancelled_caught
        assert sandbox._processes == set()  # type: ignore[attr-defined]
        with anyio.move_on_after(0.2):
            await backend.execute("x")


async def test_a_closed_sandbox_ends_what_runs(make: Make) -> None:
    async with make(programs.LOOP) as backend:
        sandbox = await backend.create()
        raised: list[Exception] = []

        async def run() -> None:
            try:
                await sandbox.exec("x")
            except SandboxClosedError as error:
                raised.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(0.2)
            await sandbox.aclose()
        assert len(raised) == 1


async def test_clock_and_random_are_the_same_in_every_run(make: Make) -> None:
    async with make(programs.CLOCK_AND_RANDOM) as backend:
        first = (await backend.execute("x")).stdout
        await anyio.sleep(0.01)
        second = (await backend.execute("x")).stdout
    assert len(first) == 32
    assert first == second
    realtime, monotonic = struct.unpack("<QQ", first[:16])
    assert realtime < time.time_ns() - 10**18 // 10
    assert monotonic > 0
    assert first[16:] != bytes(16)


async def test_clock_and_random_are_real_on_request(make: Make) -> None:
    async with make(programs.CLOCK_AND_RANDOM, clock="real", random="real") as backend:
        first, second = [(await backend.execute("x")).stdout for _ in range(2)]
    assert abs(struct.unpack("<Q", first[:8])[0] - time.time_ns()) < 60 * 10**9
    assert first[:8] != second[:8]
    assert first[16:] != second[16:]


async def test_a_hundred_programs_at_once(make: Make) -> None:
    async with make(programs.binary(programs.sleep(0.5) + programs.write(16, 6))) as backend:
        results: list[Any] = []

        async def run() -> None:
            results.append(await backend.execute("x"))

        began = time.monotonic()
        async with anyio.create_task_group() as group:
            for _ in range(100):
                group.start_soon(run)
        assert time.monotonic() - began < 100 * 0.5 / 2
    assert [result.exit_code for result in results] == [0] * 100
    assert {result.stdout for result in results} == {bytes(6)}
