"""Two hundred executions at once, each with a whole life of its own."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from ringfence.backend import Backend
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.config import BubblewrapConfig
from ringfence.export import export_workspace
from ringfence.leases import SqliteLeases
from ringfence.sessions import SessionManager

from ..faults.conftest import usable
from ..machine import nothing_left, steady

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AT_ONCE = 200


def test_two_hundred_executions_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each makes, writes, runs, reads, exports and destroys, and gets what is its own."""
    usable("bubblewrap")
    done = 0

    async def one(sessions: SessionManager, number: int) -> None:
        nonlocal done
        name = f"run-{number}"
        session = sessions.session(name, plan="enterprise")
        await session.write_file("in", str(number))
        result = await sessions.exec(name, "cat in | tee out; echo x >>out")
        assert result.check().stdout_text == str(number)
        assert await session.read_file("out") == f"{number}x\n".encode()
        report = await export_workspace(session, tmp_path / name)
        assert {file.path for file in report.files} == {"in", "out"}
        await sessions.destroy_execution(name)
        done += 1

    async def main(backend: Backend) -> None:
        async with backend:
            await backend.execute("true")
            before = await steady()
            began = time.perf_counter()
            async with SessionManager(backend) as sessions, anyio.create_task_group() as group:
                for number in range(AT_ONCE):
                    group.start_soon(one, sessions, number)
            took = time.perf_counter() - began
            await nothing_left(before)
        with capsys.disabled():
            print(f"\n  {AT_ONCE} executions at once in {took:.1f} s", end="")

    anyio.run(main, BubblewrapBackend(BubblewrapConfig(start_timeout=120.0)))
    assert done == AT_ONCE
    store = SqliteLeases()
    assert store.live() == []
    store.close()
