"""Streamable HTTP: who may come in, whose session is whose, and what a lost client leaves."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from ringfence.mcp import HttpAccess, McpOptions

from ..machine import processes_with, until_gone
from .serving import (
    BACKENDS,
    GENERATIONS,
    LEGACY,
    MARKS,
    STATELESS,
    Make,
    Served,
    code,
    command,
    environment,
    live,
    served,
    text,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ONE, OTHER = "one-" + "x" * 40, "other-" + "y" * 40
TOKENS = HttpAccess({ONE: "token1", OTHER: "token2"})
WRITE = {"path": "f", "content": "mine"}
READ = {"path": "f"}


@BACKENDS
async def test_each_connection_has_a_session_of_its_own_which_ends_with_it(make: Make) -> None:
    async with served(make=make) as at:
        async with at.client() as first, at.client() as second:
            assert not (await first.call_tool("write_file", WRITE)).is_error
            assert code(await second.call_tool("read_file", READ)) == "file_missing"
            assert text(await first.call_tool("read_file", READ)).startswith("mine")
            await until(lambda: len(live()) == 2)
        await until(lambda: live() == [])
        assert len(at.server.clients) == 0


@BACKENDS
async def test_a_stateless_client_passes_a_handle(make: Make) -> None:
    async with served(make=make) as at, at.client(STATELESS) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert "end_session" in tools
        assert all("session" in tool.input_schema["properties"] for tool in tools.values())
        made = await client.call_tool("write_file", WRITE)
        handle = made.structured_content["session"]
        assert len(handle) >= 32
        assert text(made).endswith(f"\n[session: {handle}]")
        mine = {"session": handle}
        again = await client.call_tool("read_file", READ | mine)
        assert again.structured_content["text"] == "mine"
        assert again.structured_content["session"] == handle
        other = await client.call_tool("list_files", {})
        assert other.structured_content["session"] != handle
        assert other.structured_content["entries"] == []
        failed = await client.call_tool("read_file", {"path": "nothing"} | mine)
        assert code(failed) == "file_missing"
        assert handle in text(failed)
        ended = await client.call_tool("end_session", mine)
        assert ended.structured_content == {"ended": True}
        gone = await client.call_tool("read_file", READ | mine)
        assert code(gone) == "tool"
        assert "leave `session` out" in text(gone)
        await until(lambda: len(live()) == 1)


async def test_a_handle_that_is_not_used_ends() -> None:
    async with served(McpOptions(idle_timeout=1.0)) as at, at.client(STATELESS) as client:
        made = await client.call_tool("write_file", WRITE)
        mine = {"session": made.structured_content["session"]}
        await until(lambda: live() == [])
        await until(lambda: len(at.server.clients) == 0)
        gone = await client.call_tool("read_file", READ | mine)
        assert "there is no such session" in text(gone)


async def test_a_handle_tells_nothing_of_itself_elsewhere() -> None:
    """Catches a secret that is also a label, which others on the machine can read."""
    from ringfence import inventory

    async with served() as at, at.client(STATELESS) as client:
        made = await client.call_tool("write_file", WRITE)
        handle = made.structured_content["session"]
        kept = repr([item.entry for item in inventory.scan()])
        assert "mcp-" in kept
        assert handle[:8] not in kept


async def test_a_token_is_needed_where_there_are_any() -> None:
    async with served(access=TOKENS) as at, httpx2.AsyncClient() as http:
        for header in (None, f"Bearer {ONE}z", f"Basic {ONE}", "Bearer \xe9", "Bearer"):
            given = [] if header is None else [(b"Authorization", header.encode())]
            answer = await http.post(at.url, json={}, headers=given)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert ONE not in answer.text
        async with at.client(token=ONE) as client:
            assert not (await client.call_tool("list_files", {})).is_error
    assert ONE not in repr(TOKENS)


async def test_what_one_token_made_is_not_anothers() -> None:
    async with (
        served(access=TOKENS) as at,
        at.client(STATELESS, ONE) as one,
        at.client(STATELESS, OTHER) as other,
    ):
        made = await one.call_tool("write_file", WRITE)
        mine = {"session": made.structured_content["session"]}
        assert "there is no such session" in text(await other.call_tool("read_file", READ | mine))
        assert (await one.call_tool("read_file", READ | mine)).structured_content["text"] == "mine"


async def test_a_connection_of_one_token_is_not_anothers() -> None:
    async with served(access=TOKENS) as at, httpx2.AsyncClient(timeout=30) as http:
        connection = await connected(http, at, ONE)
        for token, status in ((OTHER, 404), (ONE, 200)):
            answer = await post(http, at, call("list_files"), connection, token)
            assert answer.status_code == status
        assert len(at.server.clients) == 1
        gone = await http.delete(at.url, headers=headers(connection, OTHER))
        assert gone.status_code == 404
        assert len(at.server.clients) == 1
        gone = await http.delete(at.url, headers=headers(connection, ONE))
        assert gone.status_code == 200
        assert len(at.server.clients) == 0


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Host": "sandbox.example:8000"}, 200),
        ({"Host": "sandbox.example:8000", "Origin": "https://app.example"}, 200),
    ],
)
async def test_a_name_that_leads_here_from_elsewhere_is_refused(
    header: dict[str, str], status: int
) -> None:
    """Catches a page in somebody's browser whose name was made to point at this machine."""
    access = HttpAccess(hosts=["sandbox.example:8000"], origins=["https://app.example"])
    async with served(access=access) as at, httpx2.AsyncClient(timeout=30) as http:
        for known in (None, "2026-07-28"):
            answer = await http.post(
                at.url, json=initialize() if known is None else discover(),
                headers=headers() | header | ({} if known is None else modern("server/discover")),
            )  # fmt: skip
            assert answer.status_code == status, answer.text
        assert len(at.server.clients) == 0


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with served() as at, at.client() as client, httpx2.AsyncClient(timeout=30) as http:
        answer = await http.post(at.url, content=b"[" * (9 << 20), headers=headers())
        assert answer.status_code == 413
        assert not (await client.call_tool("list_files", {})).is_error


