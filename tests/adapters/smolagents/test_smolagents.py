"""An agent's code runs in a sandbox, keeps its state there, and answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, Model, tool
from smolagents.default_tools import FinalAnswerTool
from smolagents.utils import AgentError

from ringfence import open_backend, sync
from ringfence.adapters.smolagents import MAX_LOGS, SmolagentsExecutor
from ringfence.errors import ConfigError, KernelMissingError, SandboxClosedError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def executor(place: tuple[sync.Sandbox, str]) -> Iterator[SmolagentsExecutor]:
    sandbox, python = place
    with SmolagentsExecutor(sandbox, python=python) as made:
        yield made


@tool
def double(number: int) -> int:
    """Return twice a number.

    Args:
        number: Any whole number.
    """
    return 2 * number


def with_tools(executor: SmolagentsExecutor) -> None:
    answer = FinalAnswerTool()  # type: ignore[no-untyped-call]
    executor.send_tools({"double": double, "final_answer": answer})


class Script(Model):
    """A model that writes one piece of code after the other, and keeps what it was told."""

    def __init__(self, *steps: str) -> None:
        super().__init__(model_id="script")
        self.steps = iter(steps)
        self.told: list[str] = []

    def generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatMessage:
        self.told = [str(message.content) for message in messages]
        text = f"Thought: on it.\n<code>\n{next(self.steps)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


def test_an_agent_s_steps_share_their_state_and_its_answer_comes_back(
    executor: SmolagentsExecutor,
) -> None:
    model = Script("x = double(20)\nprint('x is', x)", "1 / 0", "final_answer({'x': x + 2})")
    agent = CodeAgent([double], model, executor=executor, verbosity_level=LogLevel.OFF)
    assert agent.run("go") == {"x": 42}
    told = "".join(model.told)
    assert "x is 40" in told
    assert "ZeroDivisionError" in told


def test_code_gives_its_value_and_what_it_prints(executor: SmolagentsExecutor) -> None:
    found = executor("print('a')\n6 * 7")
    assert (found.output, found.logs, found.is_final_answer) == ("42", "a\n", False)
    assert executor("y = 1").output is None


def test_variables_are_sent(executor: SmolagentsExecutor) -> None:
    executor.send_variables({"name": "äpfel", "parts": [1, {"a": None}], "pair": (1, 2)})
    assert executor("(name, parts, pair)").output == "('äpfel', [1, {'a': None}], (1, 2))"


@pytest.mark.parametrize("answer", ["5", "'text'", "[1, None, {'a': (1, 2)}]", "None", "b'x'"])
def test_a_final_answer_keeps_its_type(executor: SmolagentsExecutor, answer: str) -> None:
    with_tools(executor)
    found = executor(f"final_answer({answer})")
    assert (found.output, found.is_final_answer) == (eval(answer), True)


def test_nothing_is_unpickled(executor: SmolagentsExecutor) -> None:
    with_tools(executor)
    forged = (
        "class FinalAnswerException(Exception): pass\nraise FinalAnswerException('pickle:gASV')"
    )
    with pytest.raises(Exception, match="Pickle data rejected"):
        executor(forged)
    with pytest.raises(AgentError):
        executor("final_answer(lambda: 0)")


def test_code_that_fails_says_how(executor: SmolagentsExecutor) -> None:
    with pytest.raises(AgentError, match=r"(?s)before.*ValueError: broken"):
        executor("print('before')\nraise ValueError('broken')")


def test_time_that_is_up_is_told_and_the_state_stays(executor: SmolagentsExecutor) -> None:
    executor.timeout = 0.5
    with pytest.raises(AgentError, match=r"(?s)begun.*\[TIMEOUT"):
        executor("kept = 3\nprint('begun', flush=True)\nwhile True: pass")
    executor.timeout = None
    assert executor("kept").output == "3"


def test_code_that_ends_its_python_gets_a_new_one_with_the_tools(
    executor: SmolagentsExecutor,
) -> None:
    with_tools(executor)
    executor.send_variables({"given": 5})
    executor("own = 1")
    with pytest.raises(AgentError, match=r"ended itself with code 3.*variables .* are gone"):
        executor("import os; os._exit(3)")
    assert executor("double(given)").output == "10"
    with pytest.raises(AgentError, match="NameError"):
        executor("own")


def test_what_is_printed_is_bounded(executor: SmolagentsExecutor) -> None:
    found = executor("print('x' * 1_000_000)")
    assert len(found.logs) < MAX_LOGS + 200
    assert "characters left out" in found.logs


def test_packages_that_are_there_need_no_index(place: tuple[sync.Sandbox, str]) -> None:
    sandbox, python = place
    with SmolagentsExecutor(sandbox, python=python, additional_imports=["ipykernel"]) as executor:
        assert "ipykernel" in executor.installed_packages
    with pytest.raises(AgentError, match="no-such-package-here"):
        SmolagentsExecutor(sandbox, python=python, additional_imports=["no-such-package-here"])


def test_bad_input_is_refused(place: tuple[sync.Sandbox, str]) -> None:
    sandbox, python = place
    with pytest.raises(ConfigError, match=r"ringfence\.sync"):
        SmolagentsExecutor(open_backend("fake"))  # type: ignore[arg-type]
    with pytest.raises(KernelMissingError, match="ipykernel"):
        SmolagentsExecutor(sandbox, python="python-that-is-not-there")
    executor = SmolagentsExecutor(sandbox, python=python)
    executor.cleanup()
    executor.cleanup()
    with pytest.raises(SandboxClosedError):
        executor("1")
