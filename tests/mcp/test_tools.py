"""What each tool answers, to good arguments and to bad ones, over the SDK's own client."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp_types import ImageContent
from PIL import Image as Picture

from ringfence.backend import Backend
from ringfence.backends.fake import FakeBackend
from ringfence.backends.wasm import WasmBackend
from ringfence.config import WasmConfig
from ringfence.mcp import McpOptions
from ringfence.mcp.images import recognize
from ringfence.tools.calling import NEW_WORKSPACE

from ..machine import processes_with
from .serving import (
    BACKENDS,
    GENERATIONS,
    LEGACY,
    MARKS,
    Make,
    bubblewrap,
    code,
    opened,
    text,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@asynccontextmanager
async def working(
    make: Make = bubblewrap, options: McpOptions | None = None, mode: str = LEGACY
) -> AsyncIterator[Client]:
    async with opened(make, options) as server, Client(server, mode=mode) as client:
        yield client


def drawn(kind: str, size: tuple[int, int] = (3, 2)) -> bytes:
    file = io.BytesIO()
    Picture.new("RGB", size, "red").save(file, kind)
    return file.getvalue()


def shown(result: Any) -> list[tuple[str, bytes]]:
    """Return the images of a result, decoded by a library that would not take a broken one."""
    found = []
    for block in result.content:
        if isinstance(block, ImageContent):
            data = base64.b64decode(block.data)
            Picture.open(io.BytesIO(data)).load()
            found.append((block.mime_type, data))
    return found


@BACKENDS
async def test_an_image_that_a_program_wrote_comes_back(make: Make) -> None:
    data = drawn("png")
    script = f"echo {base64.b64encode(data).decode()} | base64 -d >plot.png; echo drawn"
    async with working(make) as client:
        done = await client.call_tool("run_command", {"command": script, "images": ["plot.png"]})
        assert text(done).startswith("drawn\n")
        assert shown(done) == [("image/png", data)]
        looked = await client.call_tool("read_file", {"path": "plot.png"})
        assert shown(looked) == [("image/png", data)]
        assert looked.structured_content == {
            "path": "plot.png", "media_type": "image/png", "size": len(data),
            "width": 3, "height": 2,
        }  # fmt: skip


def writing(**images: bytes) -> str:
    """Return a script that writes files."""
    return "; ".join(
        f"echo {base64.b64encode(data).decode()} | base64 -d >{name}.png"
        for name, data in images.items()
    )


@BACKENDS
async def test_images_that_nobody_named_come_back_once(make: Make) -> None:
    one, two = drawn("png"), drawn("png", (5, 5))
    async with working(make) as client:

        async def run(script: str, **more: Any) -> Any:
            return await client.call_tool("run_command", {"command": script, **more})

        done = await run(f"{writing(one=one)}; mkdir -p below; cp one.png below; echo drawn")
        assert text(done) == "drawn\n[shown: one.png]\n[exit code: 0]"
        assert shown(done) == [("image/png", one)]
        assert shown(await run("cat one.png | wc -c")) == []
        python = f"open('two.png', 'wb').write({two!r})"
        drew = await client.call_tool("run_code", {"language": "python", "code": python})
        assert shown(drew) == [("image/png", two)]
        assert shown(await run(writing(one=two))) == [("image/png", two)]
        assert shown(await run(writing(three=one), images=[])) == []
        assert shown(await run(writing(four=one), images=["two.png"])) == [("image/png", two)]
        assert shown(await run("true")) == []


async def test_new_images_that_can_not_be_shown_are_told_and_fail_nothing() -> None:
    big = r"printf '\211PNG\r\n\032\n' >big.png; truncate -s 100M big.png"
    data = drawn("png")
    script = f"{big}; echo no >text.png; mkfifo pipe.png; mkdir d.png; ln -s /etc/passwd l.png"
    async with working(options=McpOptions(images_bytes=len(data) + 10)) as client:
        done = await client.call_tool(
            "run_command", {"command": f"{script}; sleep 0.1; {writing(a=data, b=data)}"}
        )
        assert not done.is_error
        assert shown(done) == [("image/png", data)]
        *_, seen, unseen, end = text(done).split("\n")
        assert seen in ("[shown: a.png]", "[shown: b.png]")
        assert all(name in unseen for name in ("big.png", "text.png"))
        assert not any(name in unseen for name in ("pipe.png", "d.png", "l.png"))
        assert end == "[exit code: 0]"


async def test_a_directory_of_too_many_names_is_not_looked_through() -> None:
    many = "seq 1 1000 | xargs -n 1000 touch"
    async with working() as client:
        call = {"command": f"{many}; {writing(one=drawn('png'))}"}
        done = await client.call_tool("run_command", call)
        assert (shown(done), text(done)) == ([], "(no output)\n[exit code: 0]")


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "webp"])
async def test_each_kind_of_image(kind: str) -> None:
    data = drawn(kind, (300, 20))
    found = recognize(data)
    assert found is not None
    assert (found.media_type, found.width, found.height) == (f"image/{kind}", 300, 20)
    async with opened() as server, Client(server, mode=LEGACY) as client:
        await client.call_tool("list_files", {})
        session = server.clients.of_connection("only", "only").session
        await session.write_file("picture.txt", data)
        assert shown(await client.call_tool("read_file", {"path": "picture.txt"})) == [
            (f"image/{kind}", data)
        ]


@GENERATIONS
async def test_a_figure_of_100_mb_is_an_error_that_says_what_to_do(mode: str) -> None:
    script = r"printf '\211PNG\r\n\032\n' >big.png; truncate -s 100M big.png; echo done"
    async with working(mode=mode) as client:
        done = await client.call_tool("run_command", {"command": script, "images": ["big.png"]})
        assert code(done) == "file_too_large"
        assert text(done).startswith("done\n[exit code: 0]\n")
        for result in (done, await client.call_tool("read_file", {"path": "big.png"})):
            assert code(result) == "file_too_large"
            assert "104857600 bytes" in text(result)
            assert "lower resolution" in text(result)
            assert shown(result) == []


async def test_a_small_file_that_decodes_to_more_than_memory_holds_is_refused() -> None:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", 60000, 60000)
    script = f"echo {base64.b64encode(head).decode()} | base64 -d >bomb.png"
    async with working() as client:
        done = await client.call_tool("run_command", {"command": script, "images": ["bomb.png"]})
        assert code(done) == "file_too_large"
        assert "60000 x 60000 pixels" in text(done)


async def test_several_images_are_bound_together_and_what_is_none_is_said() -> None:
    data = drawn("png", (60, 60))
    options = McpOptions(images_bytes=len(data) * 2)
    script = (
        f"echo {base64.b64encode(data).decode()} | base64 -d | tee a b >c; echo '<svg/>' >d.svg"
    )
    async with working(options=options) as client:
        ask = {"command": script, "images": ["a", "b", "c"]}
        done = await client.call_tool("run_command", ask)
        assert code(done) == "file_too_large"
        assert len(shown(done)) == 2
        for path, kind in (
            ("d.svg", "tool"),
            ("none.png", "file_missing"),
            ("/etc/passwd", "path"),
        ):
            done = await client.call_tool("run_command", {"command": "true", "images": [path]})
            assert code(done) == kind
            assert done.structured_content["exit_code"] == 0
        assert "<svg/>" in text(await client.call_tool("read_file", {"path": "d.svg"}))


BAD: list[tuple[str, Any, str]] = [
    ("run_command", {}, "needs the argument 'command'"),
    ("run_command", {"command": 5}, "command is a string"),
    ("run_command", {"command": ""}, "may not be empty"),
    ("run_command", {"command": "x" * 200_000}, "write_file"),
    ("run_command", {"command": "x" * 2_000_000}, "at most 1000000 characters"),
    ("run_command", {"command": "a\0b"}, "NUL"),
    ("run_command", {"command": "true", "timeout": 0}, "above 0"),
    ("run_command", {"command": "true", "timeout": "soon"}, "is a number"),
    ("run_command", {"command": "true", "shell": "zsh"}, "no argument 'shell'"),
    ("run_command", {"command": "true", "session": "x"}, "no argument 'session'"),
    ("run_command", {"command": "true", "images": "plot.png"}, "is an array"),
    ("run_command", {"command": "true", "images": ["x"] * 9}, "at most 8 items"),
    ("run_command", {"command": "true", "images": [7]}, "item that is a string"),
    ("run_code", {"language": "cobol", "code": "1"}, "one of python, bash, javascript"),
    ("write_file", {"path": "x"}, "needs the argument 'content'"),
    ("write_file", {"path": "../x", "content": ""}, "'..'"),
    ("write_file", {"path": "/etc/x", "content": ""}, "workspace"),
    ("write_file", {"path": "x" * 5000, "content": ""}, "at most 4096 characters"),
    ("write_file", {"path": "x", "content": "x", "append": "yes"}, "is a boolean"),
    ("write_file", {"path": ".", "content": ""}, "directory"),
    ("read_file", {"path": "nothing"}, "nothing"),
    ("read_file", {"path": "/proc/self/environ"}, "workspace"),
    ("read_file", {"path": "x", "offset": -1}, "at least 0"),
    ("read_file", {"path": "x", "limit": 10**30}, "finite number"),
    ("list_files", {"path": "nothing"}, "nothing"),
    ("list_files", {"limit": 1.5}, "is an integer"),
    ("read_output", {"command_id": "c7"}, "no background command 'c7'"),
    ("stop_command", {"command_id": ["c1"]}, "is a string"),
    ("start_command", {"command": "true", "wait": 1e9}, "at most 60"),
    ("export_workspace", {}, "no tool 'export_workspace'"),
    ("create_context", {}, "there are run_command"),
    ("\x1b[31m" * 100, {}, "no tool"),
]


async def test_what_a_model_gets_wrong_is_told_so_that_it_can_mend_it() -> None:
    async with working() as client:
        told = {}
        for name, arguments, said in BAD:
            done = await client.call_tool(name, arguments)
            assert code(done)
            assert done.structured_content is None
            if said not in text(done) or len(text(done)) > 600:
                told[f"{name} {said}"] = text(done)
        assert told == {}
        assert not (await client.call_tool("run_command", {"command": "true"})).is_error


async def test_an_error_is_the_same_for_who_hears_of_progress() -> None:
    async def hear(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with working() as client:
        for command, kind in (("a\0b", "command"), ("x" * 200_000, "tool")):
            done = await client.call_tool(
                "run_command", {"command": command}, progress_callback=hear
            )
            assert code(done) == kind


async def test_bad_arguments_make_no_session() -> None:
    async with opened() as server, Client(server, mode=LEGACY) as client:
        await client.call_tool("run_command", {"command": 5})
        await client.call_tool("nothing", {})
        assert len(server.clients) == 0


@BACKENDS
async def test_time_memory_and_output_have_bounds(make: Make) -> None:
    async with working(make) as client:
        slow = await client.call_tool(
            "run_command", {"command": "echo a; sleep 60", "timeout": 0.5}
        )
        assert not slow.is_error
        assert slow.structured_content["exit_reason"] == "timed_out"
        assert text(slow).endswith("[TIMEOUT: command exceeded time limit]")
        loud = await client.call_tool(
            "run_command", {"command": "head -c 5000000 /dev/zero | tr '\\0' y"}
        )
        assert loud.structured_content["stdout_bytes"] == 5_000_000
        assert loud.structured_content["stdout_cut"]
        assert len(loud.structured_content["stdout"]) < 31_000
        assert len(text(loud)) < 31_000


@BACKENDS
async def test_a_sandbox_that_died_is_told_once_and_then_there_is_a_new_one(make: Make) -> None:
    async with opened(make) as server, Client(server, mode=LEGACY) as client:
        await client.call_tool("write_file", {"path": "f", "content": "x"})
        session = server.clients.of_connection("only", "only").session
        box = session._box
        assert box is not None
        await box._destroy("ended by the test")
        lost = await client.call_tool("read_file", {"path": "f"})
        assert code(lost) in ("sandbox_lost", "sandbox_closed")
        missing = await client.call_tool("read_file", {"path": "f"})
        assert code(missing) == "file_missing"
        assert text(missing).startswith(NEW_WORKSPACE)
        done = await client.call_tool("run_command", {"command": "ls"})
        assert text(done) == "(no output)\n[exit code: 0]"


def javascript() -> Backend:
    return WasmBackend(WasmConfig(interpreter="javascript"))


async def test_only_what_the_backend_can_keep_is_offered() -> None:
    async with opened(javascript) as server, Client(server, mode=LEGACY) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["write_file", "read_file", "list_files"]
        assert "there are write_file" in text(
            await client.call_tool("run_command", {"command": "x"})
        )
    async with opened(FakeBackend) as server, Client(server, mode=LEGACY) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        asked = tools["start_command"].input_schema["properties"]
        assert ("terminal" in asked) == FakeBackend().capabilities.terminal


async def test_calls_beyond_what_may_wait_are_refused_at_once() -> None:
    options = McpOptions(calls_at_once=1, calls_waiting=1)
    async with working(options=options) as client:
        outcomes: list[Any] = []

        async def one(command: str) -> None:
            call = {"command": command, "timeout": 8}
            outcomes.append(await client.call_tool("run_command", call))

        mark = next(MARKS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, f"sleep {mark}")
            await until(lambda: processes_with(mark))
            tasks.start_soon(one, "true")
            tasks.start_soon(one, "true")
            await until(lambda: outcomes)
            assert [one.is_error for one in outcomes] == [True]
            assert processes_with(mark)  # it waited for no end
        assert code(outcomes[0]) == "limit"
        assert [one.is_error for one in outcomes] == [True, False, False]


async def test_a_fault_of_ours_is_told_without_what_is_inside() -> None:
    class Broken(FakeBackend):
        async def _create(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("the password is hunter2")

    def make() -> Backend:
        return Broken()

    async with opened(make) as server, Client(server, mode=LEGACY) as client:
        done = await client.call_tool("list_files", {})
        assert done.is_error
        assert "hunter2" not in text(done)
