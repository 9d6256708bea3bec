"""The example with the three roles, against an endpoint that has a script, over real HTTP."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from ringfence import SessionManager, open_backend

from .adapters.backends import BACKENDS, settings
from .own_places import own_places

__all__ = ("own_places",)

pytestmark = [pytest.mark.slow, pytest.mark.anyio, pytest.mark.usefixtures("own_places")]

EXAMPLE = Path(__file__).parent.parent / "examples" / "planner_executor_reviewer.py"
KEY = "sk-not-to-be-seen"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("planner_executor_reviewer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


example = load()


class Endpoint:
    """Answers chat completions from a script, and keeps what it was sent."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                endpoint.asked.append(json.loads(self.rfile.read(length)))
                endpoint.keys.add(self.headers["Authorization"])
                assert self.path == "/v1/chat/completions"
                reply = endpoint.script.pop(0) if len(endpoint.script) > 1 else endpoint.script[0]
                status, body = reply if isinstance(reply, tuple) else (200, completion(reply))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def results(self, number: int) -> list[str]:
        """Return what the tools had said, as it was sent with a question."""
        return [one["content"] for one in self.asked[number]["messages"] if one["role"] == "tool"]


def completion(message: dict[str, Any] | str) -> bytes:
    given = {"content": message} if isinstance(message, str) else message
    return json.dumps({"choices": [{"message": {"role": "assistant", **given}}]}).encode()


def calls(*wanted: tuple[str, Any]) -> dict[str, Any]:
    return {
        "content": None,
        "tool_calls": [
            {
                "id": f"call-{number}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": given if isinstance(given, str) else json.dumps(given),
                },
            }
            for number, (name, given) in enumerate(wanted)
        ],
    }


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    made.thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join(10)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def model(endpoint: Endpoint) -> AsyncIterator[Any]:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx.AsyncClient(base_url=f"{endpoint.url}/", headers=headers) as http:
        yield example.Model(http, "script")


PLAN = '```json\n{"steps": ["write the file", "look at it"]}\n```'


@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_three_roles(
    backend: str, endpoint: Endpoint, model: Any, tmp_path: Path
) -> None:
    endpoint.script = [
        PLAN,
        calls(("write_file", {"path": "a.txt", "content": "one\n"})),
        calls(
            ("read_file", {"path": "/etc/passwd"}),
            ("read_file", {"path": "../../etc/passwd"}),
            ("write_file", "{not JSON"),
            ("no_such_tool", {}),
        ),
        "I have written it.",
        calls(("terminal", {"command": "cat a.txt; exit 3"})),
        "It has one line.",
        '{"approved": false, "feedback": "add two"}',
        calls(("run_code", {"language": "python", "code": "open('a.txt', 'a').write('two\\n')"})),
        "I have added it.",
        '{"approved": true, "feedback": ""}',
    ]
    async with open_backend(settings(backend)) as opened, SessionManager(opened) as sessions:
        assert await example.work(model, sessions, "write one and two", tmp_path / "out")
    assert (tmp_path / "out" / "a.txt").read_text() == "one\ntwo\n"

    assert endpoint.keys == {f"Bearer {KEY}"}
    assert [one["model"] for one in endpoint.asked] == ["script"] * 10
    with_tools = [number for number, one in enumerate(endpoint.asked) if "tools" in one]
    assert with_tools == [1, 2, 3, 4, 5, 7, 8]  # the executor's, and nobody else's
    names = [one["function"]["name"] for one in endpoint.asked[1]["tools"]]
    assert names[:2] == ["terminal", "run_code"]

    _, outside, upwards, no_json, unknown = endpoint.results(3)
    for text in (outside, upwards):
        assert text.startswith("[error: ")
        assert "workspace" in text or "'..'" in text
        assert "root:" not in text
    assert "not JSON" in no_json
    assert "there is no tool" in unknown
    assert endpoint.results(5)[0].endswith("one\n[exit code: 3]")
    asked_of_reviewer = endpoint.asked[6]["messages"][1]["content"]
    assert "It has one line." in asked_of_reviewer
    assert "a.txt  4 bytes" in asked_of_reviewer
    assert "add two" in endpoint.asked[7]["messages"][1]["content"]


