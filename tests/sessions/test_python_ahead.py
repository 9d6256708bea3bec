"""A Python that waits for its program: every result as ever, and nothing of it left."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from ringfence.backend import Backend, Sandbox
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.docker import ContainerBackend
from ringfence.backends.fake import FakeBackend
from ringfence.config import BubblewrapConfig, ContainerConfig
from ringfence.leases import MemoryLeases
from ringfence.models import Command, ExitReason, Result
from ringfence.process import Launch, Process
from ringfence.sessions import Session, SessionManager
from ringfence.sessions.ahead import PythonAhead
from ringfence.tools import Toolkit
from ringfence.warden.sandbox import WardenSandbox

from .ahead_programs import PROGRAMS

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(240)]

Make = Callable[[], Backend]
SECONDS = 30.0


def bubblewrap() -> Backend:
    return BubblewrapBackend(BubblewrapConfig())


def container() -> Backend:
    return ContainerBackend(ContainerConfig(image="ringfence-test:python"))


BACKENDS = pytest.mark.parametrize(
    "make",
    [
        pytest.param(bubblewrap, id="bubblewrap"),
        pytest.param(container, id="container", marks=pytest.mark.container),
    ],
)


@asynccontextmanager
async def opened(make: Make, *, ahead: bool = True) -> AsyncIterator[Session]:
    async with (
        make() as backend,
        SessionManager(backend, leases=MemoryLeases(), python_ahead=ahead) as sessions,
    ):
        yield sessions.session("one")


def program(code: str | bytes, **more: Any) -> Command:
    return Command(("python3", "-"), stdin=code, **more)


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each start of a command, whether an interpreter waited for it."""
    found: list[bool] = []
    take = PythonAhead.take

    async def noted(self: PythonAhead, box: Sandbox, launch: Launch) -> Process | None:
        process = await take(self, box, launch)
        found.append(process is not None)
        return process

    monkeypatch.setattr(PythonAhead, "take", noted)
    return found


async def waits(session: Session) -> None:
    """Return when an interpreter waits, as up to date as it will be."""
    ahead = session._ahead
    assert ahead is not None
    with anyio.fail_after(SECONDS):
        while ahead._waiting is None or ahead._renewing:
            await anyio.sleep(0.01)


async def warm(session: Session) -> None:
    assert (await session.exec(program("pass"))).ok
    await waits(session)


def told(result: Result) -> tuple[object, ...]:
    return (
        (result.exit_code, result.exit_reason, result.stdout, result.stderr),
        (result.stdout_bytes, result.stderr_bytes, result.timeout),
    )


@BACKENDS
async def test_every_program_does_what_it_does_anyway(make: Make, handed: list[bool]) -> None:
    async with opened(make, ahead=False) as plain, opened(make) as session:
        for one in (plain, session):
            await one.write_file("beside.py", "VALUE = 1")
            await one.exec("python3", ["-c", "import beside"])  # and its compiled file
        await warm(session)
        for name, code in PROGRAMS.items():
            handed.clear()
            ours, theirs = await session.exec(program(code)), await plain.exec(program(code))
            assert handed == [True], name
            assert told(ours) == told(theirs), name
            await waits(session)


@BACKENDS
async def test_its_time_begins_with_its_program(make: Make, handed: list[bool]) -> None:
    async with opened(make) as session:
        await warm(session)
        await anyio.sleep(1.5)
        held = await session.exec(program("import time; time.sleep(0.2); print(1)"), timeout=1.4)
        assert held.stdout == b"1\n"
        await waits(session)
        endless = program("print('part', flush=True)\nwhile True: pass")
        late = await session.exec(endless, timeout=1.0)
        assert (late.timed_out, late.exit_code, late.stdout) == (True, 124, b"part\n")
        await waits(session)
        deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
        assert (await session.exec(program(deaf), timeout=1.0)).timed_out
        assert handed == [False, True, True, True]


@BACKENDS
async def test_nothing_of_one_program_is_there_for_the_next(make: Make, handed: list[bool]) -> None:
    spoil = (
        "import builtins, os, sys; builtins.print = None; os.environ['A'] = '1'; os.chdir('/'); "
        "os.umask(0o77); sys.modules['json'] = None"
    )
    look = "import json, os; print(os.environ.get('A'), os.getcwd(), oct(os.umask(0)))"
    async with opened(make) as session:
        await warm(session)
        await session.exec(program(spoil))
        await waits(session)
        assert (await session.exec(program(look))).stdout == b"None /workspace 0o22\n"
        assert handed == [False, True, True]


@BACKENDS
async def test_it_starts_after_what_the_last_command_did(make: Make, handed: list[bool]) -> None:
    """A package that was installed meanwhile, in a place that Python looks for as it starts."""
    install = (
        "d=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p $d; "
        "echo 'VALUE = 7' >$d/installed.py"
    )
    async with opened(make) as session:
        await warm(session)
        await session.exec("sh", ["-c", install])
        await waits(session)
        seen = await session.exec(program("import installed; print(installed.VALUE)"))
        assert (seen.stdout, handed[-1]) == (b"7\n", True), seen.stderr


