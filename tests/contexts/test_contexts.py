"""What code in a context does and gives back, with a real kernel on each backend."""

from __future__ import annotations

import os
from functools import partial

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.contexts import (
    CodeContext,
    CodeContexts,
    ContextLimits,
    ErrorOutput,
    Output,
    RichOutput,
    StreamOutput,
)
from ringfence.errors import (
    CommandError,
    ContextLostError,
    ContextMissingError,
    KernelMissingError,
    LimitError,
    UnsupportedError,
)

from ..machine import processes_with, until_gone
from .conftest import Room

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(120)]

PNG = b"\x89PNG\r\n\x1a\n"

IGNORES_INTERRUPTS = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("begun", flush=True)
while True:
    time.sleep(1)
"""


async def test_what_code_defines_is_there_for_the_code_after_it(shared: CodeContexts) -> None:
    await shared.run_code("import math\nx = 20\ndef double(n): return 2 * n")
    result = await shared.run_code("double(x) + math.floor(2.5)")
    assert result.ok
    assert result.value is not None
    assert result.value.text == "42"
    assert result.execution_count >= 2


async def test_streams_come_apart_in_the_order_in_which_they_were_written(
    shared: CodeContexts,
) -> None:
    both = "    print(n, flush=True)\n    print(n, file=sys.stderr, flush=True)"
    result = await shared.run_code(f"import sys\nfor n in range(3):\n{both}")
    streams = [one.stream for one in result.outputs if isinstance(one, StreamOutput)]
    assert streams == ["stdout", "stderr"] * 3
    assert (result.stdout, result.stderr) == ("0\n1\n2\n", "0\n1\n2\n")


async def test_outputs_are_handed_out_while_the_code_runs(shared: CodeContexts) -> None:
    context = await shared.create_context()
    wait = "while not os.path.exists('go'): time.sleep(.01)"
    code = f"import os, time\nprint('first', flush=True)\n{wait}"
    async with shared.stream_code(code, context=context) as run:
        with anyio.fail_after(20):
            assert written([await anext(run)]).startswith("first")
            with pytest.raises(RuntimeError, match="not ended"):
                _ = run.result
            await shared.sandbox.write_file("go", b"")
            rest = [output async for output in run]
    assert written(rest) in ("", "\n")
    assert run.result.stdout == "first\n"
    await shared.close_context(context)


async def test_what_programs_write_that_the_code_starts_is_its_output(shared: CodeContexts) -> None:
    result = await shared.run_code(
        "import subprocess\nsubprocess.run(['echo', 'from a child']).returncode"
    )
    assert "from a child\n" in result.stdout


async def test_a_callback_gets_each_output(shared: CodeContexts) -> None:
    heard: list[Output] = []
    result = await shared.run_code("print('a')\n1", on_output=heard.append)
    assert written(heard) == "a\n"  # a kernel may send a line in parts
    assert heard[-1] == result.outputs[-1] == result.value

    async def heard_later(output: Output) -> None:
        heard.append(output)

    await shared.run_code("print('b')", on_output=heard_later)
    assert written(heard) == "a\nb\n"


def written(outputs: list[Output]) -> str:
    return "".join(one.text for one in outputs if isinstance(one, StreamOutput))


async def test_a_figure_comes_as_a_picture(room: Room, shared: CodeContexts) -> None:
    if room.name == "container":  # which has no matplotlib
        show = f"display(Image(data={PNG!r}, format='png'))"
        code = f"from IPython.display import Image, display\n{show}"
    else:
        code = "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2, 3])"
    result = await shared.run_code(code, timeout=120)
    assert result.ok, result.error
    (figure,) = result.displays
    assert not figure.is_result
    assert figure.png is not None
    assert figure.png.startswith(PNG)
    result = await shared.run_code(
        "from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')"
    )
    assert result.value is not None
    assert result.value.svg is not None
    assert result.value.svg.startswith("<svg")


async def test_a_frame_comes_as_html_and_as_text(shared: CodeContexts) -> None:
    code = (
        "class Frame:\n"
        "    def _repr_html_(self): return '<table></table>'\n"
        "    def __repr__(self): return 'a table'\n"
        "Frame()"
    )
    value = (await shared.run_code(code)).value
    assert value is not None
    assert (value.html, value.text, value.png) == ("<table></table>", "a table", None)


async def test_json_comes_as_a_value(shared: CodeContexts) -> None:
    code = (
        "from IPython.display import display\ndisplay({'application/json': {'a': [1]}}, raw=True)"
    )
    (shown,) = (await shared.run_code(code)).displays
    assert shown.json() == {"a": [1]}


async def test_an_exception_is_a_result_with_its_traceback(shared: CodeContexts) -> None:
    result = await shared.run_code("def broken():\n    return 1 / 0\nprint('before')\nbroken()")
    assert not result.ok
    assert result.error is not None
    assert (result.error.name, result.error.value) == ("ZeroDivisionError", "division by zero")
    assert "in broken" in result.error.traceback
    assert "\x1b" not in result.error.traceback
    assert result.stdout == "before\n"
    assert isinstance(result.outputs[-1], ErrorOutput)
    assert (await shared.run_code("nonsense(")).error is not None


async def test_code_that_asks_for_input_is_refused_at_once(shared: CodeContexts) -> None:
    with anyio.fail_after(45):
        result = await shared.run_code("input('name? ')")
    assert result.error is not None
    assert result.error.name == "StdinNotImplementedError"


async def test_code_can_await(shared: CodeContexts) -> None:
    result = await shared.run_code("import asyncio\nawait asyncio.sleep(0)\n'awaited'")
    assert result.value is not None
    assert result.value.text == "'awaited'"


async def test_code_begins_in_the_workspace_and_finds_its_files(shared: CodeContexts) -> None:
    await shared.sandbox.write_file("note.txt", "hello")
    await shared.sandbox.write_file("random.py", "raise SystemExit")  # a module's name
    context = await shared.create_context()
    result = await shared.run_code("open('note.txt').read()", context=context)
    assert result.value is not None
    assert result.value.text == "'hello'"
    await shared.close_context(context)
    await shared.sandbox.remove("random.py")


async def test_two_contexts_know_nothing_of_each_other_and_run_side_by_side(
    shared: CodeContexts,
) -> None:
    one, other = await shared.create_context(), await shared.create_context()
    assert one.id != other.id
    await shared.run_code("x = 'one'", context=one)
    result = await shared.run_code("x", context=other)
    assert result.error is not None
    assert result.error.name == "NameError"
    wait = "while not os.path.exists({theirs!r}): time.sleep(.01)"
    wait = f"import os, time\nopen({{mine!r}}, 'w')\n{wait}"
    async with anyio.create_task_group() as tasks:
        for context, mine, theirs in ((one, "a", "b"), (other.id, "b", "a")):
            code = wait.format(mine=mine, theirs=theirs)
            tasks.start_soon(partial(shared.run_code, code, context=context))
    for context in (one, other):
        await shared.close_context(context)


async def test_code_of_one_context_runs_one_after_the_other(shared: CodeContexts) -> None:
    await shared.run_code("order = []")

    async def add(number: int) -> None:
        await shared.run_code(
            f"order.append({number}); import time; time.sleep(.02); order.append({number})"
        )

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(add, number)
    value = (await shared.run_code("order[::2] == order[1::2]")).value
    assert value is not None
    assert value.text == "True"


async def test_time_that_is_up_interrupts_the_code_and_keeps_the_context(
    shared: CodeContexts,
) -> None:
    code = "kept = 7\nprint('partial', flush=True)\nwhile True: pass"
    result = await shared.run_code(code, timeout=3)
    assert (result.timed_out, result.kernel_lost, result.stdout) == (True, False, "partial\n")
    assert not result.ok
    assert result.error is not None
    assert result.error.name == "KeyboardInterrupt"
    value = (await shared.run_code("kept")).value
    assert value is not None
    assert value.text == "7"


async def test_code_can_be_interrupted_from_outside(shared: CodeContexts) -> None:
    context = await shared.create_context()
    await shared.interrupt_context(context)  # nothing runs
    async with shared.stream_code(
        "print('on', flush=True)\nwhile True: pass", context=context
    ) as run:
        assert written([await anext(run)]).startswith("on")
        await shared.interrupt_context(context.id)
        with anyio.fail_after(45):
            result = await run.finish()
    assert (result.interrupted, result.timed_out) == (True, False)
    assert (await shared.run_code("1", context=context)).ok
    await shared.close_context(context)


async def test_a_cancelled_call_interrupts_its_code_and_keeps_the_context(
    shared: CodeContexts,
) -> None:
    await shared.run_code("done = False")
    with anyio.move_on_after(0.5) as scope:
        await shared.run_code("import time\nwhile True: time.sleep(.1)\ndone = True")
    assert scope.cancelled_caught
    value = (await shared.run_code("done")).value
    assert value is not None
    assert value.text == "False"


async def test_leaving_a_stream_early_interrupts_its_code(shared: CodeContexts) -> None:
    context = await shared.create_context()
    async with shared.stream_code(
        "x = 5\nprint(x, flush=True)\nwhile True: print(x)", context=context
    ) as run:
        await anext(run)
    value = (await shared.run_code("x", context=context)).value
    assert value is not None
    assert value.text == "5"
    await shared.close_context(context)


async def test_code_that_heeds_no_interrupt_is_killed_with_its_kernel(
    room: Room, sandbox: Sandbox
) -> None:
    limits = ContextLimits(interrupt_grace=0.3)
    async with room.contexts(sandbox, limits) as contexts:
        context = await contexts.create_context()
        result = await contexts.run_code(IGNORES_INTERRUPTS, context=context, timeout=3)
        assert (result.timed_out, result.kernel_lost, result.stdout) == (True, True, "begun\n")
        with pytest.raises(ContextLostError, match="did not heed the interrupt"):
            await contexts.run_code("1", context=context)
        assert not (await contexts.list_contexts())[0].alive

        assert (await contexts.restart_context(context)).alive
        assert (await contexts.run_code("1", context=context)).ok
        async with contexts.stream_code(IGNORES_INTERRUPTS, context=context) as run:
            await anext(run)
        with pytest.raises(ContextLostError, match="did not heed the interrupt"):
            await contexts.run_code("1", context=context)


DEATHS = {
    "import os; os._exit(3)": "it has ended itself with code 3",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "it was killed by SIGKILL",
    "import ctypes; ctypes.string_at(0)": "it was killed by SIGSEGV",
    "import os, signal; os.kill(os.getppid(), signal.SIGKILL)": "its relay has ended",
}


async def test_a_kernel_s_death_is_told_with_its_last_output(room: Room, sandbox: Sandbox) -> None:
    async with room.contexts(sandbox) as contexts:
        context = await contexts.create_context()
        for code, cause in DEATHS.items():
            last = f"print('last words', flush=True)\nimport time; time.sleep(1)\n{code}"
            with anyio.fail_after(60), pytest.raises(ContextLostError) as caught:
                await contexts.run_code(last, context=context)
            assert caught.value.cause.startswith(cause)
            assert caught.value.result.stdout == "last words\n"
            with pytest.raises(ContextLostError):
                await contexts.run_code("1", context=context)
            await contexts.restart_context(context)
        assert (await contexts.run_code("1", context=context)).ok


async def pids_of(contexts: CodeContexts, context: CodeContext) -> list[int]:
    """Return the processes of a context's kernel, as this machine numbers them."""
    code = "import os\nos.environ['IPYTHONDIR'].split('/')[-2]"
    value = (await contexts.run_code(code, context=context)).value
    assert value is not None
    assert value.text is not None
    found = processes_with(value.text.strip("'"))
    assert found
    return found


