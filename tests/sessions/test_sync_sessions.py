"""Sessions from blocking code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from ringfence import sync
from ringfence.backends.fake import FakeBackend, Script
from ringfence.backends.process import ProcessBackend
from ringfence.errors import SandboxClosedError, SandboxLostError
from ringfence.leases import MemoryLeases
from ringfence.models import Chunk, Command, TerminalSize


@contextmanager
def managed(script: Script) -> Iterator[sync.SessionManager]:
    backend = sync.Backend(FakeBackend(script=script))
    with backend, sync.SessionManager(backend, leases=MemoryLeases()) as sessions:
        yield sessions


def test_the_twins_do_what_the_async_ones_do() -> None:
    with managed(Script([b"a", Chunk("stderr", b"b")])) as sessions:
        assert sessions.exec("run", "x").stdout == b"a"
        session = sessions.session("run")
        session.write_file("f", b"1")
        assert session.read_file("f") == b"1"
        assert (session.execution_id, session.generation, session.is_live) == ("run", 1, True)
        assert [one.execution_id for one in sessions.sessions] == ["run"]
        with sessions.exec_streaming("run", "x") as run:
            assert "".join(chunk.text for chunk in run) == "ab"
        assert run.result.ok
        assert sessions.cleanup_stale() == 0
        sessions.destroy_execution("run")
        with pytest.raises(SandboxClosedError):
            session.exec("x")


def test_a_callback_is_called_in_its_caller_s_thread() -> None:
    seen = []
    with managed(Script([b"a"])) as sessions:
        result = sessions.exec(
            "run", "x", on_output=lambda chunk: seen.append((chunk.text, threading.get_ident()))
        )
    assert result.stdout == b"a"
    assert seen == [("a", threading.get_ident())]


def test_errors_come_through() -> None:
    with managed(Script(loses="killed")) as sessions, pytest.raises(SandboxLostError):
        sessions.exec("run", "x")


def test_inside_a_running_loop() -> None:
    async def main() -> bytes:
        with managed(Script([b"a"])) as sessions:
            return sessions.exec("run", "x").stdout

    assert anyio.run(main) == b"a"


def test_background_commands_have_a_twin() -> None:
    backend = sync.Backend(ProcessBackend())
    with backend, sync.SessionManager(backend, leases=MemoryLeases()) as sessions:
        jobs = sessions.session("run").background
        command = Command(["sh", "-c", "stty size; read x; exit 4"], terminal=TerminalSize(9, 33))
        started = jobs.start(command)
        assert (started.id, started.running) == ("c1", True)
        while b"9 33" not in jobs.read("c1").data:
            assert jobs.get("c1").running
        jobs.resize("c1", 10, 40)
        jobs.write("c1", "x\n")
        end = jobs.wait("c1", 10)
        assert end is not None
        assert end.code == 4
        assert [one.running for one in jobs.commands()] == [False]
