"""A smolagents CodeAgent whose code runs in a sandbox, and finds there what it has defined before.

The model here is a script, so that this runs without a key; put a real one in its place. The
sandbox shows the Python of this very environment, read-only, because it has ipykernel.
"""

import sys
from collections.abc import Iterator
from typing import Any

from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, Model, tool

from ringfence import SandboxSpec, sync
from ringfence.adapters.smolagents import SmolagentsExecutor
from ringfence.interpreter import find_interpreter

STEPS = (
    "squares = [square(n) for n in range(1, 6)]\nprint(squares)",
    "open('squares.txt', 'w').write(str(squares))\nfinal_answer(sum(squares))",
)


@tool
def square(number: int) -> int:
    """Return the square of a number.

    Args:
        number: Any whole number.
    """
    return number * number


class Script(Model):
    """A model that writes one piece of code after the other."""

    def __init__(self) -> None:
        super().__init__(model_id="script")
        self.steps: Iterator[str] = iter(STEPS)

    def generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatMessage:
        text = f"Thought: on it.\n<code>\n{next(self.steps)}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


def main() -> None:
    python = find_interpreter(sys.executable)
    spec = SandboxSpec(mounts=python.mounts)
    with (
        sync.open_backend("bubblewrap") as backend,
        backend.create(spec) as sandbox,
        SmolagentsExecutor(sandbox, python=python.path) as executor,
    ):
        agent = CodeAgent(
            tools=[square], model=Script(), executor=executor, verbosity_level=LogLevel.OFF
        )
        print("the agent's answer:", agent.run("What do the squares of 1 to 5 add up to?"))
        print("in the sandbox:", sandbox.read_file("squares.txt").decode())


if __name__ == "__main__":
    main()
