"""`run_code` in contexts, over the SDK's own client and with real kernels."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.client import Client
from mcp_types import ImageContent

from ringfence.backends.fake import FakeBackend
from ringfence.backends.wasm import WasmBackend
from ringfence.config import WasmConfig
from ringfence.errors import SandboxClosedError
from ringfence.interpreter import find_interpreter
from ringfence.mcp import McpOptions, open_server
from ringfence.mcp.definitions import served_tools
from ringfence.models import SandboxSpec
from ringfence.sessions import SessionManager
from ringfence.tools.calling import NEW_WORKSPACE

from ..machine import processes_with, until_gone
from .serving import GENERATIONS, LEGACY, MARKS, code, live, opened, served, stdio, text, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PYTHON = find_interpreter(sys.executable)
FIGURES = """
import io
from IPython.display import Image, display
from PIL import Image as Picture
def figure(kind, size):
    file = io.BytesIO()
    Picture.new("RGB", size, "red").save(file, kind)
    display(Image(file.getvalue(), format=kind))
"""


def kept(**more: Any) -> McpOptions:
    return McpOptions(spec=SandboxSpec(mounts=PYTHON.mounts), python=PYTHON.path, **more)


class Coder:
    """A client that runs code in contexts."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.more: dict[str, Any] = {}

    async def __call__(self, code: str, context: str = "work", **more: Any) -> Any:
        given = {"language": "python", "code": code, "context": context, **self.more, **more}
        done = await self.client.call_tool("run_code", given)
        handle = (done.structured_content or {}).get("session")
        if handle is not None:
            self.more = {"session": handle}
        return done


@asynccontextmanager
async def coding(**more: Any) -> AsyncIterator[Coder]:
    async with opened(options=kept(**more)) as server, Client(server, mode=LEGACY) as client:
        yield Coder(client)


def shown(result: Any) -> list[tuple[str, bytes]]:
    return [
        (one.mime_type, base64.b64decode(one.data))
        for one in result.content
        if isinstance(one, ImageContent)
    ]


async def test_what_code_has_defined_is_there_for_the_code_after_it() -> None:
    async with coding() as run:
        async with anyio.create_task_group() as tasks:  # one of them makes it, and both have it
            tasks.start_soon(run, "import os; os.environ['A'] = '1'")
            await run("y = 1")
        first = await run("x = 6; print('hi')")
        second = await run("x * 7, os.environ['A']")
        assert text(first) == "hi\n[done]"
        assert not first.is_error
        assert text(second) == "(42, '1')\n[done]"
        told = second.structured_content
        assert (told["value"], told["context"], told["context_is_new"]) == (
            "(42, '1')", "work", False,
        )  # fmt: skip
        other = await run("x", "other")
        assert other.is_error
        assert other.structured_content["context_is_new"]
        assert other.structured_content["exception"]["name"] == "NameError"
        assert "NameError: name 'x' is not defined" in text(other)
        assert text(other).endswith("[exception: NameError]")
        slow = await run("import time; time.sleep(60)", timeout=0.5)
        assert slow.is_error
        assert slow.structured_content["timed_out"]
        assert text(await run("x")) == "6\n[done]"
        plain = await run.client.call_tool("run_code", {"language": "bash", "code": "exit 3"})
        assert plain.structured_content["exit_code"] == 3


async def test_figures_come_back_as_images_within_the_bounds_of_images() -> None:
    async with coding(image_pixels=10_000, images_bytes=100_000) as run:
        await run(FIGURES)
        done = await run("figure('png', (3, 2)); figure('jpeg', (3, 2)); 5")
        assert text(done).endswith("\n5\n[done]")
        assert [kind for kind, _ in shown(done)] == ["image/png", "image/jpeg"]
        assert shown(done)[0][1].startswith(b"\x89PNG")
        big = await run("figure('png', (3, 2)); figure('png', (101, 100)); figure('png', (3, 2))")
        assert code(big) == "limit"
        assert "101 x 100 pixels" in text(big)
        assert len(shown(big)) == 1
        many = await run("for _ in range(40): figure('png', (3, 2))")
        assert code(many) == "limit"
        assert len(shown(many)) == 32
        false = await run("display({'image/png': 'bm9uZQ=='}, raw=True)")
        assert not false.is_error
        assert shown(false) == []
        drawn = await run(
            "figure('png', (3, 2)); Picture.new('RGB', (4, 4)).save('f.png')", images=["f.png"]
        )
        assert len(shown(drawn)) == 2
        saved = await run("Picture.new('RGB', (5, 5)).save('g.png'); figure('png', (3, 2)); 6")
        assert text(saved).endswith("\n6\n[shown: g.png]\n[done]")
        assert len(shown(saved)) == 2


async def test_figures_and_files_of_one_call_have_one_bound() -> None:
    async with coding(images_bytes=200) as run:
        one = "figure('png', (3, 2))"
        await run(f"{FIGURES}\nPicture.new('RGB', (3, 2)).save('f.png')")
        size = len(shown(await run(one))[0][1])
        assert 200 // 3 < size <= 200 // 2
        many = await run(f"{one}\n{one}\n{one}")
        assert (code(many), len(shown(many))) == ("limit", 2)
        assert "one call's 200" in text(many)
        both = await run(f"{one}\n{one}", images=["f.png"])
        assert (code(both), len(shown(both))) == ("file_too_large", 2)
        assert len(shown(await run(one, images=["f.png"]))) == 2
    async with coding(image_bytes=50) as run:
        large = await run(f"{FIGURES}\n{one}")
        assert (code(large), shown(large)) == ("limit", [])
        assert "at most 50 are shown" in text(large)


