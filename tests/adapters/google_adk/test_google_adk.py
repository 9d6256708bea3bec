"""The adapters for Google ADK: every operation, and the ways in which each fails."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types
from pydantic import Field

from ringfence import (
    CommandError,
    ConfigError,
    PathError,
    SandboxClosedError,
    SessionManager,
    UnsupportedError,
    open_backend,
    sync,
)
from ringfence.adapters.google_adk import AdkCodeExecutor, AdkEnvironment

from ..backends import BACKENDS, settings


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=BACKENDS)
def live(request: pytest.FixtureRequest, own_places: Path) -> Iterator[sync.Sandbox]:
    with sync.open_backend(settings(request.param)) as backend, backend.create() as made:
        yield made


@pytest.fixture
def clean(live: sync.Sandbox) -> sync.Sandbox:
    for entry in live.list_files().entries:
        live.remove(entry.name)
    return live


@pytest.fixture
async def environment(clean: sync.Sandbox) -> AdkEnvironment:
    made = AdkEnvironment(clean)
    await made.initialize()
    return made


# The environment.


@pytest.mark.anyio
async def test_a_command(environment: AdkEnvironment) -> None:
    assert environment.working_dir == Path("/workspace")
    found = await environment.execute("pwd; echo bad >&2; exit 3")
    assert (found.exit_code, found.stdout, found.stderr, found.timed_out) == (
        *(3, "/workspace\n"),
        *("bad\n", False),
    )
    assert (await environment.execute("nonsense-of-mine")).exit_code == 127


@pytest.mark.anyio
async def test_a_timeout_is_a_result_with_what_was_written(environment: AdkEnvironment) -> None:
    found = await environment.execute("echo out; echo err >&2; sleep 60", timeout=4)
    assert (found.timed_out, found.stdout, found.stderr) == (True, "out\n", "err\n")
    assert found.exit_code == 124
    assert (await environment.execute("echo on")).stdout == "on\n"


@pytest.mark.anyio
async def test_what_is_cut_is_told(environment: AdkEnvironment) -> None:
    found = await environment.execute("head -c 1500000 /dev/zero | tr '\\0' x; echo e >&2")
    assert len(found.stdout) == 1_048_576
    assert found.stderr == "e\n[cut: of 1500000 bytes of stdout only the first 1048576 were kept]\n"


@pytest.mark.anyio
async def test_cancelling_kills_the_command(
    environment: AdkEnvironment, live: sync.Sandbox
) -> None:
    task = asyncio.ensure_future(environment.execute("exec sleep 473"))
    for _ in range(1000):
        if runs(live, "sleep 473"):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("it never ran")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(1000):
        if not runs(live, "sleep 473"):
            return
        await asyncio.sleep(0.05)
    pytest.fail("it runs on")


def runs(live: sync.Sandbox, args: str) -> bool:
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    return args in live.exec("sh", ["-c", script]).stdout_text


@pytest.mark.anyio
@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan")])
async def test_a_timeout_that_is_none(environment: AdkEnvironment, timeout: float) -> None:
    with pytest.raises(CommandError, match="timeout"):
        await environment.execute("true", timeout=timeout)


@pytest.mark.anyio
async def test_files(environment: AdkEnvironment) -> None:
    await environment.write_file(Path("a/b.txt"), "ä\r\n")
    assert await environment.read_file(Path("/workspace/a/b.txt")) == "ä\r\n".encode()
    await environment.write_file("c.bin", bytes(range(256)))
    assert await environment.read_file("c.bin") == bytes(range(256))


@pytest.mark.anyio
async def test_files_that_can_not_be_had(environment: AdkEnvironment) -> None:
    with pytest.raises(FileNotFoundError):
        await environment.read_file(Path("nothing"))
    await environment.write_file("d/x", "")
    with pytest.raises(IsADirectoryError):
        await environment.read_file("d")
    with pytest.raises(IsADirectoryError):
        await environment.write_file("d", "")
    with pytest.raises(NotADirectoryError):
        await environment.write_file("d/x/y", "")
    await environment.execute("ln -s /etc/passwd link")
    for outside in ("/etc/passwd", "../x", "link"):
        with pytest.raises(OSError, match=outside):
            await environment.read_file(outside)
    for outside in ("/etc/x", "../x", "", "a\0b"):
        with pytest.raises(PathError):
            await environment.write_file(outside, "")


@pytest.mark.anyio
async def test_its_life(clean: sync.Sandbox) -> None:
    environment = AdkEnvironment(clean)
    assert environment.is_initialized is not True
    for call in (environment.execute("true"), environment.read_file("x")):
        with pytest.raises(SandboxClosedError, match="initialize"):
            await call
    await environment.initialize()
    await environment.initialize()
    await environment.write_file("x", "1")
    await environment.close()
    await environment.close()
    with pytest.raises(SandboxClosedError):
        await environment.write_file("x", "")
    assert clean.read_file("x") == b"1"  # the sandbox is its owner's


@pytest.mark.anyio
async def test_a_session_is_made_when_it_is_initialised(own_places: Path) -> None:
    async with open_backend("bubblewrap") as backend, SessionManager(backend) as sessions:
        environment = AdkEnvironment(sessions.session("adk"))
        assert sessions.sessions == []
        await environment.initialize()
        assert len(sessions.sessions) == 1
        assert (await environment.execute("echo 1")).stdout == "1\n"


def test_what_is_no_sandbox() -> None:
    for make in (AdkEnvironment, AdkCodeExecutor):
        with pytest.raises(ConfigError, match="takes a sandbox"):
            make(cast("Any", "auto"))


# The code executor.


def context(user: str = "u", session: str = "s") -> InvocationContext:
    """Return as much of one as the executor looks at."""
    found = SimpleNamespace(app_name="app", user_id=user, id=session)
    return cast("InvocationContext", SimpleNamespace(session=found))


def run(executor: AdkCodeExecutor, code: str, *files: File, user: str = "u") -> Any:
    return executor.execute_code(context(user), CodeExecutionInput(code, list(files)))


def test_code(clean: sync.Sandbox) -> None:
    executor = AdkCodeExecutor(clean)
    found = run(executor, "import sys\nprint(6 * 7)\nif __name__ == '__main__': print('main')")
    assert (found.stdout, found.stderr, found.exit_code) == ("42\nmain\n", "", 0)
    run(executor, "open('kept', 'w').write('1')")
    assert run(executor, "print(open('kept').read())").stdout == "1\n"
    assert found.output_files == []


def test_a_failure_is_always_told(clean: sync.Sandbox) -> None:
    executor = AdkCodeExecutor(clean, timeout_seconds=5)
    assert "ZeroDivisionError" in run(executor, "1 / 0").stderr
    silent = run(executor, "print(1); raise SystemExit(3)")
    assert (silent.stdout, silent.stderr, silent.exit_code) == ("1\n", "[exit code: 3]\n", 3)
    timed_out = run(executor, "print(1, flush=True)\nwhile True: pass")
    assert (timed_out.stdout, timed_out.exit_code) == ("1\n", 124)
    assert timed_out.stderr == "[TIMEOUT: command exceeded time limit]\n"
    assert run(executor, "print('\ud800')").stderr  # which is no text
    assert run(executor, "print(2)").stdout == "2\n"


def test_what_is_cut_of_code_is_told_without_making_it_a_failure(clean: sync.Sandbox) -> None:
    found = run(AdkCodeExecutor(clean), "print('x' * 1_500_000)")
    assert found.stderr == ""
    assert found.stdout.endswith(
        "x\n[cut: of 1500001 bytes of stdout only the first 1048576 were kept]\n"
    )


def test_files_go_in_and_come_out(clean: sync.Sandbox) -> None:
    executor = AdkCodeExecutor(clean, collect_files=True)
    clean.write_file("old", "old")
    code = (
        "import os\nopen('plot.png', 'wb').write(open('a.csv', 'rb').read())\n"
        "os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe'); os.mkdir('dir')\n"
        "open('big', 'wb').truncate(9 << 20); open('locked', 'w'); os.chmod('locked', 0)"
    )
    inputs = (File("a.csv", base64.b64encode(b"1,2\n").decode()), File("b.txt", b"raw"))
    found = run(executor, code, *inputs)
    assert (found.stderr, found.exit_code) == ("", 0)
    assert [(one.name, one.content, one.mime_type) for one in found.output_files] == [
        ("plot.png", b"1,2\n", "image/png")
    ]
    assert found.stdout == "[2 files are not returned: too large, too many, or gone]\n"
    assert clean.read_file("b.txt") == b"raw"
    assert run(executor, "pass").output_files == []
    many = run(executor, "for n in range(25): open(f'm{n:02}', 'w').write('x')")
    assert (len(many.output_files), "[5 files" in many.stdout) == (20, True)
    with pytest.raises(PathError):
        run(executor, "", File("../x", b""))


def test_it_keeps_no_state() -> None:
    with pytest.raises(ConfigError, match="state"):
        AdkCodeExecutor(cast("Any", None), stateful=True)


def test_each_session_of_adk_has_its_own_sandbox(own_places: Path) -> None:
    with sync.open_backend("bubblewrap") as backend, sync.SessionManager(backend) as sessions:
        executor = AdkCodeExecutor(sessions)
        run(executor, "open('mine', 'w')", user="a b/ä")
        assert run(executor, "import os; print(os.listdir())", user="a b/ä").stdout == "['mine']\n"
        assert run(executor, "import os; print(os.listdir())", user="other").stdout == "[]\n"
        assert len(sessions.sessions) == 2


@pytest.mark.anyio
async def test_it_does_not_wait_for_its_own_event_loop(own_places: Path) -> None:
    async with open_backend("bubblewrap") as backend, await backend.create() as sandbox:
        executor = AdkCodeExecutor(sandbox)
        with pytest.raises(UnsupportedError, match=r"ringfence\.sync"):
            run(executor, "print(1)")
        assert (await asyncio.to_thread(run, executor, "print(1)")).stdout == "1\n"


# Agents.


class Script(BaseLlm):
    """A model that gives its answers one after the other, and keeps what it was sent."""

    answers: list[types.Part]
    sent: list[Any] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.sent.append(llm_request.contents[-1])
        yield LlmResponse(content=types.Content(role="model", parts=[self.answers.pop(0)]))


async def ask(agent: LlmAgent) -> list[Any]:
    async with InMemoryRunner(agent=agent, app_name="app") as runner:
        session = await runner.session_service.create_session(app_name="app", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text="go")])
        events = runner.run_async(user_id="u", session_id=session.id, new_message=message)
        return [
            part async for event in events if event.content for part in event.content.parts or []
        ]


@pytest.mark.anyio
async def test_an_agent_with_the_environment(clean: sync.Sandbox) -> None:
    call = types.Part.from_function_call
    model = Script(
        model="script",
        answers=[
            call(name="WriteFile", args={"path": "d/a.txt", "content": "one two"}),
            call(name="EditFile", args={"path": "d/a.txt", "old_string": "two", "new_string": "3"}),
            call(name="ReadFile", args={"path": "d/a.txt"}),
            call(name="Execute", args={"command": "cat d/a.txt; exit 7"}),
            call(name="ReadFile", args={"path": "/etc/passwd"}),
            call(name="ReadFile", args={"path": "nothing"}),
            types.Part(text="done"),
        ],
    )
    environment = AdkEnvironment(clean)
    toolset = EnvironmentToolset(environment=environment)
    parts = await ask(LlmAgent(name="a", model=model, tools=[toolset]))
    results = [part.function_response.response for part in parts if part.function_response]
    assert [result["status"] for result in results] == ["ok", "ok", "ok", *["error"] * 3]
    assert "one 3" in results[2]["content"]
    assert (results[3]["stdout"], results[3]["exit_code"]) == ("one 3", 7)
    assert "outside of the workspace" in results[4]["error"]
    assert results[5]["error"] == "File not found: nothing"
    assert parts[-1].text == "done"
    assert not environment.is_initialized  # closed with the runner


@pytest.mark.anyio
async def test_an_agent_whose_code_runs_in_the_sandbox(own_places: Path) -> None:
    answers = [
        types.Part(text="```python\nopen('a.txt', 'w').write('hi')\nprint(6 * 7)\n```"),
        types.Part(text="```python\n1 / 0\n```"),
        types.Part(text="done"),
    ]
    async with open_backend("bubblewrap") as backend, await backend.create() as sandbox:
        executor = AdkCodeExecutor(sandbox, collect_files=True)
        model = Script(model="script", answers=answers)
        parts = await ask(LlmAgent(name="a", model=model, code_executor=executor))
        outputs = [part.code_execution_result for part in parts if part.code_execution_result]
        assert "42" in outputs[0].output
        assert "a.txt" in outputs[0].output
        assert outputs[1].outcome == types.Outcome.OUTCOME_FAILED
        assert "ZeroDivisionError" in outputs[1].output
        assert await sandbox.read_file("a.txt") == b"hi"