async def test_turns_and_rounds_have_an_end(endpoint: Endpoint, model: Any, tmp_path: Path) -> None:
    """Every answer asks for a tool, and is no verdict that a reviewer can give."""
    forever = {**calls(("terminal", {"command": "true"})), "content": '{"steps": ["go"]}'}
    endpoint.script = [forever]
    async with open_backend("bubblewrap") as opened, SessionManager(opened) as sessions:
        assert not await example.work(model, sessions, "go on", tmp_path / "out")
    rounds = example.MAX_ROUNDS
    assert len(endpoint.asked) == 1 + rounds * (example.MAX_TURNS + 1)


async def test_calls_at_once_have_an_end(endpoint: Endpoint, model: Any, tmp_path: Path) -> None:
    many = calls(*(("terminal", {"command": f"echo {n} >> log"}) for n in range(11)))
    endpoint.script = ['{"steps": ["go"]}', many, "done", '{"approved": true}']
    async with open_backend("bubblewrap") as opened, SessionManager(opened) as sessions:
        assert await example.work(model, sessions, "go", tmp_path / "out")
    assert len((tmp_path / "out" / "log").read_text().split()) == example.MAX_CALLS
    assert endpoint.results(2)[8:] == ["[error: too many calls at once]"] * 3


async def test_a_conversation_has_an_end(
    endpoint: Endpoint, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "MAX_CONVERSATION", 50_000)
    flood = calls(("terminal", {"command": "head -c 100000 /dev/zero | tr '\\0' x"}))
    endpoint.script = ['{"steps": ["go"]}', flood, flood, '{"approved": true}']
    async with open_backend("bubblewrap") as opened, SessionManager(opened) as sessions:
        assert await example.work(model, sessions, "go", tmp_path / "out")
    assert "too long" in endpoint.asked[-1]["messages"][1]["content"]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((500, b"out of order"), "500: out of order"),
        ((200, b"<html>"), "no chat completion"),
        ((200, b'{"choices": []}'), "no chat completion"),
        ((200, b'{"choices": [{"message": 1}]}'), "no chat completion"),
        ((200, b"x" * 5_000_000), "too long"),
        ("no JSON", "not answered with JSON"),
        ("{}", "no steps"),
    ],
)
async def test_an_endpoint_that_fails(
    endpoint: Endpoint, model: Any, reply: Any, words: str
) -> None:
    endpoint.script = [reply]
    with pytest.raises(example.ModelError, match=words):
        await example.plan(model, "go")


def run(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLE, *words],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=50,
        stdin=subprocess.DEVNULL,
    )


def test_as_a_program(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.script = [
        '{"steps": ["write the file"]}',
        calls(("write_file", {"path": "a.txt", "content": "one\n"})),
        "done",
        '{"approved": true}',
    ]
    surroundings = {"OPENAI_BASE_URL": endpoint.url, "OPENAI_MODEL": "m", "OPENAI_API_KEY": KEY}
    done = run(tmp_path, "write it", "--backend", "bubblewrap", **surroundings)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "planner-output" / "a.txt").read_text() == "one\n"
    assert KEY not in done.stdout

    endpoint.script = [(401, b"no such key")]
    refused = run(tmp_path, "write it", "--backend", "bubblewrap", **surroundings)
    assert (refused.returncode, refused.stderr) == (
        1,
        "the endpoint has answered 401: no such key\n",
    )


def test_as_a_program_without_an_endpoint(tmp_path: Path) -> None:
    nothing = {"OPENAI_BASE_URL": "", "OPENAI_MODEL": "", "OPENAI_API_KEY": ""}
    done = run(tmp_path, "write it", **nothing)
    assert (done.returncode, "OPENAI_BASE_URL" in done.stderr) == (2, True)
    gone = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_MODEL": "m", "OPENAI_API_KEY": KEY}
    done = run(tmp_path, "write it", "--backend", "bubblewrap", **gone)
    assert (done.returncode, "can't be reached" in done.stderr) == (1, True)
    assert KEY not in done.stderr