async def test_closing_a_context_ends_all_that_it_has_started(room: Room, sandbox: Sandbox) -> None:
    async with room.contexts(sandbox) as contexts:
        context, other = await contexts.create_context(), await contexts.create_context()
        seconds = f"9{os.getpid()}"
        code = (
            f"import subprocess\nsubprocess.Popen(['sleep', '{seconds}'], start_new_session=True)"
        )
        assert (await contexts.run_code(code, context=context)).ok
        started = await pids_of(contexts, context) + processes_with(seconds)
        assert len(started) >= 2
        await contexts.close_context(context)
        assert until_gone(started) == []
        with pytest.raises(ContextMissingError, match=f"there are: {other.id}"):
            await contexts.run_code("1", context=context)
        last = await pids_of(contexts, other)
        assert [one.id for one in await contexts.list_contexts()] == [other.id]
    assert until_gone(last) == []


async def test_bad_input_is_refused_before_anything_runs(shared: CodeContexts) -> None:
    with pytest.raises(ContextMissingError, match="no code context 'k99'"):
        await shared.run_code("1", context="k99")
    for call in (shared.interrupt_context, shared.restart_context, shared.close_context):
        with pytest.raises(ContextMissingError):
            await call("k99")
    with pytest.raises(UnsupportedError, match="cobol"):
        await shared.create_context("cobol")
    for timeout in (0, -1, float("nan"), True, "5"):
        with pytest.raises(CommandError, match="timeout"):
            await shared.run_code("1", timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="code is text"):
        await shared.run_code(b"1")  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="over the limit"):
        await shared.run_code("#" * (1 << 20) + "\n1")