@BACKENDS
async def test_one_waits_at_a_time_and_none_unless_asked_for(make: Make) -> None:
    async def count(session: Session) -> int:
        script = "for p in /proc/[0-9]*; do cat $p/comm; done 2>/dev/null | grep -c python3"
        return int((await session.exec("sh", ["-c", script])).stdout)

    async with opened(make, ahead=False) as plain:
        await plain.exec(program("pass"))
        assert await count(plain) == 0
    async with opened(make) as session:
        assert await count(session) == 0  # before the first program
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(session.exec, program("pass"))
        await waits(session)
        assert await count(session) == 1
        await waits(session)
        assert await count(session) == 1


@BACKENDS
async def test_programs_at_the_same_time_all_run(make: Make, handed: list[bool]) -> None:
    async with opened(make) as session:
        await warm(session)
        found: list[bytes] = []

        async def run(number: int) -> None:
            found.append((await session.exec(program(f"print({number})"))).stdout)

        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(run, number)
        assert sorted(found) == [b"%d\n" % number for number in range(6)]
        assert handed.count(True) >= 1


@BACKENDS
async def test_one_that_was_killed_is_not_asked(make: Make, handed: list[bool]) -> None:
    async with opened(make) as session:
        await warm(session)
        assert session._ahead is not None
        assert session._ahead._waiting is not None
        await session._ahead._waiting.process.kill(9)
        await session._ahead._waiting.process.wait()
        assert (await session.exec(program("print(1)"))).stdout == b"1\n"
        assert handed == [False, False]


@BACKENDS
async def test_a_program_of_another_kind_is_started_as_ever(make: Make, handed: list[bool]) -> None:
    look = "import os; print(os.environ.get('A'), os.getcwd())"
    async with opened(make) as session:
        await session.make_dir("below")
        await warm(session)
        other = await session.exec(program(look, env={"A": "1"}, cwd="below"))
        assert (other.stdout, handed[-1]) == (b"1 /workspace/below\n", False)
        await waits(session)  # for one like the last
        again = await session.exec(program(look, env={"A": "1"}, cwd="below"))
        assert (again.stdout, handed[-1]) == (b"1 /workspace/below\n", True)
        missing = await session.exec(program("pass", env={"PATH": "/nowhere"}))
        assert (missing.exit_code, missing.exit_reason) == (127, ExitReason.EXITED)
        assert (await session.exec(program("print(1)"))).stdout == b"1\n"


@BACKENDS
async def test_a_caller_that_is_cancelled_ends_its_program(make: Make) -> None:
    count = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))"
    async with opened(make) as session:
        await warm(session)
        before = await session.exec(program(count))
        await waits(session)
        with anyio.move_on_after(0.5):
            await session.exec(program("import time; time.sleep(60)"))
        await session.exec(program("pass"))
        await waits(session)
        with anyio.fail_after(SECONDS):
            while (await session.exec(program(count))).stdout != before.stdout:
                await waits(session)


async def test_a_sandbox_that_was_lost_takes_it_along(handed: list[bool]) -> None:
    async with opened(bubblewrap) as session:
        await warm(session)
        await session._destroy("for a test")
        await session.ensure()
        assert (await session.exec(program("print(1)"))).stdout == b"1\n"
        await waits(session)
        assert (await session.exec(program("print(2)"))).stdout == b"2\n"
        assert handed == [False, False, True]


async def test_a_look_at_the_stream_takes_nothing_from_who_reads_it() -> None:
    """Catches an end that the look had taken, and whose command was waited for without end."""
    async with BubblewrapBackend() as backend, await backend.create() as box:
        assert isinstance(box, WardenSandbox)
        with anyio.fail_after(SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(box.exec, "true")
                await anyio.wait_all_tasks_blocked()
                time.sleep(0.5)  # the end arrives, and nobody has read it yet
                box.connection.look()


async def test_the_tools_of_an_agent_use_it(handed: list[bool]) -> None:
    async with opened(bubblewrap) as session:
        kit = Toolkit(session)
        for number in range(2):
            output = await kit.call("run_code", {"language": "python", "code": f"print({number})"})
            assert output.text == f"{number}\n[exit code: 0]"
            await waits(session)
        assert handed == [False, True]


async def test_a_backend_that_cannot_limit_a_running_command_does_without() -> None:
    async with opened(FakeBackend) as session:
        assert (await session.exec(program("pass"))).ok
        assert session._ahead is not None
        with anyio.fail_after(SECONDS):
            while session._ahead._renewing:
                await anyio.sleep(0)
        assert session._ahead._waiting is None
        assert (await session.exec(program("pass"))).ok


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
