"""The tool `run_code` with a context, as a model calls it."""

from __future__ import annotations

import pytest

from ringfence.backend import Sandbox
from ringfence.backends.fake import FakeBackend
from ringfence.contexts import CodeContexts, CodeResult, ContextLimits, RichOutput, StreamOutput
from ringfence.tools import Toolkit
from ringfence.tools.in_context import result_text

from .conftest import Room

pytestmark = [pytest.mark.anyio]

in_a_jail = pytest.mark.parametrize("room", ["bubblewrap"], indirect=True)


async def test_the_tool_has_a_context_only_where_there_are_some() -> None:
    async with FakeBackend() as backend, await backend.create() as sandbox:
        for tools, there in ((Toolkit(sandbox), False), (with_contexts(sandbox), True)):
            (openai,) = [t for t in tools.openai() if t["function"]["name"] == "run_code"]
            (anthropic,) = [t for t in tools.anthropic() if t["name"] == "run_code"]
            assert ("context" in openai["function"]["parameters"]["properties"]) == there
            assert ("context" in anthropic["input_schema"]["properties"]) == there
        said = {"language": "bash", "code": "1", "context": "a"}
        output = await Toolkit(sandbox).call("run_code", said)
        assert output.is_error
        assert "no argument 'context'" in output.text
        output = await with_contexts(sandbox).call("run_code", said)
        assert (output.is_error, output.code) == (True, "tool")
        assert "contexts are for python" in output.text
        output = await with_contexts(sandbox).call("run_code", {**said, "context": 5})
        assert "context is a string" in output.text


def with_contexts(sandbox: Sandbox) -> Toolkit:
    return Toolkit(sandbox, contexts=CodeContexts(sandbox))


@pytest.mark.slow
@in_a_jail
async def test_a_model_names_contexts_and_reads_what_code_gives(room: Room) -> None:
    limits = ContextLimits(contexts=1, interrupt_grace=0.3)
    async with await room.sandbox() as sandbox, room.contexts(sandbox, limits) as contexts:
        tools = Toolkit(sandbox, contexts=contexts)

        async def said(code: str, **more: object) -> str:
            wanted = {"language": "python", "code": code, "context": "work", **more}
            return (await tools.call("run_code", wanted)).text

        assert await said("x = 20\nprint('hi')") == "hi\n[done]"
        assert await said("x + 1") == "21\n[done]"
        assert await said("y = 1") == "(no output)\n[done]"
        text = await said("1 / 0")
        assert text.endswith("ZeroDivisionError: division by zero\n[exception: ZeroDivisionError]")
        assert (await said("while True: pass", timeout=0.3)).endswith("time limit]")
        assert await said("x") == "20\n[done]"
        assert "[error: there are 1 code contexts" in await said("1", context="other")
        assert "[error: a context's name" in await said("1", context="../a b")
        text = await said("import os, time\nprint('last', flush=True); time.sleep(1); os._exit(3)")
        assert "has died: it has ended itself with code 3" in text
        text = await said("x")
        assert text.startswith("[context work is new")
        assert text.endswith("[exception: NameError]")
        plain = await tools.call("run_code", {"language": "bash", "code": "echo plain"})
        assert plain.text == "plain\n[exit code: 0]"


def test_what_is_shown_is_told_in_words_and_bounded() -> None:
    figure = RichOutput({"text/plain": "<Figure>", "image/png": "AAAA"}, cut={"text/html": 9})
    result = CodeResult((StreamOutput("stdout", "a\n"), figure), cut_bytes=7)
    assert result_text(result) == (
        "a\n<Figure>\n[image/png, 4 characters]\n[text/html: 9 bytes were left out]\n"
        "[cut: 7 bytes were not kept]"
    )
    long = CodeResult((StreamOutput("stdout", "x" * 100_000),))
    assert len(result_text(long)) < 31_000
