"""The adapter for Strands: every operation, and the ways in which each fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from strands import Agent
from strands.models import Model
from strands.sandbox import (
    ExecutionResult,
    FileInfo,
    StreamChunk,
)
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError

from ringfence import CommandError, ConfigError, PathError, UnsupportedError, open_backend, sync
from ringfence.adapters.strands import StrandsSandbox

from ..backends import BACKENDS, settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=BACKENDS)
def live(request: pytest.FixtureRequest, own_places: Path) -> Iterator[sync.Sandbox]:
    with sync.open_backend(settings(request.param)) as backend, backend.create() as made:
        yield made


@pytest.fixture
def sandbox(live: sync.Sandbox) -> StrandsSandbox:
    for entry in live.list_files().entries:
        live.remove(entry.name)
    return StrandsSandbox(live)


async def test_a_command_with_its_directory_and_variables(sandbox: StrandsSandbox) -> None:
    await sandbox.write_text("sub/x", "1")
    found = await sandbox.execute('echo "$A"; pwd; ls; echo bad >&2', cwd="sub", env={"A": "$(id)"})
    assert (found.exit_code, found.stderr, found.output_files) == (0, "bad\n", [])
    assert found.stdout.splitlines() == ["$(id)", "/workspace/sub", "x"]


async def test_a_program_that_fails_is_a_result(sandbox: StrandsSandbox) -> None:
    assert (await sandbox.execute("exit 3")).exit_code == 3
    assert (await sandbox.execute("kill -9 $$")).exit_code == 137
    missing = await sandbox.execute_code("1", "no-such-language")
    assert (missing.exit_code, missing.stdout) == (127, "")


async def test_output_comes_as_it_is_written(sandbox: StrandsSandbox, live: sync.Sandbox) -> None:
    parts: list[StreamChunk | ExecutionResult] = []
    go_on = "until [ -e heard ]; do sleep 0.02; done"
    command = f"rm -f heard; printf 'a\\303'; {go_on}; printf '\\244\\n'; echo err >&2"
    async for part in sandbox.execute_streaming(command):
        parts.append(part)
        live.write_file("heard", "")
    assert isinstance(parts[0], StreamChunk)
    assert parts[0].data == "a"
    end = parts[-1]
    assert isinstance(end, ExecutionResult)
    assert (end.stdout, end.stderr) == ("aä\n", "err\n")
    chunks = [part for part in parts if isinstance(part, StreamChunk)]
    for stream, whole in (("stdout", end.stdout), ("stderr", end.stderr)):
        assert "".join(one.data for one in chunks if one.stream_type == stream) == whole


async def test_leaving_the_stream_kills_the_command(
    sandbox: StrandsSandbox, live: sync.Sandbox
) -> None:
    stream = sandbox.execute_streaming("sleep 471 & echo up; wait")
    async for _ in stream:
        assert "sleep 471" in _running(live)
        break
    await stream.aclose()
    await _is_over(live, "sleep 471")


async def test_cancelling_kills_the_command(sandbox: StrandsSandbox, live: sync.Sandbox) -> None:
    task = asyncio.ensure_future(sandbox.execute("exec sleep 472"))
    for _ in range(1000):
        if "sleep 472" in _running(live):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("it never ran")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _is_over(live, "sleep 472")


def _running(live: sync.Sandbox) -> str:
    """Return the command lines of what runs in it."""
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    return live.exec("sh", ["-c", script]).stdout_text


async def _is_over(live: sync.Sandbox, args: str) -> None:
    for _ in range(1000):
        if args not in _running(live):
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{args} runs on")


async def test_a_timeout_has_what_was_written(sandbox: StrandsSandbox) -> None:
    command = "echo out; echo err >&2; sleep 60"
    with pytest.raises(SandboxTimeoutError) as caught:
        await sandbox.execute(command, timeout=4)
    assert (caught.value.stdout, caught.value.stderr) == ("out\n", "err\n")
    with pytest.raises(SandboxTimeoutError):
        async for _ in sandbox.execute_streaming(command, timeout=0.5):
            pass
    with pytest.raises(SandboxTimeoutError):
        await sandbox.execute_code("while True: pass", "python3", timeout=0.5)
    assert (await sandbox.execute("echo on")).stdout == "on\n"


async def test_without_a_timeout_it_has_the_longest(
    sandbox: StrandsSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    exec_ = sandbox._inner.exec

    async def noted(*args: Any, **options: Any) -> Any:
        asked.append(options["timeout"])
        return await exec_(*args, **options)

    monkeypatch.setattr(sandbox._inner, "exec", noted)
    await sandbox.execute("true")
    assert asked == [300.0]


async def test_what_is_cut_is_told(sandbox: StrandsSandbox) -> None:
    found = await sandbox.execute("head -c 1500000 /dev/zero | tr '\\0' x")
    assert (found.exit_code, len(found.stdout)) == (0, 1_048_576)
    assert found.stderr == "[cut: of 1500000 bytes of stdout only the first 1048576 were kept]\n"


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("a\0b",), {}),
        (("true",), {"env": {"A=B": ""}}),
        (("true",), {"env": {"": ""}}),
        (("true",), {"timeout": 0}),
        (("true",), {"timeout": -1}),
        (("true",), {"timeout": float("nan")}),
    ],
)
async def test_what_can_not_be_run(
    sandbox: StrandsSandbox, arguments: tuple[str], options: dict[str, Any]
) -> None:
    with pytest.raises(CommandError):
        await sandbox.execute(*arguments, **options)


@pytest.mark.parametrize("language", ["", "python3\n", "a/b", "sh -c", "$(id)"])
async def test_a_language_is_a_program(sandbox: StrandsSandbox, language: str) -> None:
    with pytest.raises(CommandError, match="language"):
        await sandbox.execute_code("1", language)


async def test_code_is_not_shell(sandbox: StrandsSandbox) -> None:
    code = "import sys\nprint('''$(id) `id` \"'''); sys.exit(4)\n# EOF\nEOF\n"
    found = await sandbox.execute_code(code.replace("EOF\n", ""), "python3")
    assert (found.exit_code, found.stdout) == (4, '$(id) `id` "\n')
    streamed = [part async for part in sandbox.execute_code_streaming("print(6 * 7)", "python3")]
    assert streamed[-1] == ExecutionResult(exit_code=0, stdout="42\n", stderr="")


async def test_files(sandbox: StrandsSandbox) -> None:
    data = bytes(range(256))
    await sandbox.write_file("a/b/c.bin", data)
    assert await sandbox.read_file("/workspace/a/b/c.bin") == data
    await sandbox.write_text("ä x'y", "text")
    assert await sandbox.read_text("ä x'y") == "text"
    assert await sandbox.list_files(".") == [
        FileInfo(name="a", is_dir=True),
        FileInfo(name="ä x'y", is_dir=False, size=4),
    ]
    await sandbox.remove_file("ä x'y")
    with pytest.raises(FileNotFoundError):
        await sandbox.read_file("ä x'y")


async def test_a_name_that_is_no_text_can_be_used(sandbox: StrandsSandbox) -> None:
    await sandbox.execute("echo 1 > \"$(printf 'n\\377')\"")
    (found,) = await sandbox.list_files("/workspace")
    assert found.name == "n\\xff"
    assert await sandbox.read_text(found.name) == "1\n"
    await sandbox.remove_file(found.name)


async def test_of_what_is_above_only_the_way_is_shown(sandbox: StrandsSandbox) -> None:
    assert await sandbox.list_files("/") == [FileInfo(name="workspace", is_dir=True)]


async def test_files_that_are_not_there(sandbox: StrandsSandbox) -> None:
    for missing in (sandbox.read_file, sandbox.remove_file):
        with pytest.raises(FileNotFoundError):
            await missing("nothing")
    with pytest.raises(SandboxPathNotFoundError):
        await sandbox.list_files("nothing")
    await sandbox.write_text("file", "")
    with pytest.raises(SandboxPathNotFoundError):
        await sandbox.list_files("file")
    await sandbox.write_text("dir/file", "")
    for directory in (sandbox.read_file, sandbox.remove_file):
        with pytest.raises(IsADirectoryError):
            await directory("dir")
    assert await sandbox.read_text("dir/file") == ""
    await sandbox.execute("mkfifo pipe")
    with pytest.raises(OSError, match="pipe"):
        await sandbox.read_file("pipe")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../etc", "", "a\0b"])
async def test_paths_outside(sandbox: StrandsSandbox, path: str) -> None:
    for operation in (
        sandbox.read_file(path),
        sandbox.write_file(path, b""),
        sandbox.remove_file(path),
        sandbox.list_files(path),
    ):
        with pytest.raises(PathError):
            await operation
    if path != "a\0b":
        with pytest.raises((PathError, CommandError)):
            await sandbox.execute("true", cwd=path or "/etc")


async def test_links_do_not_lead_out(sandbox: StrandsSandbox) -> None:
    await sandbox.execute("ln -s /etc/passwd link; ln -s /etc dir")
    for path in ("link", "dir/passwd"):
        with pytest.raises(OSError, match=path):
            await sandbox.read_file(path)
    await sandbox.remove_file("link")
    assert (await sandbox.execute("test -s /etc/passwd")).exit_code == 0


async def test_a_long_listing_is_refused(sandbox: StrandsSandbox) -> None:
    code = "import os; os.mkdir('many'); os.chdir('many')\n"
    code += "for n in range(10_001): open(f'f{n}', 'w').close()"
    await sandbox.execute_code(code, "python3")
    with pytest.raises(OSError, match="10001 entries"):
        await sandbox.list_files("many")


async def test_what_is_no_sandbox() -> None:
    with pytest.raises(ConfigError, match="takes a sandbox"):
        StrandsSandbox("bubblewrap")  # type: ignore[arg-type]


# Event loops.


async def test_a_sandbox_of_this_event_loop(own_places: Path) -> None:
    async with open_backend("bubblewrap") as backend, await backend.create() as made:
        sandbox = StrandsSandbox(made)
        assert (await sandbox.execute("echo here")).stdout == "here\n"
        streamed = [part async for part in sandbox.execute_streaming("echo here")]
        assert streamed[0] == StreamChunk("here\n")
        # From another loop in another thread, while this one runs.
        found = await asyncio.to_thread(lambda: asyncio.run(sandbox.execute("echo there")))
        assert found.stdout == "there\n"


async def test_a_loop_that_stands_still_is_an_error_and_no_hang(
    own_places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.adapters._reach.ANSWER_SECONDS", 0.3)
    async with open_backend("bubblewrap") as backend, await backend.create() as made:
        agent = Agent(
            model=Calls(("sandbox_shell", {"command": "touch made"})),
            sandbox=StrandsSandbox(made),
            callback_handler=None,
        )
        agent("go")  # in this thread, whose loop stands still meanwhile
        (result,) = _results(agent)
        assert (result["status"], "ringfence.sync" in result["content"][0]["text"]) == (
            "error",
            True,
        )
        await asyncio.sleep(0.1)
        assert (await made.list_files()).entries == ()  # nothing is caught up on


async def test_an_event_loop_that_has_ended(own_places: Path) -> None:
    async def make() -> StrandsSandbox:
        async with open_backend("bubblewrap") as backend, await backend.create() as made:
            return StrandsSandbox(made)

    sandbox = await asyncio.to_thread(lambda: asyncio.run(make()))
    with pytest.raises(UnsupportedError, match="has ended"):
        await sandbox.execute("true")


# Agents.


class Calls(Model):
    """A model that calls tools and then says that it is done."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.calls = list(calls)

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield {"messageStart": {"role": "assistant"}}
        if self.calls:
            name, given = self.calls.pop(0)
            call = {"toolUse": {"name": name, "toolUseId": f"id{len(self.calls)}"}}
            yield {"contentBlockStart": {"start": call}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}}}}
            reason = "tool_use"
        else:
            yield {"contentBlockDelta": {"delta": {"text": "done"}}}
            reason = "end_turn"
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}


