"""A Google ADK agent with two ways into one sandbox: tools, and the code blocks of its answers.

The model here is a script, so that this runs without a key; put a real one in its place.
"""

import asyncio
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types

from ringfence import open_backend
from ringfence.adapters.google_adk import AdkCodeExecutor, AdkEnvironment

ANSWERS = [
    types.Part.from_function_call(
        name="WriteFile", args={"path": "sales.csv", "content": "north,3\nsouth,4\n"}
    ),
    types.Part.from_function_call(name="Execute", args={"command": "wc -l < sales.csv"}),
    types.Part.from_text(
        text="Let me add them up.\n```python\n"
        "print(sum(int(line.split(',')[1]) for line in open('sales.csv')))\n```"
    ),
    types.Part.from_text(text="That is all."),
]


class Script(BaseLlm):
    """A model that gives its answers one after the other."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.Content(role="model", parts=[ANSWERS.pop(0)]))


async def main() -> None:
    async with open_backend("auto") as backend, await backend.create() as sandbox:
        agent = LlmAgent(
            name="analyst",
            model=Script(model="script"),
            tools=[EnvironmentToolset(environment=AdkEnvironment(sandbox))],
            code_executor=AdkCodeExecutor(sandbox),
        )
        async with InMemoryRunner(agent=agent, app_name="sales") as runner:
            session = await runner.session_service.create_session(app_name="sales", user_id="me")
            question = types.Content(role="user", parts=[types.Part(text="How many were sold?")])
            async for event in runner.run_async(
                user_id="me", session_id=session.id, new_message=question
            ):
                for part in event.content.parts or [] if event.content else []:
                    if part.function_response:
                        print("tool:", part.function_response.response)
                    elif part.code_execution_result:
                        print("code:", part.code_execution_result.output)
                    elif part.text:
                        print("model:", part.text)


if __name__ == "__main__":
    asyncio.run(main())
