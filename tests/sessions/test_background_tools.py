"""The tools for background commands: text that tells a model where it is, and how to go on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ringfence.backends.process import ProcessBackend
from ringfence.config import ProcessConfig
from ringfence.leases import MemoryLeases
from ringfence.sessions import SessionManager, background
from ringfence.tools import TOOLS, Toolkit, ToolOutput, anthropic_tools, call_tool
from ringfence.tools.background import _plain
from ringfence.tools.text import MAX_TEXT

pytestmark = pytest.mark.anyio

NAMES = {"start_command", "read_output", "write_input", "stop_command", "list_commands"}


@pytest.fixture
async def tools() -> AsyncIterator[Toolkit]:
    async with (
        ProcessBackend() as backend,
        SessionManager(backend, leases=MemoryLeases()) as sessions,
    ):
        yield Toolkit(sessions.session("chat"))


async def ok(tools: Toolkit, tool: str, **arguments: object) -> str:
    output = await tools.call(tool, arguments)
    assert not output.is_error, output.text
    return output.text


async def test_a_dialogue_with_a_program(tools: Toolkit) -> None:
    text = await ok(tools, "start_command", command="echo name?; read x; echo hello $x; exit 3")
    assert text.startswith("name?\n[c1: running for ")
    assert text.endswith("; read on with offset=6]")
    text = await ok(tools, "write_input", command_id="c1", text="bob\n", wait=10)
    assert text.startswith("hello bob\n[c1: ")
    await tools.sandbox.background.wait("c1", 10)  # type: ignore[attr-defined]
    text = await ok(tools, "read_output", command_id="c1", offset=6)
    assert text == "hello bob\n[c1: exit code: 3; from byte 6]"
    text = await ok(tools, "read_output", command_id="c1", offset=0, limit=6)
    assert text == "name?\n[c1: exit code: 3; 10 more bytes are there, read on with offset=6]"


async def test_a_program_in_a_terminal_is_read_without_what_steers_it(tools: Toolkit) -> None:
    script = "printf '\\033[1;31mred\\033[0m\\n'; stty size; echo up; read x"
    text = await ok(tools, "start_command", command=script, terminal=True, wait=0)
    while "up\n" not in text:
        text = await ok(tools, "read_output", command_id="c1", wait=1)
    assert text.startswith("red\n40 120\nup\n[c1: running")
    text = await ok(tools, "write_input", command_id="c1", text="\u0003", wait=10)
    await tools.sandbox.background.wait("c1", 10)  # type: ignore[attr-defined]
    assert "exit code: 130" in await ok(tools, "read_output", command_id="c1")


def test_steering_is_taken_out() -> None:
    shown = "\x1b]0;title\x07\x1b[?25la\x1b[2Kb\x1b(Bc\r\nd\te\x00\x1b]8;;x\x1b\\f"
    assert _plain(shown) == "abc\nd\tef"


async def test_end_of_input_interrupting_and_stopping(tools: Toolkit) -> None:
    await ok(tools, "start_command", command="cat; echo over", wait=0)
    text = await ok(tools, "write_input", command_id="c1", text="x\n", end=True, wait=10)
    assert text.startswith("x\n")
    script = "trap 'echo caught; exit 5' INT; while :; do sleep 0.1; done"
    await ok(tools, "start_command", command=script, wait=0.3)
    text = await ok(tools, "stop_command", command_id="c2", interrupt=True)
    assert "caught" in text
    await ok(tools, "start_command", command="sleep 300", wait=0)
    assert await ok(tools, "stop_command", command_id="c3") == "[c3: exit code: 143]"
    text = await ok(tools, "list_commands")
    assert [line.split("  ")[0] for line in text.splitlines()[:-1]] == ["c1", "c2", "c3"]
    assert text.endswith("sleep 300\n[0 running, 3 ended]")


async def test_long_output_is_read_from_its_end_or_in_parts(tools: Toolkit) -> None:
    await ok(tools, "start_command", command="seq 1 300000; echo grüße", wait=0)
    await tools.sandbox.background.wait("c1", 20)  # type: ignore[attr-defined]
    text = await ok(tools, "read_output", command_id="c1")
    assert len(text) < MAX_TEXT + 200
    assert "\ngrüße\n[c1: exit code: 0; from byte " in text
    text = await ok(tools, "read_output", command_id="c1", offset=0, limit=20)
    assert "bytes before byte " in text
    assert "are not kept any more" in text


async def test_parts_break_no_character(tools: Toolkit) -> None:
    await ok(tools, "start_command", command="printf 'aé'; read x; printf 'b'", wait=5)
    text = await ok(tools, "read_output", command_id="c1", offset=0, limit=2)
    assert text.startswith("a\n[")
    assert "offset=1]" in text
    assert (await ok(tools, "read_output", command_id="c1", offset=1)).startswith("é\n[")


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "says"),
    [
        ("read_output", {"command_id": "c9"}, "command_missing", "there are: none"),
        ("stop_command", {}, "tool", "needs the argument 'command_id'"),
        ("read_output", {"command_id": "c1", "wait": 1e9}, "tool", "at most"),
        ("write_input", {"command_id": "c9", "text": "x"}, "command_missing", "c9"),
        ("start_command", {"command": "x" * 200_000}, "tool", "longer"),
    ],
)
async def test_what_a_model_can_mend_is_a_text(
    tools: Toolkit, tool: str, arguments: dict[str, object], code: str, says: str
) -> None:
    output = await tools.call(tool, arguments)
    assert (output.is_error, output.code) == (True, code)
    assert says in output.text


async def test_one_too_many_is_a_text(tools: Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_RUNNING", 1)
    await ok(tools, "start_command", command="sleep 300", wait=0)
    output = await tools.call("start_command", {"command": "true"})
    assert (output.is_error, output.code) == (True, "tool")
    assert "stop_command" in output.text


async def test_writing_to_one_that_has_ended_is_a_text(tools: Toolkit) -> None:
    await ok(tools, "start_command", command="true", wait=0)
    await tools.sandbox.background.wait("c1", 10)  # type: ignore[attr-defined]
    output = await tools.call("write_input", {"command_id": "c1", "text": "x"})
    assert output.is_error
    assert "read_output" in output.text


async def test_who_has_them() -> None:
    assert {name for name, tool in TOOLS.items() if tool.in_background} == NAMES
    portable = ProcessBackend(ProcessConfig(portable=True))
    async with portable, SessionManager(portable, leases=MemoryLeases()) as sessions:
        tools = Toolkit(sessions.session("a"))
        assert {tool["name"] for tool in tools.anthropic()} >= NAMES
        output: ToolOutput = await tools.call("start_command", {"command": "x", "terminal": True})
        assert output.is_error
        assert "without one" in output.text
        async with await portable.create() as plain:
            names = {tool["name"] for tool in Toolkit(plain).openai() if "name" in tool}
            assert not NAMES & names
            assert not NAMES & {tool["name"] for tool in anthropic_tools(plain.capabilities)}
            output = await call_tool(plain, "start_command", {"command": "x"})
            assert output.is_error
