"""A Pydantic AI agent that works in a sandbox; a scripted model stands in for a real one.

Needs `pip install 'ringfence[pydantic-ai]'`.
"""

import asyncio

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ringfence import SessionManager, open_backend
from ringfence.adapters.pydantic_ai import RingfenceWorkspaces

SCRIPT = """
if [ -e answer.py ]; then echo found; else echo 'print(6 * 7)' > answer.py; echo made; fi
python3 answer.py
"""


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer as a model might: run a program first, then say what came of it."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"The program says {str(last.content).split()}.")])
    return ModelResponse(parts=[ToolCallPart("run", {"script": SCRIPT})])


async def run(ctx: RunContext[None], script: str) -> str:
    """Run a shell script in the workspace."""
    result = await ctx.workspace.run(script, shell=True, timeout=10)
    return result.stdout + result.stderr


async def main() -> None:
    async with open_backend("auto") as backend, SessionManager(backend) as sessions:
        agent = Agent(
            FunctionModel(scripted),
            tools=[run],
            capabilities=[RingfenceWorkspaces(sessions)],
        )
        first = await agent.run("What is six times seven?")
        print(first.output)

        # Who has the messages of a run has its workspace too, with what was written in it.
        again = await agent.run("Look again.", message_history=first.all_messages())
        print(again.output)
        print("sandboxes:", len(sessions.sessions))


if __name__ == "__main__":
    asyncio.run(main())
