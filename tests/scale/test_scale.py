"""Two hundred sandboxes at once, and a thousand in a row, leave nothing over."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import pytest

from ringfence.backend import Backend, Sandbox
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.process import ProcessBackend
from ringfence.config import BubblewrapConfig, ProcessConfig
from ringfence.models import Command

from ..faults.conftest import usable
from ..machine import SOON, Held, held, nothing_left, steady

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BACKENDS: dict[str, Callable[[], Backend]] = {
    "process": lambda: ProcessBackend(ProcessConfig(start_timeout=120.0)),
    "bubblewrap": lambda: BubblewrapBackend(BubblewrapConfig(start_timeout=120.0)),
}
AT_ONCE = 200
IN_A_ROW = 1000


@pytest.fixture(params=BACKENDS)
def factory(request: pytest.FixtureRequest) -> Callable[[], Backend]:
    usable(request.param)
    return BACKENDS[request.param]


async def processes_in(sandbox: Sandbox) -> int:
    return int((await sandbox.exec("sh", ["-c", "ls /proc | grep -c '^[0-9]'"])).stdout)


def flat(before: Held, now: Held) -> None:
    """Fail if there is more than twice of what there was, while things go on."""
    for name in ("descriptors", "threads", "children", "cgroups", "entries"):
        had, has = len(getattr(before, name)), len(getattr(now, name))
        assert has <= 2 * had + 8, f"{name} went from {had} to {has}"


def test_two_hundred_at_once(
    factory: Callable[[], Backend], capsys: pytest.CaptureFixture[str]
) -> None:
    """All are made before the first is used, and all are used before the first is closed."""
    made, used = anyio.Event(), anyio.Event()
    counts = {"made": 0, "used": 0}

    async def one(backend: Backend, number: int) -> None:
        async with await backend.create() as sandbox:
            counts["made"] += 1
            if counts["made"] == AT_ONCE:
                made.set()
            await made.wait()
            own = str(number).encode()
            await sandbox.write_file("own", own)
            result = await sandbox.exec(
                "sh", ["-c", "cat own; echo; ls | wc -l; exit 3"], timeout=120
            )
            assert (result.stdout.split(), result.exit_code) == ([own, b"1"], 3)
            counts["used"] += 1
            if counts["used"] == AT_ONCE:
                used.set()
            await used.wait()

    async def main() -> None:
        async with factory() as backend:
            await backend.execute("true")
            before = await steady()
            began = time.perf_counter()
            async with anyio.create_task_group() as group:
                for number in range(AT_ONCE):
                    group.start_soon(one, backend, number)
            took = time.perf_counter() - began
            await nothing_left(before)
        with capsys.disabled():
            print(f"\n  {AT_ONCE} at once in {took:.1f} s", end="")

    anyio.run(main)


def test_a_thousand_in_a_row(
    factory: Callable[[], Backend], capsys: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with factory() as backend:
            await backend.execute("true")
            before = await steady()
            began = time.perf_counter()
            for number in range(IN_A_ROW):
                async with await backend.create() as sandbox:
                    result = await sandbox.exec(Command(("cat",), stdin=b"x" * (number % 1000)))
                    assert len(result.stdout) == number % 1000
                if number % 100 == 99:
                    flat(before, held())
            took = time.perf_counter() - began
            await nothing_left(before)
        with capsys.disabled():
            print(f"\n  {IN_A_ROW} in a row in {took:.1f} s", end="")

    anyio.run(main)


def test_a_thousand_one_shots(factory: Callable[[], Backend]) -> None:
    async def main() -> None:
        async with factory() as backend:
            await backend.execute("true")
            before = await steady()
            for number in range(IN_A_ROW):
                result = await backend.execute("sh", ["-c", f"exit {number % 250}"])
                assert result.exit_code == number % 250
                if number % 100 == 99:
                    flat(before, held())
            await nothing_left(before)

    anyio.run(main)


def test_a_thousand_commands_of_one_sandbox(factory: Callable[[], Backend]) -> None:
    """Twenty at a time, with files and kills between them; nothing piles up in it either."""

    async def worker(sandbox: Sandbox, name: str) -> None:
        for number in range(50):
            if number % 10 == 9:
                assert (await sandbox.exec("sleep", ["60"], timeout=0.05)).timed_out
            else:
                await sandbox.write_file(name, str(number))
                assert (await sandbox.exec("cat", [name])).stdout == str(number).encode()

    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            await sandbox.exec("true")
            before = await steady()
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(worker, sandbox, f"of-{number}")
            await nothing_left(before)
            if backend.name == "bubblewrap":
                with anyio.fail_after(SOON):
                    # PID 1, this command's three, its keeper, and a spare with its own
                    while await processes_in(sandbox) > 8:
                        await anyio.sleep(0.05)

    anyio.run(main)
