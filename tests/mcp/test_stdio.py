"""The real command on stdio: one client, with the SDK's own client at the other end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import anyio
import pytest
from mcp.client import Client

from ..machine import processes_with, until_gone
from .serving import GENERATIONS, LEGACY, MARKS, code, command, environment, live, text, until
from .serving import stdio as real

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ALL = {
    "run_command", "run_code", "write_file", "read_file", "list_files", "start_command",
    "read_output", "write_input", "stop_command", "list_commands",
}  # fmt: skip


@GENERATIONS
async def test_a_client_works_in_one_workspace(mode: str) -> None:
    async with Client(real(), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == ALL
        assert all(tool.output_schema for tool in tools.values())
        assert all("session" not in tool.input_schema["properties"] for tool in tools.values())
        done = await client.call_tool("write_file", {"path": "a/b.txt", "content": "é\n"})
        assert done.structured_content == {"path": "a/b.txt", "bytes": 3, "appended": False}
        done = await client.call_tool(
            "run_command", {"command": "cat a/b.txt; echo oh >&2; exit 3"}
        )
        assert text(done) == "é\n[stderr]\noh\n[exit code: 3]"
        assert not done.is_error
        assert done.structured_content["stdout"] == "é\n"
        assert done.structured_content["exit_code"] == 3
        done = await client.call_tool("run_code", {"language": "python", "code": "print(6 * 7)"})
        assert text(done) == "42\n[exit code: 0]"
        done = await client.call_tool("list_files", {})
        assert done.structured_content["entries"][1] == {
            "path": "a/b.txt",
            "kind": "file",
            "size": 3,
        }
    await until(lambda: live() == [])


async def test_a_command_in_the_background() -> None:
    async with Client(real(), mode=LEGACY) as client:
        began = await client.call_tool("start_command", {"command": "cat; echo bye", "wait": 0})
        name = began.structured_content["command_id"]
        told = await client.call_tool("write_input", {"command_id": name, "text": "hi\n"})
        assert told.structured_content["output"] == "hi\n"
        assert told.structured_content["running"]
        await client.call_tool("write_input", {"command_id": name, "end": True})
        heard = await client.call_tool("read_output", {"command_id": name, "offset": 0, "wait": 5})
        assert heard.structured_content["output"].startswith("hi\n")
        listed = await client.call_tool("list_commands", {})
        assert [one["command_id"] for one in listed.structured_content["commands"]] == [name]
        ended = await client.call_tool("stop_command", {"command_id": name})
        assert ended.structured_content["exit_code"] == 0
        assert (
            code(await client.call_tool("read_output", {"command_id": "c9"})) == "command_missing"
        )


@GENERATIONS
async def test_a_client_hears_how_a_command_is_doing(mode: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with Client(real(), mode=mode) as client:
        script = "for i in 1 2 3 4; do echo line $i; sleep 0.5; done"
        done = await client.call_tool(
            "run_command", {"command": script, "timeout": 20}, progress_callback=hear
        )
    assert text(done).endswith("line 4\n[exit code: 0]")
    assert len(heard) >= 2
    times = [progress for progress, _, _ in heard]
    assert times == sorted(times)
    assert {total for _, total, _ in heard} == {20}
    last = heard[-1][2]
    assert last is not None
    assert "lines" in last
    assert "bytes of output" in last


@GENERATIONS
async def test_a_cancelled_call_kills_its_command_and_nothing_else(mode: str) -> None:
    mark = next(MARKS)
    async with Client(real(), mode=mode) as client:
        await client.call_tool("write_file", {"path": "kept", "content": "x"})
        async with anyio.create_task_group() as tasks:
            script = {"command": f"setsid sleep {mark} & sleep {mark}"}
            tasks.start_soon(client.call_tool, "run_command", script)
            await until(lambda: len(processes_with(mark)) >= 2)
            pids = processes_with(mark)
            tasks.cancel_scope.cancel()
        assert until_gone(pids) == []
        assert text(await client.call_tool("read_file", {"path": "kept"})).startswith("x")


async def test_a_python_that_waits_is_older_than_its_program() -> None:
    age = (
        "import os\n"
        "started = int(open('/proc/self/stat').read().rpartition(')')[2].split()[19])\n"
        "print(float(open('/proc/uptime').read().split()[0]) - started / os.sysconf('SC_CLK_TCK'))"
    )
    async with Client(real("--python-ahead"), mode=LEGACY) as client:
        with anyio.fail_after(45):
            found = 0.0
            while found < 1.5:
                call = {"language": "python", "code": age}
                told = await client.call_tool("run_code", call)
                found = float(told.structured_content["stdout"])
                await anyio.sleep(2)


def start(*words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("--backend", "bubblewrap", *words),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    },
}


def send(server: subprocess.Popen[str], *messages: Any) -> None:
    assert server.stdin is not None
    for message in messages:
        line = message if isinstance(message, str) else json.dumps(message)
        server.stdin.write(line + "\n")
    server.stdin.flush()


def receive(server: subprocess.Popen[str]) -> Any:
    assert server.stdout is not None
    return json.loads(server.stdout.readline())


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def a_busy_server(mark: str) -> subprocess.Popen[str]:
    """Start a server, and a command in it that runs on."""
    server = start()
    send(server, HELLO)
    assert receive(server)["id"] == 0
    send(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    send(server, call(1, "run_command", command=f"sleep {mark}"))
    await until(lambda: processes_with(mark))
    return server


@pytest.mark.parametrize("how", ["closes its end", "is killed"])
async def test_a_client_that_goes_in_a_call_leaves_nothing(how: str) -> None:
    """Catches a command that runs on where nobody can hear of it."""
    mark = next(MARKS)
    server = await a_busy_server(mark)
    pids = processes_with(mark)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.close()
    if how == "is killed":
        server.stdout.close()
    assert until_gone([*pids, server.pid]) == []
    server.stdin = None
    assert server.wait(15) in (0, 141)
    await until(lambda: live() == [])
    server.stdout.close()
    assert server.stderr is not None
    server.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_while_its_client_is_silent(number: signal.Signals) -> None:
    """Catches a server that waits for its stdin, which nobody closes."""
    mark = next(MARKS)
    with await a_busy_server(mark) as server:
        pids = processes_with(mark)
        server.send_signal(number)
        assert server.wait(15) == 128 + number
        assert until_gone(pids) == []
        await until(lambda: live() == [])


async def test_what_is_no_message_ends_nothing() -> None:
    with start() as server:
        send(server, HELLO)
        receive(server)
        send(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        send(server, "nonsense", "[]", '{"jsonrpc": "2.0"}', "\ufffd\x00", call(1, "list_files"))
        answer = receive(server)
        assert (answer["id"], answer["result"]["isError"]) == (1, False)
        send(server, call(2, "run_command", command=["echo"]), call(3, "nothing"))
        answers = {one["id"]: one["result"] for one in (receive(server), receive(server))}
        assert [answers[number]["isError"] for number in (2, 3)] == [True, True]


async def test_a_thousand_calls_at_once_are_answered_and_leave_nothing() -> None:
    with start() as server:
        send(server, HELLO)
        receive(server)
        send(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        send(server, call(0, "write_file", path="f", content="mine"))
        assert receive(server)["id"] == 0
        send(server, *(call(number, "run_command", command="cat f") for number in range(1, 1001)))
        answers = {one["id"]: one["result"] for one in (receive(server) for _ in range(1000))}
        assert answers.keys() == set(range(1, 1001))
        refused = [one for one in answers.values() if one["isError"]]
        assert {one["_meta"]["ringfence/error"]["code"] for one in refused} <= {"limit"}
        done = [one for one in answers.values() if not one["isError"]]
        assert len(done) >= 288  # those that may run and wait
        assert {one["content"][0]["text"] for one in done} == {"mine\n[exit code: 0]"}
        await until(lambda: len(live()) == 1)
        send(server, call(2000, "run_command", command="cat f"))
        assert not receive(server)["result"]["isError"]
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(20) == 0
        server.stdin = None
    await until(lambda: live() == [])


async def test_a_message_without_an_end_ends_the_connection() -> None:
    with start() as server:
        assert server.stdin is not None
        part = "x" * (1 << 20)
        with suppress(BrokenPipeError):
            for _ in range(20):
                server.stdin.write(part)
            server.stdin.flush()
        assert server.wait(20) == 0
        assert server.stderr is not None
        assert "more than" in server.stderr.read()
        with suppress(BrokenPipeError):
            server.stdin.close()
        server.stdin = None


def test_what_else_is_printed_does_not_get_among_the_messages() -> None:
    program = (
        "import anyio, os\n"
        "from ringfence.cli.mcp import Wire\n"
        "wire = Wire()\n"
        "print('printed', flush=True)\n"
        "os.system('echo by a child')\n"
        "anyio.run(wire.write, 'message\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (0, "message\n")
    assert done.stderr == "printed\nby a child\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--http", "0.0.0.0:0"], "no token"),
        (["--http", "nowhere"], "no address"),
        (["--http", "127.0.0.1:0", "--token-env", "NO_SUCH_TOKEN"], "NO_SUCH_TOKEN"),
        (["--http", "127.0.0.1:0", "--token-file", "/nonexistent/file"], "can't be read"),
        (["--token-env", "HOME"], "go with HTTP"),
        (["--idle-timeout", "soon"], "not a time"),
        (["--backend", "firecracker"], "firecracker"),
    ],
)
def test_what_can_not_be_is_said_before_anything_starts(words: list[str], said: str) -> None:
    done = subprocess.run(
        command(*words), capture_output=True, text=True, timeout=30, env=environment(),
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 125
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_client_it_ends_at_once() -> None:
    done = subprocess.run(
        command("--backend", "bubblewrap"), stdin=subprocess.DEVNULL, capture_output=True,
        timeout=30, env=environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@GENERATIONS
async def test_an_export_goes_below_the_directory_that_was_named(mode: str, tmp_path: Any) -> None:
    async with Client(real("--export", str(tmp_path)), mode=mode) as client:
        await client.call_tool("run_command", {"command": "mkdir d; echo x > d/f; ln -s /etc l"})
        done = await client.call_tool("export_workspace", {})
        told = done.structured_content
        assert told["files"] == [{"path": "d/f", "size": 2}]
        assert [one["path"] for one in told["skipped"]] == ["l"]
        assert os.path.dirname(told["target"]) == str(tmp_path)
        with open(os.path.join(told["target"], "d", "f"), encoding="utf-8") as file:
            assert file.read() == "x\n"