async def test_what_a_context_can_not_do_is_a_typed_error_and_what_is_lost_begins_anew() -> None:
    async with coding(max_contexts=1) as run:
        last = "x = 1; print('last', flush=True)\nimport os, time; time.sleep(1); os._exit(3)"
        died = await run(last)
        assert code(died) == "context_lost"
        assert text(died).startswith("last\n[error: the Python of context work has died")
        again = await run("x", "other")  # the dead one keeps no place
        assert again.structured_content["exception"]["name"] == "NameError"
        assert code(await run("1")) == "tool"
        assert "use one of other" in text(await run("1"))
        assert code(await run("1", "../a b")) == "command"
        assert code(await run("1", "other", language="bash")) == "tool"
        await run("import os, threading; threading.Timer(0.1, os._exit, [5]).start()", "other")
        await anyio.sleep(1.5)
        with anyio.fail_after(45):
            while text(anew := await run("6 * 7", "other")).startswith("42"):
                await anyio.sleep(0.5)  # on a busy machine it may live for longer
        assert text(anew).startswith("[context other is new: it has ended itself with code 5")
        assert anew.structured_content["context_is_new"]


async def test_a_sandbox_that_died_takes_its_contexts_with_it_and_they_come_back() -> None:
    async with opened(options=kept()) as server, Client(server, mode=LEGACY) as client:
        run = Coder(client)
        await run("x = 1")
        session = server.clients.of_connection("only", "only").session
        assert session._box is not None
        await session._box._destroy("ended by the test")
        assert code(await run("x")) in ("sandbox_lost", "sandbox_closed")
        anew = await run("x")
        assert text(anew).startswith(f"{NEW_WORKSPACE}\n[context work is new: ")
        assert text(anew).endswith("[exception: NameError]")


async def test_without_a_kernel_it_is_said_how_to_get_one() -> None:
    options = McpOptions(python="no-such-python")
    async with opened(options=options) as server, Client(server, mode=LEGACY) as client:
        done = await Coder(client)("1")
        assert code(done) == "kernel_missing"
        assert "ipykernel" in text(done)
        plain = await client.call_tool("run_code", {"language": "bash", "code": "echo plain"})
        assert text(plain) == "plain\n[exit code: 0]"


async def test_the_argument_is_there_only_where_contexts_can_be_kept() -> None:
    for backend, there in ((FakeBackend(), True), (WasmBackend(WasmConfig()), False)):
        tools = served_tools(backend.capabilities, McpOptions(), by_handle=False)
        assert ("run_code" in tools) == there
        assert not there or "context" in tools["run_code"].parameters["properties"]


async def test_none_is_begun_when_the_server_has_ended() -> None:
    """Catches a task that nobody would tell to end."""
    async with FakeBackend() as backend, SessionManager(backend) as sessions:
        async with open_server(sessions) as server:
            pass
        late = server.clients.of_connection("only", "only")
        with anyio.fail_after(45), pytest.raises(SandboxClosedError, match="has ended"):
            await late.contexts.ready("work")
        await server.clients.end(late)


@GENERATIONS
async def test_a_cancelled_call_is_interrupted_and_the_client_hears_how_it_is_doing(
    mode: str,
) -> None:
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with served(kept()) as at, at.client(mode) as client:
        run = Coder(client)
        await run("x = 6")
        endless = "import time\nprint('a line', flush=True)\nwhile True: time.sleep(0.1)"
        given = {"language": "python", "code": endless, "context": "work", **run.more}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("run_code", given, progress_callback=hear))
            await until(lambda: any("1 lines" in str(message) for message in heard))
            tasks.cancel_scope.cancel()
        assert text(await run("x")).startswith("6\n[done]")


@pytest.mark.parametrize("way", ["DELETE", "handle", "idle", "server", "pipe"])
async def test_nothing_is_left_when_the_client_has_ended(way: str) -> None:
    mark = next(MARKS)
    endless = f"import subprocess; x = subprocess.Popen(['sleep', '{mark}'])"

    async def begun(client: Client) -> tuple[Coder, list[int]]:
        run = Coder(client)
        assert not (await run(endless)).is_error
        pids = processes_with(mark)
        assert pids
        return run, pids

    if way == "pipe":
        mounts = [word for one in PYTHON.mounts for word in ("--mount", str(one.source))]
        real = stdio("--context-python", PYTHON.path, *mounts)
        async with Client(real, mode=LEGACY) as client:
            _, pids = await begun(client)
    elif way == "server":
        async with opened(options=kept()) as server, Client(server, mode=LEGACY) as client:
            _, pids = await begun(client)
    else:
        options = kept(idle_timeout=0.5) if way == "idle" else kept()
        mode = LEGACY if way == "DELETE" else "2026-07-28"
        async with served(options) as at:
            async with at.client(mode) as client:
                run, pids = await begun(client)
                if way == "handle":
                    await client.call_tool("end_session", run.more)
            await until(lambda: live() == [])
            await until(lambda: len(at.server.clients) == 0)
    assert await anyio.to_thread.run_sync(until_gone, pids) == []
