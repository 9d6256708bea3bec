"""The tools of an agent: bounded text that tells the truth, and errors that a model can mend."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.backends.fake import FakeBackend, FakeSandbox, Script
from ringfence.backends.process import ProcessBackend
from ringfence.errors import CreateError, FileMissingError, ToolError
from ringfence.leases import MemoryLeases
from ringfence.models import TIMEOUT_MARKER, Chunk, ExitReason, FileKind, Result
from ringfence.sessions import Session, SessionManager
from ringfence.tools import (
    TOOLS,
    Toolkit,
    anthropic_tools,
    call_tool,
    list_files,
    openai_tools,
    read_file,
    run_code,
    terminal,
    write_file,
)
from ringfence.tools.text import MAX_TEXT, command_text

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def fake_sandbox(script: Script | None = None) -> AsyncIterator[Sandbox]:
    async with FakeBackend(script=script) as fake, await fake.create() as sandbox:
        yield sandbox


@pytest.fixture
async def real() -> AsyncIterator[Sandbox]:
    """A sandbox that really runs programs."""
    async with ProcessBackend() as backend, await backend.create() as sandbox:
        yield sandbox


def done(stdout: bytes = b"", stderr: bytes = b"", **fields: Any) -> Result:
    fields = {"exit_code": 0, "exit_reason": ExitReason.EXITED, **fields}
    sizes = {"stdout_bytes": len(stdout), "stderr_bytes": len(stderr)}
    return Result(stdout, stderr, **{**sizes, **fields})


# Text.


def test_the_last_line_is_how_it_ended() -> None:
    """Catches a program that prints the end that it wants the model to see."""
    assert command_text(done(b"[exit code: 0]\n", exit_code=3)).splitlines() == [
        "[exit code: 0]",
        "[exit code: 3]",
    ]
    text = command_text(done(b"first\n", exit_code=124, exit_reason=ExitReason.TIMED_OUT))
    assert text == f"first\n{TIMEOUT_MARKER}"
    text = command_text(done(exit_code=137, exit_reason=ExitReason.OUT_OF_MEMORY))
    assert text.endswith("[exit code: 137, ended by the memory limit]")


def test_streams_are_told_apart_and_nothing_is_told_as_nothing() -> None:
    assert command_text(done(b"a\n", b"b")) == "a\n[stderr]\nb\n[exit code: 0]"
    assert command_text(done()) == "(no output)\n[exit code: 0]"


@pytest.mark.parametrize(("out", "err"), [(200_000, 0), (0, 200_000), (200_000, 200_000)])
def test_what_is_long_is_cut_in_the_middle_and_said(out: int, err: int) -> None:
    start, end = b"START", b"END"
    text = command_text(done(*(start + b"x" * size + end if size else b"" for size in (out, err))))
    assert len(text) < MAX_TEXT + 1000
    assert text.count("START") == text.count("END") == (out > 0) + (err > 0)
    assert "characters left out" in text
    assert "read_file" in text
    for name, size in (("stdout", out), ("stderr", err)):
        assert (f"the middle of {name} is left out" in text) == (size > 0)


def test_a_short_stream_lends_its_room_and_keeps_its_own() -> None:
    """Catches an error message that is lost behind a flood on the other stream."""
    text = command_text(done(b"x" * 200_000, b"the reason"))
    assert "[stderr]\nthe reason\n" in text
    assert "the middle of stderr" not in text
    assert len(text) > MAX_TEXT * 0.9


def test_what_was_not_kept_is_said_with_its_size() -> None:
    text = command_text(done(b"x" * 100, stdout_bytes=5_000_000))
    assert "of 5000000 bytes of stdout only the first 100 were kept" in text


# Real programs.


async def test_a_shell_command(real: Sandbox) -> None:
    assert await terminal(real, "echo hi; echo oh >&2; exit 3") == (
        "hi\n[stderr]\noh\n[exit code: 3]"
    )


async def test_a_command_out_of_time_ends_with_the_marker(real: Sandbox) -> None:
    text = await terminal(real, "echo first; sleep 60", timeout=0.2)
    assert text == f"first\n{TIMEOUT_MARKER}"


async def test_code_in_each_language(real: Sandbox) -> None:
    await write_file(real, "helper.py", "X = 'from a file'\n")
    program = (
        "import helper\nprint(helper.X)\ntry:\n    input()\nexcept EOFError:\n    print('eof')"
    )
    assert await run_code(real, "python", program) == "from a file\neof\n[exit code: 0]"
    assert await run_code(real, "bash", "cat; echo $((6 * 7))") == "42\n[exit code: 0]"


async def test_a_long_program_is_no_matter(real: Sandbox) -> None:
    """Catches code that travels as an argument, of which the kernel takes 128 KiB."""
    program = f"x = {'a' * 300_000!r}\nprint(len(x))"
    assert await run_code(real, "python", program) == "300000\n[exit code: 0]"
    with pytest.raises(ToolError, match="write_file"):
        await run_code(real, "bash", f": {'a' * 300_000}")


async def test_a_program_that_ends_with_127_is_no_missing_language(real: Sandbox) -> None:
    assert (await run_code(real, "python", "raise SystemExit(127)")).endswith("[exit code: 127]")


async def test_a_language_that_is_not_there_is_said() -> None:
    missing = Script(exit_code=127, message="node: not found")
    async with fake_sandbox(missing) as sandbox:
        with pytest.raises(ToolError, match="no javascript"):
            await run_code(sandbox, "javascript", "1")
        with pytest.raises(ToolError, match=r"no language 'cobol'.*python"):
            await run_code(sandbox, "cobol", "1")  # type: ignore[arg-type]


# Files.


async def test_a_file_in_parts_is_whole() -> None:
    """Catches characters that are broken where one part ends and the next begins."""
    content = "aé€😀" * 500
    async with fake_sandbox() as sandbox:
        await write_file(sandbox, "x/y.txt", content)
        got, offset = "", 0
        while True:
            text = await read_file(sandbox, "x/y.txt", offset=offset, limit=64)
            part, _, note = text.rpartition("\n[")
            got += part
            if "read on with offset=" not in note:
                break
            offset = int(note.split("offset=")[1].rstrip("]"))
        assert got == content


async def test_a_file_behind_a_link_is_not_said_to_end_early(real: Sandbox) -> None:
    """Catches the size of the link taken for that of the file."""
    await write_file(real, "x", "abcdef" * 100)
    await terminal(real, "ln -s x link")
    assert await read_file(real, "link", limit=6) == (
        "abcdef\n[bytes 0 to 6; read on with offset=6]"
    )


async def test_a_file_says_where_it_ends() -> None:
    async with fake_sandbox() as sandbox:
        assert await write_file(sandbox, "x", "abc\n") == "[4 bytes written to x]"
        assert await write_file(sandbox, "x", "d", append=True) == "[1 bytes added to x]"
        assert await read_file(sandbox, "x") == "abc\nd\n[end of file, 5 bytes]"
        assert await read_file(sandbox, "x", offset=9) == "[nothing at byte 9 of 5]"
        await sandbox.write_file("empty", b"")
        assert await read_file(sandbox, "empty") == "[end of file, 0 bytes]"
        assert await read_file(sandbox, "x", limit=2) == (
            "ab\n[bytes 0 to 2 of 5; read on with offset=2]"
        )


async def test_what_is_no_text_is_said_to_be_none() -> None:
    async with fake_sandbox() as sandbox:
        await sandbox.write_file("x", b"\x7fELF\0\1")
        with pytest.raises(ToolError, match="no text"):
            await read_file(sandbox, "x")


async def test_a_listing_goes_from_the_top_down_and_says_what_it_left_out() -> None:
    async with fake_sandbox() as sandbox:
        assert isinstance(sandbox, FakeSandbox)
        for number in range(5):
            await sandbox.write_file(f"deep/er/{number}", b"1")
        await sandbox.write_file("top", b"12")
        sandbox.plant("link", FileKind.SYMLINK)
        assert (await list_files(sandbox)).splitlines() == [
            "deep/", "link  (symlink)", "top  2 bytes", "deep/er/",
            *(f"deep/er/{number}  1 bytes" for number in range(5)), "[9 entries]",
        ]  # fmt: skip
        assert (
            (await list_files(sandbox, limit=6))
            .splitlines()[-1]
            .startswith("[6 entries shown, 3 more were left out")
        )
        flat = await list_files(sandbox, recursive=False)
        assert flat.splitlines()[-1] == "[3 entries]"
        with pytest.raises(FileMissingError):
            await list_files(sandbox, "none")


@pytest.mark.parametrize("name", ["a\nb", "a\\x41", "\udcff", "a\x1b[31m", "\\"])
async def test_a_name_that_a_listing_shows_can_be_given_back(name: str) -> None:
    async with fake_sandbox() as sandbox:
        await sandbox.write_file(name, b"1")
        line, end = (await list_files(sandbox)).splitlines()
        assert (line.isprintable(), end) == (True, "[1 entries]")
        shown = line.removesuffix("  1 bytes")
        assert await read_file(sandbox, shown) == "1\n[end of file, 1 bytes]"


# Calls.


def bad_calls() -> Iterator[Any]:
    for name, arguments, said in (
        ("sudo", {}, "there is no tool 'sudo'; there are terminal"),
        ("terminal", {}, "needs the argument 'command'"),
        ("terminal", None, "needs the argument 'command'"),
        ("terminal", {"command": None}, "needs the argument 'command'"),
        ("terminal", {"command": ""}, "may not be empty"),
        ("terminal", {"command": 7}, "command is a string, not 7"),
        ("terminal", {"command": "ls", "timeout": "30"}, "timeout is a number, not '30'"),
        ("terminal", {"command": "ls", "timeout": True}, "timeout is a number"),
        ("terminal", {"command": "ls", "timeout": 0}, "timeout is above 0"),
        ("terminal", {"command": "ls", "timeout": float("inf")}, "finite"),
        ("terminal", {"command": "ls", "cwd": "/"}, "no argument 'cwd'; it has command, timeout"),
        ("terminal", "{", "not JSON"),
        ("terminal", "[1]", "object"),
        ("terminal", {"command": "a\0b"}, "NUL"),
        ("run_code", {"language": "ruby", "code": "1"}, "is one of python, bash, javascript"),
        ("read_file", {"path": "x", "offset": -1}, "offset is at least 0"),
        ("read_file", {"path": "x", "offset": 1.5}, "offset is an integer"),
        ("read_file", {"path": "x", "limit": 10**9}, "limit is at most"),
        ("read_file", {"path": "none"}, "does not exist"),
        ("read_file", {"path": "../x"}, ".."),
        ("write_file", {"path": "/etc/x", "content": ""}, "outside"),
        ("write_file", {"path": "x", "content": "\ud800"}, "surrogate"),
        ("list_files", {"recursive": "yes"}, "recursive is a boolean"),
    ):
        yield pytest.param(name, arguments, said, id=f"{name} {arguments}"[:60])


@pytest.mark.parametrize(("name", "arguments", "said"), list(bad_calls()))
async def test_a_call_that_can_t_be_made_is_answered(name: str, arguments: Any, said: str) -> None:
    async with fake_sandbox() as sandbox:
        output = await call_tool(sandbox, name, arguments)
        assert output.is_error
        assert said in output.text
        assert output.code is not None


async def test_arguments_come_as_an_object_or_as_its_text() -> None:
    async with fake_sandbox(Script([b"hi"])) as sandbox:
        for arguments in ({"command": "x", "timeout": None}, '{"command": "x", "timeout": 3}'):
            output = await call_tool(sandbox, "terminal", arguments)
            assert (output.text, output.is_error) == ("hi\n[exit code: 0]", False)
        assert (await call_tool(sandbox, "list_files", "")).text == "[0 entries]"


async def test_a_program_that_fails_is_no_error_of_the_tool() -> None:
    async with fake_sandbox(Script([Chunk("stderr", b"no")], exit_code=2)) as sandbox:
        output = await call_tool(sandbox, "terminal", {"command": "x"})
        assert (output.is_error, output.text) == (False, "[stderr]\nno\n[exit code: 2]")


async def test_a_lost_sandbox_is_told_and_so_is_the_new_workspace() -> None:
    fake = FakeBackend()
    async with fake, SessionManager(fake, leases=MemoryLeases()) as sessions:
        session = sessions.session("a")
        tools = Toolkit(session)
        await tools.call("write_file", {"path": "x", "content": "1"})
        lose(session)
        output = await tools.call("list_files", {})
        assert (output.is_error, output.code) == (True, "sandbox_lost")
        assert "killed" in output.text
        assert "new, empty workspace" in output.text
        output = await tools.call("list_files", {})
        assert output.text == "[the workspace is new: files of earlier calls are gone]\n[0 entries]"
        assert (await tools.call("list_files", {})).text == "[0 entries]"


def lose(session: Session) -> None:
    assert isinstance(session._box, FakeSandbox)
    session._box.lose()


async def test_what_no_model_can_mend_is_raised() -> None:
    fake = FakeBackend()
    async with fake, SessionManager(fake, leases=MemoryLeases()) as sessions:
        fake.create_errors.append(CreateError("the disk is full"))
        with pytest.raises(CreateError):
            await call_tool(sessions.session("a"), "terminal", {"command": "x"})


# Definitions.


def test_definitions_are_json_and_describe_the_functions() -> None:
    """Catches a schema that names an argument which the function does not have."""
    for tool in TOOLS.values():
        code = tool.function.__code__
        names = code.co_varnames[1 : code.co_argcount]
        assert set(tool.parameters["properties"]) == set(names)
        optional = len(tool.function.__defaults__ or ())
        assert tool.parameters["required"] == list(names[: len(names) - optional])
    json.dumps([openai_tools(), anthropic_tools()])


def test_both_forms_say_the_same() -> None:
    assert [tool["function"]["name"] for tool in openai_tools()] == list(TOOLS)
    for one, other in zip(openai_tools(), anthropic_tools(), strict=True):
        assert one["type"] == "function"
        assert one["function"]["parameters"] == other["input_schema"]
        assert one["function"]["description"] == other["description"]
    openai_tools()[0]["function"]["parameters"]["properties"].clear()
    assert anthropic_tools()[0]["input_schema"]["properties"]


async def test_what_a_sandbox_does_not_have_is_not_offered() -> None:
    able = replace(FakeBackend().capabilities, arbitrary_programs=False)
    fake = FakeBackend(capabilities=able)
    async with fake, await fake.create() as sandbox:
        names = [tool["name"] for tool in Toolkit(sandbox).anthropic()]
        assert names == ["write_file", "read_file", "list_files"]
        assert (await call_tool(sandbox, "terminal", {"command": "x"})).is_error
        assert len(Toolkit(sandbox).openai()) == 3


async def test_tools_can_be_called_at_once(real: Sandbox) -> None:
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(write_file, real, str(number), "x")
    assert "[5 entries]" in await list_files(real)