async def test_code_with_odd_characters_arrives(shared: CodeContexts) -> None:
    result = await shared.run_code("print('ä\\u2028𝄞', '\\ud800'.encode('utf-8', 'replace'))")
    assert result.stdout == "ä\u2028𝄞 b'?'\n"
    with pytest.raises(CommandError, match="surrogate"):
        await shared.run_code("'\ud800'")


async def test_as_many_contexts_as_a_sandbox_may_have(room: Room, sandbox: Sandbox) -> None:
    async with room.contexts(sandbox, ContextLimits(contexts=1)) as contexts:
        first = await contexts.create_context()
        with pytest.raises(LimitError, match="1 code contexts"):
            await contexts.create_context()
        await contexts.close_context(first)
        await contexts.create_context()


@pytest.mark.parametrize("python", ["/usr/bin/python3", "python-that-is-not-there"])
async def test_a_sandbox_without_a_kernel_says_how_to_get_one(room: Room, python: str) -> None:
    async with (
        await room.backend.create() as sandbox,
        CodeContexts(sandbox, python=python) as contexts,
    ):
        with pytest.raises(KernelMissingError, match="takes the package ipykernel"):
            await contexts.create_context()


async def test_only_outputs_within_the_limits_come(room: Room, sandbox: Sandbox) -> None:
    limits = ContextLimits(item_bytes=10_000, total_bytes=40_000)
    async with room.contexts(sandbox, limits) as contexts:
        result = await contexts.run_code("print('x' * 25_000)\n'y' * 15_000")
        assert len(result.stdout) <= 10_000
        assert result.cut_bytes == 25_001 - len(result.stdout)
        assert isinstance(result.outputs[-1], RichOutput)
        assert 0 < len(result.outputs[-1].data["text/plain"]) <= 10_000
        assert result.outputs[-1].cut == {"text/plain": 15_002 - 10_000}

        result = await contexts.run_code("for _ in range(100): print('x' * 5_000, flush=True)")
        assert result.ok
        assert 20_000 < len(result.stdout) <= 40_000
        assert result.cut_bytes == 100 * 5_001 - len(result.stdout)

        shown = "from IPython.display import display\n"
        shown += (
            "for n in range(100): display({'text/html': 'z' * 9_000, 'text/plain': 'z'}, raw=True)"
        )
        result = await contexts.run_code(shown)
        assert result.ok
        assert sum(len(one.html or "") for one in result.displays) <= 40_000
        assert result.cut_bytes + sum(sum(one.cut.values()) for one in result.displays) > 800_000

        result = await contexts.run_code("raise ValueError('v' * 100_000)")
        assert result.error is not None
        assert result.error.name == "ValueError"
        assert result.error.cut
