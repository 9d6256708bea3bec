"""A Strands agent whose files and commands stay in a sandbox.

The model here is a script, so that this runs without a key; put a real one in its place. The
sandbox is one of `ringfence.sync`, since `agent("...")` runs in an event loop of its own.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from strands import Agent
from strands.models import Model
from strands.types.streaming import StreamEvent

from ringfence import sync
from ringfence.adapters.strands import StrandsSandbox

PROGRAM = "for n in range(1, 6):\n    print(n, n * n)\n"
FILE = {"command": "create", "path": "/workspace/squares.py", "file_text": PROGRAM}
CALLS = (
    ("sandbox_file_editor", FILE),
    ("sandbox_shell", {"command": "python3 squares.py | tail -n 1"}),
)


class Script(Model):
    """A model that calls one tool after the other, and then says what the last one has said."""

    def __init__(self) -> None:
        self.calls: Iterator[tuple[str, dict[str, str]]] = iter(CALLS)

    def update_config(self, **model_config: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[StreamEvent]:
        yield {"messageStart": {"role": "assistant"}}
        call = next(self.calls, None)
        if call is None:
            said = messages[-1]["content"][0]["toolResult"]["content"][0]
            yield {"contentBlockDelta": {"delta": {"text": f"The tool has said: {said}"}}}
        else:
            name, arguments = call
            start = {"toolUse": {"name": name, "toolUseId": f"call-{name}"}}
            yield {"contentBlockStart": {"start": start}}  # type: ignore[typeddict-item]
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if call is None else "tool_use"}}


def main() -> None:
    with sync.open_backend("auto") as backend, backend.create() as sandbox:
        agent = Agent(model=Script(), sandbox=StrandsSandbox(sandbox), callback_handler=None)
        print(agent("Write a program that prints squares, and tell me its last line."))
        print("in the sandbox:", [entry.name for entry in sandbox.list_files().entries])


if __name__ == "__main__":
    main()
