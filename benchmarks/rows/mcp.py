"""What serving over MCP adds to a command: the tool's function, the server, and each transport."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.leases import MemoryLeases
from ringfence.mcp import open_server
from ringfence.sessions import SessionManager
from ringfence.tools import terminal

from ..measure import TOTAL, Side, Times, alternate, check, summarize, totals
from ..report import Line, compare
from ..settings import Settings

__all__ = ("run",)

_ARGUMENTS = {"command": "true"}
_SAID = "(no output)\n[exit code: 0]"
_GROUPS = 10
_LIMIT = 0.0005  # seconds
_GENERATIONS = {"": "legacy", ", stateless": "2026-07-28"}
_FUNCTION = "the tool's function"


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure the shell command `true`: called in this process, and over stdio and HTTP."""
    async with (
        BubblewrapBackend() as backend,
        SessionManager(backend, leases=MemoryLeases()) as sessions,
        open_server(sessions) as server,
    ):
        session = sessions.session("measured")

        async def function() -> Times:
            began = time.perf_counter()
            text = await terminal(session, "true")
            return _took(began, text)

        async def served() -> Times:
            began = time.perf_counter()
            result = await server.call_tool("run_command", _ARGUMENTS)
            return _took(began, _text(result))

        inside = await alternate(
            {"ours": served, _FUNCTION: function}, settings.rounds(1000, 2 * _GROUPS), warm_up=5
        )
        lines = [compare("run_command, in this process", inside), _added(inside)]
        async with AsyncExitStack() as stack:
            for what, mode in _GENERATIONS.items():
                for transport in (_stdio, _http):
                    client = await stack.enter_async_context(transport(mode))
                    sides = {"ours": await _client_side(client), _FUNCTION: function}
                    taken = await alternate(sides, settings.rounds(300, 3), warm_up=5)
                    name = transport.__name__.strip("_")
                    lines.append(compare(f"run_command over {name}{what}", taken))
    return lines


async def _client_side(client: Client) -> Side:
    made = await client.call_tool("run_command", _ARGUMENTS)
    handle = (made.structured_content or {}).get("session")
    arguments = _ARGUMENTS | ({"session": handle} if handle else {})

    async def side() -> Times:
        began = time.perf_counter()
        result = await client.call_tool("run_command", arguments)
        return _took(began, _text(result).removesuffix(f"\n[session: {handle}]"))

    return side


@asynccontextmanager
async def _stdio(mode: str) -> AsyncIterator[Client]:
    program, *rest = _command()
    started = StdioServerParameters(command=program, args=rest)
    async with Client(started, mode=mode) as client:
        yield client


@asynccontextmanager
async def _http(mode: str) -> AsyncIterator[Client]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with await anyio.open_process(
        [*_command(), "--http", address], stdin=None, stderr=None, stdout=None
    ) as server:
        await _until_it_listens(address)
        async with Client(f"http://{address}/mcp", mode=mode) as client:
            yield client
        server.terminate()
        await server.wait()


async def _until_it_listens(address: str) -> None:
    host, _, port = address.rpartition(":")
    with anyio.fail_after(20):
        while True:
            try:
                async with await anyio.connect_tcp(host, int(port)):
                    return
            except OSError:
                await anyio.sleep(0.05)


def _command() -> list[str]:
    return [sys.executable, "-m", "ringfence", "mcp", "--backend", "bubblewrap"]


def _text(result: Any) -> str:
    text: str = result.content[0].text
    return text


def _took(began: float, text: str) -> Times:
    took = time.perf_counter() - began
    check(text == _SAID, f"true gave {text!r}")
    return {TOTAL: took}


def _added(taken: dict[str, list[Times]]) -> Line:
    """Return what the server adds, as the median of each tenth of the rounds."""
    ours, other = (totals(times) for times in taken.values())
    more = [a - b for a, b in zip(ours, other, strict=True)]
    size = max(1, len(more) // _GROUPS)
    groups = [median(more[at : at + size]) for at in range(0, len(more), size)]
    return Line("what the server adds to a call", summarize(groups), limit=_LIMIT)
