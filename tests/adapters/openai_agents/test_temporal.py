"""Temporal's plugin for the SDK: its activities, with what passes through Temporal as JSON."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox import LocalSnapshotSpec, Manifest
from agents.sandbox.entries import File
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.openai_agents import SandboxClientProvider
from temporalio.openai_agents.sandbox import _temporal_activity_models as models
from temporalio.testing import ActivityEnvironment

from ringfence import SessionManager, open_backend
from ringfence.adapters.openai_agents import RingfenceSandboxClient, RingfenceSandboxClientOptions

from ..backends import BACKENDS, settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Worker:
    """The activities of one worker, called as a workflow calls them."""

    def __init__(self, sessions: SessionManager) -> None:
        provider = SandboxClientProvider("box", RingfenceSandboxClient(sessions))
        made = provider._get_activities([])
        names = [getattr(one, "__temporal_activity_definition").name for one in made]
        short = [str(name).removeprefix("box-sandbox_") for name in names]
        self.activities = dict(zip(short, made, strict=True))

    async def __call__(self, name: str, args: Any) -> Any:
        passed = through_json(args, type(args))
        result = await ActivityEnvironment().run(self.activities[name], passed)
        return None if result is None else through_json(result, type(result))


def through_json(value: Any, kind: Any) -> Any:
    converter = pydantic_data_converter.payload_converter
    return converter.from_payloads(converter.to_payloads([value]), [kind])[0]


@pytest.fixture(params=BACKENDS)
async def sessions(request: pytest.FixtureRequest, own_places: Path) -> AsyncIterator[Any]:
    async with open_backend(settings(request.param)) as backend, SessionManager(backend) as made:
        yield made
        assert made.sessions == []


async def test_every_activity(sessions: SessionManager, tmp_path: Path) -> None:
    worker = Worker(sessions)
    created = await worker(
        "client_create",
        models.CreateSessionArgs(
            snapshot_spec=LocalSnapshotSpec(base_path=tmp_path),
            manifest=Manifest(entries={"a.txt": File(content=b"one\n")}),
            client_options=RingfenceSandboxClientOptions(),
        ),
    )
    assert created.supports_pty
    state = created.state
    await worker("session_start", models.StartArgs(state=state))
    found = await worker(
        "session_exec", models.ExecArgs(state=state, command=["cat a.txt; exit 3"])
    )
    assert (found.stdout, found.exit_code) == (b"one\n", 3)
    data = bytes(range(256))
    await worker("session_write", models.WriteArgs(state=state, path="b.bin", data=data))
    read = await worker("session_read", models.ReadArgs(state=state, path="b.bin"))
    assert read.data == data
    assert (await worker("session_running", models.RunningArgs(state=state))).is_running
    started = await worker(
        "session_pty_exec_start",
        models.PtyExecStartArgs(
            state=state, command=["read x; echo got $x"], tty=True, yield_time_s=0.3
        ),
    )
    typed = await worker(
        "session_pty_write_stdin",
        models.PtyWriteStdinArgs(
            state=state, session_id=started.process_id, chars="it\n", yield_time_s=5
        ),
    )
    assert b"got it" in typed.output
    kept = await worker("session_persist_workspace", models.PersistWorkspaceArgs(state=state))
    await worker("session_exec", models.ExecArgs(state=state, command=["rm a.txt b.bin"]))
    await worker(
        "session_hydrate_workspace", models.HydrateWorkspaceArgs(state=state, data=kept.data)
    )

    # The worker's memory of its sessions is gone, but its sandboxes are there.
    again = Worker(sessions)
    read = await again("session_read", models.ReadArgs(state=state, path="b.bin"))
    assert read.data == data
    await again("session_stop", models.StopArgs(state=state))
    await again("session_shutdown", models.StopArgs(state=state))
    await again("client_delete", models.StopArgs(state=state))


async def test_what_no_second_try_mends_is_given_up(sessions: SessionManager) -> None:
    worker = Worker(sessions)
    bad = models.CreateSessionArgs(client_options=RingfenceSandboxClientOptions(plan="nonsense"))
    with pytest.raises(ApplicationError) as caught:
        await worker("client_create", bad)
    assert caught.value.non_retryable
    created = await worker(
        "client_create", models.CreateSessionArgs(client_options=RingfenceSandboxClientOptions())
    )
    await worker("session_start", models.StartArgs(state=created.state))
    (box,) = sessions.sessions
    await box._destroy("for the test")
    for name, args in (
        ("session_exec", models.ExecArgs(state=created.state, command=["true"])),
        ("session_read", models.ReadArgs(state=created.state, path="x")),
        ("session_start", models.StartArgs(state=created.state)),
    ):
        with pytest.raises(ApplicationError) as caught:
            await worker(name, args)
        assert caught.value.non_retryable, name
    await worker("client_delete", models.StopArgs(state=created.state))