@GENERATIONS
async def test_a_client_that_is_cut_off_in_a_call_has_its_command_killed(mode: str) -> None:
    mark = next(MARKS)
    async with served(McpOptions(gone_timeout=1.0)) as at:
        async with cut_off_in_a_call(at, mode, f"setsid sleep {mark} & sleep {mark}") as cut:
            await until(lambda: len(processes_with(mark)) >= 2)
            pids = processes_with(mark)
            await cut()
            # The event loop has to see the end of the connection, so it may not be blocked.
            assert await anyio.to_thread.run_sync(until_gone, pids) == []
        # What the client can't come back to ends with the call, the rest when it does not come.
        await until(lambda: live() == [])
        assert len(at.server.clients) == 0


async def test_a_client_that_comes_back_in_time_has_its_session() -> None:
    mark = next(MARKS)
    async with served(McpOptions(gone_timeout=60.0)) as at, httpx2.AsyncClient(timeout=30) as http:
        connection = await connected(http, at)
        await post(http, at, call("write_file", **WRITE), connection)
        async with cut_off_in_a_call(at, LEGACY, f"sleep {mark}", connection) as cut:
            await until(lambda: processes_with(mark))
            await cut()
        await until(lambda: not processes_with(mark))
        answer = await post(http, at, call("read_file", **READ), connection)
        assert "mine" in answer.text


async def test_a_client_that_comes_back_too_late_is_told_that_its_files_are_gone() -> None:
    mark = next(MARKS)
    async with served(McpOptions(gone_timeout=0.2)) as at, httpx2.AsyncClient(timeout=30) as http:
        connection = await connected(http, at)
        await post(http, at, call("write_file", **WRITE), connection)
        async with cut_off_in_a_call(at, LEGACY, f"sleep {mark}", connection) as cut:
            await until(lambda: processes_with(mark))
            await cut()
        await until(lambda: live() == [])
        for said in (True, False):
            answer = await post(http, at, call("run_command", command="ls"), connection)
            assert ("the workspace is new" in answer.text) == said
            assert "(no output)" in answer.text


async def test_a_client_that_still_listens_is_not_gone() -> None:
    """Catches a request that was given up for a client that was."""
    mark = next(MARKS)
    async with served(McpOptions(gone_timeout=0.2)) as at, httpx2.AsyncClient(timeout=30) as http:
        connection = await connected(http, at)
        async with http.stream("GET", at.url, headers=headers(connection)) as listening:
            assert listening.status_code == 200
            async with cut_off_in_a_call(at, LEGACY, f"sleep {mark}", connection) as cut:
                await until(lambda: processes_with(mark))
                await cut()
            await until(lambda: not processes_with(mark))
            await anyio.sleep(1)
            await until(lambda: len(live()) == 1)
        await until(lambda: live() == [])


async def test_a_page_of_a_named_origin_is_let_in_by_its_browser() -> None:
    access = HttpAccess({ONE: "token1"}, origins=["https://app.example"])
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,mcp-protocol-version",
    }
    async with served(access=access) as at, httpx2.AsyncClient(timeout=30) as http:
        for origin, status in (("https://app.example", 200), ("https://evil.example", 400)):
            answer = await http.options(at.url, headers=asks | {"Origin": origin})
            assert answer.status_code == status
            allowed = answer.headers.get("access-control-allow-origin")
            assert allowed == (origin if status == 200 else None)
        page = {"Origin": "https://app.example"}
        answer = await http.post(at.url, json=initialize(), headers=headers("", ONE) | page)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "mcp-session-id" in answer.headers["access-control-expose-headers"].lower()


