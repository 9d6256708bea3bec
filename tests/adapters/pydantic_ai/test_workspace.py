"""What the rules of Pydantic AI don't look at: runs of agents, refs, limits and ends."""

from __future__ import annotations

import anyio
import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from ringfence import SessionManager
from ringfence.adapters.pydantic_ai import RingfenceWorkspace, RingfenceWorkspaces

pytestmark = pytest.mark.anyio


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the tool, and say what it has returned."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(str(last.content))])
    return ModelResponse(parts=[ToolCallPart("count")])


async def count(ctx: RunContext[None]) -> str:
    """Count how often this was asked in the workspace."""
    result = await ctx.workspace.run("echo >> asked; wc -l < asked", shell=True)
    return result.stdout


async def test_an_agent_goes_on_in_the_workspace_of_its_history(sessions: SessionManager) -> None:
    agent = Agent(
        FunctionModel(scripted), tools=[count], capabilities=[RingfenceWorkspaces(sessions)]
    )
    first = await agent.run("?")
    again = await agent.run("?", message_history=first.all_messages())
    other = await agent.run("?")
    assert [run.output for run in (first, again, other)] == ["1\n", "2\n", "1\n"]
    assert len(sessions.sessions) == 2


async def test_a_ref_leads_to_no_other_tenant_and_no_other_provider(
    sessions: SessionManager,
) -> None:
    mine = RingfenceWorkspace(sessions, tenant_id="a")
    await mine.write_bytes("secret", b"of a")
    assert mine.ref is not None
    with pytest.raises(WorkspaceUnavailableError):
        await RingfenceWorkspace(sessions, mine.ref, tenant_id="b").read_bytes("secret")
    with pytest.raises(ValueError, match="docker"):
        RingfenceWorkspace(sessions, WorkspaceRef(provider="docker", id=mine.ref.id))


async def test_a_timeout_carries_what_there_was(sessions: SessionManager) -> None:
    with pytest.raises(WorkspaceTimeoutError) as caught:
        await RingfenceWorkspace(sessions).run("echo so far; sleep 60", shell=True, timeout=4)
    assert caught.value.stdout == "so far\n"
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            await RingfenceWorkspace(sessions).run(["true"], timeout=timeout)


async def test_output_that_can_not_be_kept_is_an_error(sessions: SessionManager) -> None:
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        await RingfenceWorkspace(sessions).run(["head", "-c", "2000000", "/dev/zero"])
    assert caught.value.limit == len(caught.value.stdout) == 1 << 20


async def test_a_sandbox_that_died_is_not_replaced(sessions: SessionManager) -> None:
    workspace = RingfenceWorkspace(sessions)
    await workspace.write_bytes("file", b"")
    (session,) = sessions.sessions
    await session._destroy("killed by a test")
    for _ in range(2):
        with pytest.raises(WorkspaceUnavailableError):
            await workspace.exists("file")
    assert sessions.sessions == []


async def test_a_cancelled_first_use_leaves_nothing(sessions: SessionManager) -> None:
    workspace = RingfenceWorkspace(sessions)
    with anyio.move_on_after(0):
        await workspace.working_dir()
    assert (workspace.ref, sessions.sessions) == (None, [])
    assert await workspace.working_dir() == "/workspace"


async def test_files_outside_of_the_workspace(sessions: SessionManager) -> None:
    workspace = RingfenceWorkspace(sessions)
    await workspace.make_dir("/tmp/a/b")
    await workspace.write_bytes("/tmp/a/.hidden", b"12345")
    await workspace.run(["ln", "-s", "/tmp/a", "/tmp/link"])
    assert [(one.name, one.is_dir) for one in await workspace.list_dir("/tmp/link")] == [
        (".hidden", False),
        ("b", True),
    ]
    assert (await workspace.stat("/tmp/link/.hidden")).size == 5
    assert await workspace.realpath("/tmp/link/b/../x") == "/tmp/a/x"
    with pytest.raises(FileExistsError):
        await workspace.make_dir("/tmp/a/.hidden")
    with pytest.raises(PermissionError):
        await workspace.write_bytes("/usr/new", b"")
    await workspace.remove("/tmp/link")
    await workspace.remove("/tmp/a/b")
    assert [one.name for one in await workspace.list_dir("/tmp/a")] == [".hidden"]
    await workspace.run(["ln", "-s", "loop", "/tmp/loop"])
    with pytest.raises(OSError, match="links"):
        await workspace.realpath("/tmp/loop/x")
