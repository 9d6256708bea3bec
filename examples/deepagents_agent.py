"""A deep agent that works in a sandbox; a scripted model stands in for a real one.

Needs `pip install 'ringfence[deepagents]'`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool

from ringfence import sync
from ringfence.adapters.deepagents import RingfenceBackend


class ScriptedModel(GenericFakeChatModel):
    """Says what it was given, and takes tools as a real model does."""

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[Any, AIMessage]:
        return self


def call(number: int, name: str, **arguments: str) -> AIMessage:
    tool_call = {"name": name, "args": arguments, "id": f"call-{number}", "type": "tool_call"}
    return AIMessage("", tool_calls=[tool_call])


script = [
    call(1, "write_file", file_path="/workspace/answer.py", content="print(6 * 7)\n"),
    call(2, "execute", command="python3 answer.py; id -u"),
    AIMessage("The program prints 42."),
]

if __name__ == "__main__":
    with sync.open_backend("auto") as backend, backend.create() as sandbox:
        agent = create_deep_agent(
            ScriptedModel(messages=iter(script)), backend=RingfenceBackend(sandbox)
        )
        question: Any = {"messages": [("user", "Write a program for 6 * 7, and run it.")]}
        done = agent.invoke(question)
        for message in done["messages"]:
            print(f"{message.type}: {message.text}")
        print(sandbox.read_file("answer.py").decode())