def _results(agent: Agent) -> list[Any]:
    contents: list[Any] = [part for message in agent.messages for part in message["content"]]
    return [part["toolResult"] for part in contents if "toolResult" in part]


def test_an_agent_with_the_tools_that_it_gives(sandbox: StrandsSandbox) -> None:
    edit = {"command": "create", "path": "/workspace/d/a.txt", "file_text": "one two\n"}
    replace = {"command": "str_replace", "path": "/workspace/d/a.txt", "old_str": "two"}
    model = Calls(
        ("sandbox_file_editor", edit),
        ("sandbox_file_editor", {**replace, "new_str": "three"}),
        ("sandbox_file_editor", {"command": "view", "path": "/workspace"}),
        ("sandbox_shell", {"command": "cat d/a.txt; exit 7"}),
        ("sandbox_shell", {"command": "echo part; sleep 60", "timeout": 4}),
        ("sandbox_file_editor", {"command": "view", "path": "/etc/passwd"}),
    )
    agent = Agent(model=model, sandbox=sandbox, callback_handler=None)
    assert str(agent("go")).strip() == "done"
    results = _results(agent)
    assert [result["status"] for result in results] == ["success"] * 4 + ["error"] * 2
    texts = [str(result["content"]) for result in results]
    assert "a.txt" in texts[2]
    assert "one three" in texts[3]
    assert "7" in texts[3]
    assert "part" in texts[4]
    assert "outside of the workspace" in texts[5]
