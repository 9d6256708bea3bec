"""Commands of a session that run on while nobody waits for them."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from ringfence.backend import Backend
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.docker import ContainerBackend
from ringfence.backends.process import ProcessBackend
from ringfence.config import ContainerConfig, ProcessConfig
from ringfence.errors import (
    CommandError,
    CommandMissingError,
    LimitError,
    SandboxLostError,
    UnsupportedError,
)
from ringfence.leases import MemoryLeases
from ringfence.models import Command, ExitReason, Limits, SandboxSpec, TerminalSize
from ringfence.sessions import Session, SessionManager, background
from ringfence.sessions.background_command import KEPT_BYTES
from ringfence.sessions.kept_output import KeptOutput

pytestmark = pytest.mark.anyio


def container() -> ContainerBackend:
    return ContainerBackend(ContainerConfig(image="ringfence-test:minimal"))


@pytest.fixture(
    params=[
        ("process", ProcessBackend),
        pytest.param(("bubblewrap", BubblewrapBackend), marks=pytest.mark.slow),
        pytest.param(("container", container), marks=pytest.mark.container),
    ],
    ids=lambda param: param[0],
)
def make(request: pytest.FixtureRequest) -> Callable[[], Backend]:
    found: Callable[[], Backend] = request.param[1]
    return found


@asynccontextmanager
async def a_session(
    make: Callable[[], Backend], spec: SandboxSpec | None = None, idle: float = 600.0
) -> AsyncIterator[Session]:
    manager_of = SessionManager
    async with (
        make() as backend,
        manager_of(backend, leases=MemoryLeases(), idle_timeout=idle) as sessions,
    ):
        yield sessions.session("e", spec=spec)


async def until(session: Session, command_id: str, wanted: bytes) -> bytes:
    seen, offset = b"", 0
    with anyio.fail_after(20):
        while wanted not in seen:
            part = await session.background.read(command_id, offset, wait=5)
            seen += part.data
            offset = part.next_offset
            assert part.data or not part.ended, seen
    return seen


async def test_a_command_runs_on_and_is_read_in_parts(make: Callable[[], Backend]) -> None:
    async with a_session(make) as session:
        jobs = session.background
        found = await jobs.start("echo one; read x; echo two $x >&2; exit 3")
        assert (found.id, found.running, found.terminal) == ("c1", True, False)
        await until(session, "c1", b"one\n")
        assert (await jobs.read("c1", 4)).data == b""
        await jobs.write("c1", "go\n")
        end = await jobs.wait("c1", 10)
        assert end is not None
        assert (end.code, end.reason) == (3, ExitReason.EXITED)
        part = await jobs.read("c1", 4)
        assert (part.data, part.dropped, part.total, part.ended) == (b"two go\n", 0, 11, True)
        assert (await jobs.read("c1", -3)).data == b"go\n"
        (known,) = await jobs.commands()
        assert (known.running, known.exit, known.output_bytes) == (False, end, 11)
        await jobs.kill("c1")  # after the end: nothing
        await jobs.write("c1", b"late")


async def test_it_is_detached_from_a_caller_that_is_cancelled(make: Callable[[], Backend]) -> None:
    async with a_session(make) as session:
        with anyio.CancelScope() as caller:
            await session.background.start("echo up; read x; echo after")
            caller.cancel()
            await anyio.sleep_forever()
        await until(session, "c1", b"up\n")
        with anyio.move_on_after(0.01):
            await session.background.wait("c1")
        await session.background.write("c1", b"\n")
        assert b"after" in await until(session, "c1", b"after")


async def test_a_terminal_in_the_background(make: Callable[[], Backend]) -> None:
    async with a_session(make) as session:
        jobs = session.background
        command = Command(["sh"], terminal=TerminalSize(24, 80), env={"PS1": "READY "})
        found = await jobs.start(command)
        assert found.terminal
        await until(session, found.id, b"READY ")
        await jobs.write(found.id, "stty size; echo $TERM\n")
        assert b"24 80\r\nxterm-256color" in await until(session, found.id, b"xterm-256color")
        await jobs.resize(found.id, 40, 100)
        await jobs.write(found.id, "stty size\n")
        await until(session, found.id, b"40 100\r\n")
        await jobs.write(found.id, "sh -c \"echo u''p; exec sleep 300\"\n")
        await until(session, found.id, b"up\r\n")
        await jobs.write(found.id, b"\x03")
        await jobs.write(found.id, "exit 4\n")
        end = await jobs.wait(found.id, 10)
        assert end is not None
        assert end.code == 4


async def test_signals_kills_and_the_end_of_input(make: Callable[[], Backend]) -> None:
    async with a_session(make) as session:
        jobs = session.background
        await jobs.start("trap 'echo told; exit 5' USR1; echo up; while :; do sleep 0.1; done")
        await jobs.start("sleep 300")
        await jobs.start("cat; echo over")
        await until(session, "c1", b"up")
        await jobs.signal("c1", signal.SIGUSR1)
        await jobs.kill("c2")
        await jobs.close_stdin("c3")
        ends = [await jobs.wait(name, 15) for name in ("c1", "c2", "c3")]
        assert [end and end.code for end in ends] == [5, 128 + signal.SIGTERM, 0]
        assert [one.running for one in await jobs.commands()] == [False] * 3
        assert await jobs.wait("c3", 0) == ends[2]


async def test_a_timeout_of_its_own(make: Callable[[], Backend]) -> None:
    async with a_session(make) as session:
        await session.background.start(Command(["sleep", "300"], timeout=0.3))
        end = await session.background.wait("c1", 20)
        assert end is not None
        assert end.reason is ExitReason.TIMED_OUT


async def test_of_a_flood_the_last_is_kept(make: Callable[[], Backend]) -> None:
    async with a_session(make) as session:
        await session.background.start("head -c 3000000 /dev/zero; echo; echo the end")
        end = await session.background.wait("c1", 20)
        assert end is not None
        part = await session.background.read("c1", max_bytes=1 << 21)
        assert part.total == 3_000_009
        assert (len(part.data), part.offset, part.dropped) == (
            KEPT_BYTES,
            part.total - KEPT_BYTES,
            part.total - KEPT_BYTES,
        )
        assert part.text.endswith("the end\n")


async def test_the_session_s_end_is_theirs(make: Callable[[], Backend]) -> None:
    async with a_session(make) as session:
        jobs = session.background
        await jobs.start("sleep 300")
        await session.aclose()
        with pytest.raises(SandboxLostError):
            await jobs.wait("c1", 5)
        (known,) = await jobs.commands()
        assert (known.running, known.exit) == (False, None)
        assert known.lost


async def test_the_sandbox_s_age_ends_them_and_is_told_once(make: Callable[[], Backend]) -> None:
    async with a_session(make, SandboxSpec(limits=Limits(max_age=2))) as session:
        jobs = session.background
        await jobs.start("sleep 300")
        with pytest.raises(SandboxLostError), anyio.fail_after(20):
            await jobs.wait("c1")
        with pytest.raises(SandboxLostError):  # the news is kept for whoever calls next
            await session.exec("true")
        result = await session.exec("true")
        assert result.workspace_is_new
        (known,) = await jobs.commands()
        assert known.lost
        assert (await jobs.start("true")).id == "c2"


async def test_the_end_is_told_once_where_somebody_waits(make: Callable[[], Backend]) -> None:
    async with a_session(make, SandboxSpec(limits=Limits(max_age=2))) as session:
        await session.background.start("sleep 300")
        await session.background.start("sleep 300")
        with pytest.raises(SandboxLostError):
            await session.exec("sleep", ["300"], timeout=30)
        with pytest.raises(SandboxLostError):
            await session.background.wait("c2", 10)
        assert (await session.exec("true")).workspace_is_new


async def test_a_session_with_a_command_is_not_idle() -> None:
    async with a_session(ProcessBackend, idle=0.2) as session:
        await session.background.start("sleep 1.2; echo done >file")
        end = await session.background.wait("c1", 10)
        assert end is not None
        assert end.code == 0
        with anyio.fail_after(10):
            while session.is_live:  # and then it is
                await anyio.sleep(0.1)


async def test_how_many_run_and_how_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_RUNNING", 3)
    monkeypatch.setattr(background, "MAX_ENDED", 2)
    async with a_session(ProcessBackend) as session:
        jobs = session.background
        refused = 0

        async def start() -> None:
            nonlocal refused
            try:
                await jobs.start("read x")
            except LimitError as error:
                refused += error.limit == "background_commands"

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(start)
        assert (refused, len(await jobs.commands())) == (5, 3)
        for name in ("c2", "c1", "c3"):
            await jobs.write(name, b"\n")
            assert await jobs.wait(name, 10)
        assert [one.id for one in await jobs.commands()] == ["c1", "c3"]
        with pytest.raises(CommandMissingError, match="c1, c3"):
            await jobs.read("c2")
        monkeypatch.setattr(background, "KEPT_SECONDS", 0.0)
        time.sleep(0.01)
        assert await jobs.commands() == []


async def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_session(ProcessBackend) as session:
        jobs = session.background
        for call in (jobs.read, jobs.kill, jobs.wait, jobs.close_stdin, jobs.get):
            with pytest.raises(CommandMissingError):
                await call("c9")
        await jobs.start("sleep 300")
        with pytest.raises(CommandError, match="terminal"):
            await jobs.resize("c1", 10, 10)
        with pytest.raises(CommandError, match="signal"):
            await jobs.signal("c1", 99)
        with pytest.raises(CommandError, match="max_bytes"):
            await jobs.read("c1", max_bytes=-1)
        with pytest.raises(CommandError, match="has not read"):
            await jobs.write("c1", b"x" * 500_000, timeout=0.2)
        missing = await jobs.start(Command(["no-such-program"]))
        end = await jobs.wait(missing.id, 5)
        assert end is not None
        assert end.code == 127
        assert "not found" in (await jobs.read(missing.id)).text


async def test_a_backend_without_terminals_refuses_one() -> None:
    async with a_session(lambda: ProcessBackend(ProcessConfig(portable=True))) as session:
        with pytest.raises(UnsupportedError, match="terminal"):
            await session.background.start(Command(["true"], terminal=TerminalSize()))
        assert await session.background.commands() == []


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_on_trio() -> None:
    async with a_session(ProcessBackend) as session:
        jobs = session.background
        await jobs.start(Command(["sh", "-c", "stty size; read x"], terminal=TerminalSize(9, 33)))
        await until(session, "c1", b"9 33\r\n")
        await jobs.write("c1", b"\n")
        end = await jobs.wait("c1", 10)
        assert end is not None
        assert end.code == 0
        await jobs.start("sleep 300")
        await session.aclose()
        with pytest.raises(SandboxLostError):
            await jobs.wait("c2", 5)


def test_kept_output_is_read_by_offsets() -> None:
    kept = KeptOutput(10)
    assert kept.part(0, 5, False).data == b""
    kept.add(b"0123456")
    assert kept.part(2, 3, False).data == b"234"
    assert kept.part(99, 3, False).offset == 7
    kept.add(b"789abcdef")
    part = kept.part(2, 4, True)
    assert (part.data, part.offset, part.dropped, part.total) == (b"6789", 6, 4, 16)
    assert part.next_offset == 10
    assert kept.part(-4, 99, True).data == b"cdef"
    assert kept.part(-99, 99, True).dropped == 6
