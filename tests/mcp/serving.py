"""Servers for the tests: one in this process on a real port, one as the real command."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

import ringfence
from ringfence import inventory
from ringfence.backend import Backend
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.docker import ContainerBackend
from ringfence.config import BubblewrapConfig, ContainerConfig
from ringfence.leases import MemoryLeases
from ringfence.mcp import HttpAccess, McpOptions, SandboxServer, open_server
from ringfence.mcp.access import listen
from ringfence.mcp.answers import ERROR_META
from ringfence.mcp.http import serve_listening
from ringfence.sessions import SessionManager

LEGACY, STATELESS = "legacy", "2026-07-28"
GENERATIONS = pytest.mark.parametrize("mode", [LEGACY, STATELESS])

SOURCE = str(Path(ringfence.__file__).parent.parent)

Make = Callable[[], Backend]


def bubblewrap() -> Backend:
    return BubblewrapBackend(BubblewrapConfig(spares=0))  # which would be counted


def container() -> Backend:
    return ContainerBackend(ContainerConfig(image="ringfence-test:python"))


BACKENDS = pytest.mark.parametrize(
    "make",
    [
        pytest.param(bubblewrap, id="bubblewrap"),
        pytest.param(container, id="container", marks=pytest.mark.container),
    ],
)


def live() -> list[str]:
    """Return the sandboxes that this user's processes hold in the tests' own place."""
    return [item.entry.id for item in inventory.scan()]


async def until(holds: Callable[[], Any], seconds: float = 45.0) -> None:
    """Wait until something is so."""
    with anyio.fail_after(seconds):
        while not holds():
            await anyio.sleep(0.02)


@asynccontextmanager
async def opened(
    make: Make = bubblewrap,
    options: McpOptions | None = None,
    *,
    one_client: bool = True,
) -> AsyncIterator[SandboxServer]:
    """Return a server; fails if a sandbox is left when it is closed."""
    wanted = options or McpOptions()
    manager = SessionManager
    async with make() as backend:
        async with (
            manager(backend, leases=MemoryLeases(), idle_timeout=wanted.idle_timeout) as sessions,
            open_server(sessions, wanted, one_client=one_client) as server,
        ):
            yield server
        assert sessions.sessions == []
    await until(lambda: live() == [])


@dataclass
class Served:
    """A server that listens.

    Attributes:
        url: Of its endpoint.
        port: That it listens on.
        made: The server itself, if it is in this process.
    """

    url: str
    port: int
    made: SandboxServer | None = None

    @property
    def server(self) -> SandboxServer:
        assert self.made is not None
        return self.made

    @asynccontextmanager
    async def client(self, mode: str = LEGACY, token: str | None = None) -> AsyncIterator[Client]:
        """Connect the SDK's own client."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=mode) as found,
        ):
            yield found


@asynccontextmanager
async def served(
    options: McpOptions | None = None,
    access: HttpAccess | None = None,
    make: Make = bubblewrap,
) -> AsyncIterator[Served]:
    """Serve over HTTP on a port of this machine."""
    given = access or HttpAccess()
    async with opened(make, options, one_client=False) as server:
        with listen("127.0.0.1", 0, given) as listener:
            port = listener.getsockname()[1]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve_listening, server, listener, given)
                try:
                    yield Served(f"http://127.0.0.1:{port}/mcp", port, server)
                finally:
                    tasks.cancel_scope.cancel()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ringfence", "mcp", *words]


def environment() -> dict[str, str]:
    """Return the variables of a server that is a process of its own."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_HOST") if name in os.environ
    }
    place = {"RINGFENCE_STATE_DIR": os.environ["RINGFENCE_STATE_DIR"]}
    return {**kept, **place, "PYTHONPATH": SOURCE}


def stdio(*words: str) -> StdioServerParameters:
    """Return how a client starts the real command."""
    program, *rest = command("--backend", "bubblewrap", *words)
    return StdioServerParameters(command=program, args=rest, env=environment())


def text(result: Any) -> str:
    """Return the text of a tool's result."""
    assert isinstance(result, CallToolResult)
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text


def code(result: Any) -> str:
    """Return the code of the error that a call ended with."""
    assert isinstance(result, CallToolResult)
    assert result.is_error
    assert result.meta is not None
    found: str = result.meta[ERROR_META]["code"]
    return found


def marks() -> Iterator[str]:
    """Yield numbers of seconds that no other process sleeps for."""
    number = 0
    while True:
        number += 1
        yield f"{90_000 + os.getpid() % 10_000}.{number:04}"


MARKS = marks()
