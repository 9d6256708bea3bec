"""Memory, tables, stack, fuel and time: what a program is refused, and that it goes on."""

from __future__ import annotations

import sys
import threading
import tracemalloc

import anyio
import pytest

from ringfence.errors import LimitError, SandboxLostError
from ringfence.models import Command, Limits, Result, SandboxSpec

from . import programs
from .conftest import Make

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("instruction", "amount", "code"),
    [
        ("memory.grow", 1000, 1),
        ("memory.grow", 1024, 7),  # with the one that it has, a page too many
        ("memory.grow", 4000, 7),
        ("table.grow", 1000, 1),
        ("table.grow", 10_000_000, 7),
    ],
)
async def test_growth_past_a_limit_is_refused(
    make: Make, instruction: str, amount: int, code: int
) -> None:
    async with make(programs.grown(instruction, amount), memory_limit_pages=1024) as backend:
        result = await backend.execute("x")
    assert result.exit_code == code


async def test_a_spec_s_memory_limit_goes_before_the_config_s(make: Make) -> None:
    async with make(programs.grown("memory.grow", 100)) as backend:
        small = SandboxSpec(limits=Limits(memory_bytes=50 * 65536))
        assert (await backend.execute("x", spec=small)).exit_code == 7
        async with await backend.create(small) as sandbox:
            assert (await sandbox.exec("x")).exit_code == 7
            assert sandbox.limits.memory_bytes == 50 * 65536
        assert (await backend.execute("x")).exit_code == 1


async def test_a_module_that_no_longer_fits_is_an_error(make: Make) -> None:
    async with make(programs.binary("", pages=10)) as backend:
        with pytest.raises(LimitError, match="memory"):
            await backend.execute("x", spec=SandboxSpec(limits=Limits(memory_bytes=65536)))


async def test_a_limit_that_nobody_holds_is_refused(make: Make) -> None:
    async with make(programs.HELLO) as backend:
        for limits in (Limits(cpus=1.0), Limits(workspace_bytes=5), Limits(tmp_bytes=5)):
            with pytest.raises(LimitError):
                await backend.execute("x", spec=SandboxSpec(limits=limits))


async def test_fuel_ends_a_program_after_the_same_instructions(make: Make) -> None:
    counting = programs.binary(
        f"(loop {programs.write(16, 1)} (br 0))", r'(data (i32.const 16) "x")'
    )
    async with make(counting, fuel=100_000) as backend:
        first = await backend.execute("x")
        second = await backend.execute("x")
    assert first.exit_code == second.exit_code == 134
    assert "OUT_OF_FUEL" in first.stderr_text
    assert first.stdout_bytes == second.stdout_bytes > 100


async def test_a_deeper_stack_is_to_be_had(make: Make) -> None:
    deep = programs.binary(
        "(drop (call $down (i32.const 20000)))",
        """(func $down (param i32) (result i32)
             (if (result i32) (local.get 0)
               (then (i32.add (i32.const 1) (call $down (i32.sub (local.get 0) (i32.const 1)))))
               (else (i32.const 0))))""",
    )
    async with make(deep, stack_bytes=64 * 1024) as backend:
        assert (await backend.execute("x")).exit_code == 134
    async with make(deep, stack_bytes=8 * MIB) as backend:
        assert (await backend.execute("x")).exit_code == 0


async def test_a_flood_leaves_memory_flat(make: Make) -> None:
    """Catches output that is kept, in memory or in a file, beyond what is asked for."""
    async with make(programs.FLOOD) as backend:
        await backend.execute("x", timeout=0.1)
        tracemalloc.start()
        try:
            result = await backend.execute("x", timeout=1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert result.stdout_bytes > 10 * MIB
    assert len(result.stdout) == MIB
    assert peak < 8 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
async def test_thousand_runs_leave_memory_flat(make: Make) -> None:
    async with make(programs.HELLO) as backend:
        for _ in range(200):
            await backend.execute("x")
        before = _resident()
        for _ in range(1000):
            await backend.execute("x")
        assert _resident() - before < 2 * MIB


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


async def test_programs_wait_for_room_and_their_deadline_holds(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches more programs at once than there is room for, and an error because of that."""
    results: list[Result] = []
    async with make(programs.binary(programs.sleep(0.3))) as backend:
        engine = backend._program.engine  # type: ignore[union-attr]
        monkeypatch.setitem(vars(engine), "slots", threading.Semaphore(2))

        async def run(timeout: float) -> None:
            results.append(await backend.execute("x", timeout=timeout))

        async with anyio.create_task_group() as group:
            for timeout in (50, 50, 50, 50, 0.2):
                group.start_soon(run, timeout)
                await anyio.sleep(0.01)
    assert sorted(result.exit_code for result in results) == [0, 0, 0, 0, 124]
    assert max(result.duration_s for result in results) > 0.5


async def test_a_sandbox_s_age_ends_what_runs_in_it(make: Make) -> None:
    async with (
        make(programs.LOOP) as backend,
        await backend.create(SandboxSpec(limits=Limits(max_age=0.4))) as sandbox,
    ):
        with anyio.fail_after(25), pytest.raises(SandboxLostError, match="maximum age"):
            await sandbox.exec("x")
        with pytest.raises(SandboxLostError, match="maximum age"):
            await sandbox.list_files()


async def test_a_process_without_timeout_is_bounded_by_the_age(make: Make) -> None:
    async with (
        make(programs.LOOP) as backend,
        await backend.create(SandboxSpec(limits=Limits(max_age=0.4))) as sandbox,
    ):
        with anyio.fail_after(25), pytest.raises(SandboxLostError, match="maximum age"):
            await (await sandbox.start(Command(["x"]))).wait()


async def test_huge_requests_to_the_host_are_bounded(make: Make) -> None:
    """Catches a host that does as much as a program says: gigabytes of chance, a million waits."""
    calls = {
        "random": "(drop (call $random_get (i32.const 0) (i32.const 0x7fffffff)))",
        "vectors": """(call $proc_exit (call $fd_write (i32.const 1) (i32.const 0)
            (i32.const 0x7fffffff) (i32.const 8)))""",
        "waits": """(call $proc_exit (call $poll_oneoff (i32.const 0) (i32.const 0)
            (i32.const 0x7fffffff) (i32.const 8)))""",
        "addresses": """(call $proc_exit (call $fd_write (i32.const 1) (i32.const 0xfffffff0)
            (i32.const 100) (i32.const 8)))""",
        "result": """(call $proc_exit (call $fd_write (i32.const 1) (i32.const 0)
            (i32.const 0) (i32.const 0xffffffff)))""",
    }
    for name, body in calls.items():
        async with make(programs.binary(body)) as backend:
            result = await backend.execute("x", timeout=20)
        assert result.exit_code in (0, 21, 28), name