async def test_a_signal_ends_the_real_command_with_all_that_runs_in_it() -> None:
    mark = next(MARKS)
    with subprocess.Popen(
        command("--backend", "bubblewrap", "--http", "127.0.0.1:0"),
        env=environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        url = server.stderr.readline().split()[-1]
        at = Served(url, int(url.rpartition(":")[2].partition("/")[0]))
        async with httpx2.AsyncClient(timeout=30) as http:
            connection = await connected(http, at)
            async with (
                http.stream("GET", at.url, headers=headers(connection)),
                cut_off_in_a_call(at, LEGACY, f"sleep {mark}", connection),
            ):
                await until(lambda: processes_with(mark))
                pids = processes_with(mark)
                server.send_signal(signal.SIGTERM)
                code = await anyio.to_thread.run_sync(server.wait, 20)
        assert code == 128 + signal.SIGTERM
        assert until_gone(pids) == []
        assert server.stderr.read() == ""
    await until(lambda: live() == [])


async def test_connections_that_were_left_without_a_word_keep_nobody_out() -> None:
    """Catches clients that crash and come again until there is no place left."""
    options = McpOptions(max_sessions=1, idle_timeout=0.5)
    async with served(options) as at, httpx2.AsyncClient(timeout=30) as http:
        for _ in range(3):
            connection = await connected(http, at)
            answer = await post(http, at, call("write_file", **WRITE), connection)
            assert '"isError":false' in answer.text
            await until(lambda: live() == [])


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
async def test_a_client_of_an_older_revision_is_served(version: str) -> None:
    async with served() as at, httpx2.AsyncClient(timeout=30) as http:
        hello = initialize()
        hello["params"]["protocolVersion"] = version
        answer = await post(http, at, hello)
        assert f'"protocolVersion":"{version}"' in answer.text
        connection = answer.headers["mcp-session-id"]
        own = headers(connection) | {"MCP-Protocol-Version": version}
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await http.post(at.url, json=told, headers=own)
        answer = await http.post(at.url, json=call("write_file", **WRITE), headers=own)
        assert "4 bytes written to f" in answer.text


async def test_there_are_only_so_many_sessions() -> None:
    async with served(McpOptions(max_sessions=2)) as at, at.client(STATELESS) as client:
        handles = [
            (await client.call_tool("list_files", {})).structured_content["session"]
            for _ in range(2)
        ]
        refused = await client.call_tool("list_files", {})
        assert code(refused) == "limit"
        assert "end_session" in text(refused)
        await client.call_tool("end_session", {"session": handles[0]})
        assert not (await client.call_tool("list_files", {})).is_error


@GENERATIONS
async def test_many_calls_at_once_are_answered_and_leave_nothing(mode: str) -> None:
    options = McpOptions(calls_at_once=4, calls_waiting=10)
    outcomes: list[str] = []
    async with served(options) as at, at.client(mode) as client:
        first = await client.call_tool("write_file", WRITE)
        mine = {"session": first.structured_content["session"]} if mode == STATELESS else {}

        async def one() -> None:
            done = await client.call_tool("run_command", {"command": "cat f"} | mine)
            outcomes.append(code(done) if done.is_error else text(done).splitlines()[0])

        async with anyio.create_task_group() as tasks:
            for _ in range(80):
                tasks.start_soon(one)
        assert len(outcomes) == 80
        assert set(outcomes) <= {"mine", "limit"}
        assert outcomes.count("mine") >= 14
        assert not (await client.call_tool("read_file", READ | mine)).is_error
        await until(lambda: len(live()) == 1)
    await until(lambda: live() == [])


# Plain HTTP, for what the SDK's client does not do.


def headers(connection: str = "", token: str = "") -> dict[str, str]:
    found = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    if connection:
        found |= {"Mcp-Session-Id": connection, "MCP-Protocol-Version": "2025-11-25"}
    if token:
        found["Authorization"] = f"Bearer {token}"
    return found


def modern(method: str, name: str = "") -> dict[str, str]:
    found = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method}
    return found | ({"Mcp-Name": name} if name else {})


def initialize() -> dict[str, Any]:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    }
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def discover() -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": META}}


NUMBERS = count(1)
"""What requests are called: a connection takes no name twice."""


def call(name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": next(NUMBERS), "method": "tools/call", "params": params}


async def post(
    http: httpx2.AsyncClient, at: Served, message: Any, connection: str = "", token: str = ""
) -> httpx2.Response:
    return await http.post(at.url, json=message, headers=headers(connection, token))


async def connected(http: httpx2.AsyncClient, at: Served, token: str = "") -> str:
    """Open a connection of the handshake's generation and return its id."""
    answer = await post(http, at, initialize(), token=token)
    connection: str = answer.headers["mcp-session-id"]
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert (await post(http, at, told, connection, token)).status_code == 202
    return connection


@asynccontextmanager
async def cut_off_in_a_call(
    at: Served, mode: str, script: str, connection: str = ""
) -> AsyncIterator[Any]:
    """Begin a call over a socket of its own, which the function that this yields resets."""
    message = call("run_command", command=script)
    if mode == STATELESS:
        message["params"]["_meta"] = META
        lines = headers() | modern("tools/call", "run_command")
    else:
        if not connection:
            async with httpx2.AsyncClient(timeout=30) as http:
                connection = await connected(http, at)
        lines = headers(connection)
    body = json.dumps(message).encode()
    lines |= {"Host": f"127.0.0.1:{at.port}", "Content-Length": str(len(body))}
    head = "POST /mcp HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
    async with await anyio.connect_tcp("127.0.0.1", at.port) as stream:
        await stream.send(head.encode() + body)
        yield stream.aclose
