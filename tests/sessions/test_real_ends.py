"""Sessions whose real sandbox is killed from outside: told once, with its cause, and then anew."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from ringfence import inventory
from ringfence.backend import Backend
from ringfence.errors import FileMissingError, SandboxLostError
from ringfence.models import Network, SandboxSpec
from ringfence.registry import open_backend
from ringfence.sessions import Session, SessionManager
from ringfence.tools import Toolkit
from scripts.services.engine import Engine

from ..faults.conftest import usable

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MINIMAL = {"backend": "container", "image": "ringfence-test:minimal"}
NAMES = pytest.mark.parametrize(
    "name", ["bubblewrap", "process", pytest.param("container", marks=pytest.mark.container)]
)


def backend(name: str) -> Backend:
    return open_backend(MINIMAL) if name == "container" else usable(name)()


@asynccontextmanager
async def managed(name: str) -> AsyncIterator[SessionManager]:
    # The backend is looked for in a thread, as looking has an event loop of its own.
    opened = await anyio.to_thread.run_sync(backend, name)
    async with opened, SessionManager(opened) as sessions:
        yield sessions


def kill(name: str, sandbox_id: str) -> None:
    """Kill a sandbox from outside."""
    if name == "container":
        Engine().call("POST", f"/containers/{sandbox_id}/kill")
        return
    (entry,) = [found.entry for found in inventory.scan() if found.entry.id == sandbox_id]
    assert entry.pid is not None
    os.kill(entry.pid, signal.SIGKILL)


@NAMES
async def test_a_sandbox_that_is_killed_between_calls(name: str) -> None:
    """Catches an empty workspace without a word, and a bare error of the engine's."""
    async with managed(name) as sessions:
        session = sessions.session("a")
        await session.write_file("notes", b"1")
        kill(name, session.id)
        with anyio.fail_after(20), pytest.raises(SandboxLostError) as caught:
            await until_lost(session)
        assert caught.value.cause
        with pytest.raises(FileMissingError, match="is gone"):
            await session.read_file("notes")
        result = await sessions.exec("a", "echo again")
        assert (result.stdout, result.workspace_is_new) == (b"again\n", True)
        assert session.generation == 2


async def until_lost(session: Session) -> None:
    """Use it until it says that it is lost; the news takes its time to come."""
    while True:
        await session.exec("true")
        await anyio.sleep(0.01)


@NAMES
async def test_a_sandbox_that_is_killed_under_a_command(name: str) -> None:
    """Catches a call that waits for the end of its time, for want of anybody to end it before."""
    outcomes: list[Any] = []

    async def call(sessions: SessionManager, run: Callable[[], Any]) -> None:
        try:
            outcomes.append(await run())
        except SandboxLostError as error:
            outcomes.append(type(error))

    async with managed(name) as sessions:
        session = sessions.session("a")
        await session.ensure()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(
                        call, sessions, lambda: sessions.exec("a", "echo x >>up; sleep 200")
                    )
                while (await session.list_files()).total == 0:
                    await anyio.sleep(0.01)
                kill(name, session.id)
        assert outcomes == [SandboxLostError] * 3
        assert (await sessions.exec("a", "ls")).stdout == b""


@NAMES
async def test_an_agent_is_told_that_its_files_are_gone(name: str) -> None:
    async with managed(name) as sessions:
        tools = Toolkit(sessions.session("a"))
        await tools.call("write_file", {"path": "notes", "content": "1"})
        kill(name, tools.sandbox.id)
        with anyio.fail_after(20):
            while not (output := await tools.call("terminal", {"command": "cat notes"})).is_error:
                await anyio.sleep(0.01)
        assert output.code == "sandbox_lost"
        output = await tools.call("terminal", {"command": "ls"})
        assert output.text.startswith("[the workspace is new")


@pytest.mark.container
async def test_a_plan_decides_whether_there_is_a_network() -> None:
    async with managed("container") as sessions:
        interfaces = "ls /sys/class/net"
        assert (await sessions.exec("plain", interfaces)).stdout.split() == [b"lo"]
        asked = SandboxSpec(network=Network("bridge"))
        session = sessions.session("out", plan="pro", spec=asked)
        assert len((await session.exec("ls", ["/sys/class/net"])).stdout.split()) == 2
        labels = Engine().call("GET", f"/containers/{session.id}/json")["Config"]["Labels"]
        assert labels["ringfence.execution_id"] == "out"
        assert labels["ringfence.tenant_id"] == "default"
