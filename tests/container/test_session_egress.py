"""What sessions on a bridge reach: the world outside, and neither this machine nor one another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from ringfence.errors import LimitError, SandboxLostError
from ringfence.leases import MemoryLeases
from ringfence.models import Command
from ringfence.sessions import Session, SessionManager

from .conftest import PYTHON, containers
from .seen import Seen
from .test_egress import (
    BRIDGE,
    METADATA,
    SERVER,
    WORLD,
    OwnService,
    bridges,
    own_addresses,
    own_service,
    reached,
    world,
)

__all__ = ("own_service", "world")

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

ADDRESS = "import socket; print(socket.gethostbyname(socket.gethostname()))"


@asynccontextmanager
async def managed(seen: Seen) -> AsyncIterator[SessionManager]:
    async with (
        containers(seen.socket, PYTHON) as backend,
        SessionManager(backend, leases=MemoryLeases()) as sessions,
    ):
        yield sessions
    await seen.until_nothing_left()


async def served(session: Session) -> str:
    """Return a session's own address, after it has begun to serve there."""
    found = await session.exec("python3", ["-c", ADDRESS])
    server = await session.start(Command(("python3", "-c", SERVER)))
    assert await server.receive() is not None
    return found.check().stdout_text.strip()


async def until_lost(session: Session) -> None:
    with anyio.fail_after(60):
        while True:
            await session.ping()
            await anyio.sleep(0.05)


def test_a_session_s_bridge_leads_out_and_nowhere_else(
    world: None, seen: Seen, own_service: OwnService
) -> None:
    async def main() -> None:
        async with managed(seen) as sessions:
            one = sessions.session("one", plan="pro", spec=BRIDGE)
            # Another execution of the same tenant, and another tenant's.
            same = sessions.session("two", plan="pro", spec=BRIDGE)
            other = sessions.session("one", tenant_id="other", plan="pro", spec=BRIDGE)
            neighbours = [await served(same), await served(other)]
            assert await reached(one, WORLD, *METADATA, *neighbours) == [WORLD]
            machine = await anyio.to_thread.run_sync(own_addresses)
            assert len(machine) >= 3
            assert await reached(one, *machine, port=own_service.port) == []
            assert len(seen.left().networks) == 3
            await sessions.destroy_execution("one")
            await sessions.destroy_execution("two")
            with anyio.fail_after(60):
                while len(seen.left().networks) > 1:
                    await anyio.sleep(0.1)
            assert await reached(other, WORLD, METADATA[0]) == [WORLD]

    anyio.run(main)


def test_a_session_has_a_bridge_only_where_its_plan_and_it_say_so(world: None, seen: Seen) -> None:
    async def main() -> None:
        async with managed(seen) as sessions:
            with pytest.raises(LimitError, match="'bridge' is not in plan 'free'") as caught:
                sessions.session("run", spec=BRIDGE)
            assert caught.value.limit == "networks"
            assert seen.left().networks == ()
            silent = sessions.session("run", plan="pro")  # which would allow it
            assert await reached(silent, WORLD, *METADATA, *own_addresses()) == []
            assert (await silent.exec("ls", ["/sys/class/net"])).stdout == b"lo\n"

    anyio.run(main)


def test_a_session_s_next_sandbox_is_guarded_as_the_one_before(world: None, seen: Seen) -> None:
    async def main() -> None:
        async with managed(seen) as sessions:
            session = sessions.session("run", plan="pro", spec=BRIDGE)
            assert await reached(session, WORLD, METADATA[0]) == [WORLD]
            first = session.id
            seen.call("POST", f"/containers/{first}/kill")
            with pytest.raises(SandboxLostError):
                await until_lost(session)
            assert await reached(session, WORLD, *METADATA) == [WORLD]
            assert session.id != first
            with anyio.fail_after(60):
                while first in await anyio.to_thread.run_sync(bridges):
                    await anyio.sleep(0.1)
            assert session.id in bridges()

    anyio.run(main)
