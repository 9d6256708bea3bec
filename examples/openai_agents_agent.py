"""An agent of the OpenAI Agents SDK in a sandbox, and the same workspace taken up again later.

The model here is a script, so that this runs without a key; put a real one in its place.
"""

import asyncio
import json
import tempfile
from pathlib import Path

from agents import RunConfig, Runner, ToolCallOutputItem
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call

from ringfence import SessionManager, open_backend
from ringfence.adapters.openai_agents import RingfenceSandboxClient

COMMAND = "awk -F, '{ n += $2 } END { print n }' sales.csv | tee total.txt"


async def main() -> None:
    script = ScriptedModel([
        [function_call("exec_command", {"cmd": COMMAND}, call_id="first")],
        [assistant_message("The total is in total.txt.")],
    ])  # fmt: skip
    agent = SandboxAgent(name="analyst", model=script, capabilities=[Shell()])
    manifest = Manifest(entries={"sales.csv": File(content=b"north,3\nsouth,4\n")})

    with tempfile.TemporaryDirectory() as place:
        async with open_backend("auto") as backend, SessionManager(backend) as sessions:
            client = RingfenceSandboxClient(sessions)
            session = await client.create(
                manifest=manifest, snapshot=LocalSnapshotSpec(base_path=Path(place))
            )
            async with session:
                config = RunConfig(sandbox=SandboxRunConfig(session=session), tracing_disabled=True)
                result = await Runner.run(agent, "How many were sold?", run_config=config)
                print(
                    *(one.output for one in result.new_items if isinstance(one, ToolCallOutputItem))
                )
                print(result.final_output)
            state = json.dumps(client.serialize_session_state(session.state))
            await client.delete(session)

        # Another worker, which has nothing but the state and the place of the snapshot.
        async with open_backend("auto") as backend, SessionManager(backend) as sessions:
            client = RingfenceSandboxClient(sessions)
            session = await client.resume(client.deserialize_session_state(json.loads(state)))
            async with session:
                print("later:", (await session.exec("cat total.txt")).stdout.decode().strip())
            await client.delete(session)


if __name__ == "__main__":
    asyncio.run(main())
