"""Contexts of a session, and the blocking twin."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

import anyio
import pytest

from ringfence import sync
from ringfence.contexts import CodeContexts, Output, StreamOutput
from ringfence.errors import ContextError, SandboxClosedError, SandboxLostError
from ringfence.interpreter import find_interpreter
from ringfence.leases import MemoryLeases
from ringfence.models import SandboxSpec
from ringfence.sessions import SessionManager

from .conftest import Room

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

in_a_jail = pytest.mark.parametrize("room", ["bubblewrap"], indirect=True)


@pytest.mark.anyio
@in_a_jail
async def test_a_session_is_not_idle_while_code_runs_in_its_context(room: Room) -> None:
    spec = SandboxSpec(mounts=room.mounts)
    async with SessionManager(room.backend, leases=MemoryLeases(), idle_timeout=4) as sessions:
        session = sessions.session("idle", spec=spec)
        async with room.contexts(session) as contexts:
            context = await contexts.create_context()
            result = await contexts.run_code("import time; time.sleep(8)\n'done'", context=context)
            assert result.value is not None
            assert result.value.text == "'done'"
            assert session.generation == 1
            with anyio.fail_after(45):
                while session.is_live:  # nothing runs: now it is
                    await anyio.sleep(0.1)
            with pytest.raises((SandboxLostError, ContextError)):
                await contexts.run_code("1", context=context)


@pytest.mark.anyio
@in_a_jail
async def test_a_session_that_ends_ends_its_contexts(room: Room) -> None:
    spec = SandboxSpec(mounts=room.mounts)
    async with SessionManager(room.backend, leases=MemoryLeases()) as sessions:
        session = sessions.session("ends", spec=spec)
        async with room.contexts(session) as contexts:
            context = await contexts.create_context()
            async with anyio.create_task_group() as tasks:

                async def end() -> None:
                    await anyio.sleep(0.5)
                    await session.aclose()

                tasks.start_soon(end)
                with pytest.raises((SandboxLostError, SandboxClosedError, ContextError)):
                    await contexts.run_code("while True: pass", context=context)


@pytest.mark.anyio
@in_a_jail
async def test_contexts_are_used_in_their_block(room: Room) -> None:
    async with await room.sandbox() as sandbox:
        contexts = room.contexts(sandbox)
        with pytest.raises(SandboxClosedError, match="async with"):
            await contexts.create_context()
        async with contexts:
            await contexts.create_context(name="mine")
            assert [one.id for one in await contexts.list_contexts()] == ["mine"]
        with pytest.raises(SandboxClosedError):
            await contexts.create_context()
        with pytest.raises(SandboxClosedError):
            await contexts.__aenter__()


def test_the_blocking_twin_does_the_same() -> None:
    python = find_interpreter(sys.executable)
    heard: list[Output] = []
    with (
        sync.open_backend("bubblewrap") as backend,
        backend.create(SandboxSpec(mounts=python.mounts)) as sandbox,
        sync.CodeContexts(sandbox, python=python.path) as contexts,
    ):
        context = contexts.create_context()
        contexts.run_code("x = 5", context=context)
        result = contexts.run_code("print('hi')\nx", context=context, on_output=heard.append)
        assert result.value is not None
        assert result.value.text == "5"
        assert isinstance(heard[0], StreamOutput)
        with contexts.stream_code("x + 1", context=context) as run:
            assert len(list(run)) == 1
        assert run.result.ok
        contexts.close_context(context)


def test_contexts_that_are_not_closed_are_told_of() -> None:
    contexts = CodeContexts.__new__(CodeContexts)
    contexts._exits = AsyncExitStack()
    contexts._contexts = {}
    contexts.sandbox = None  # type: ignore[assignment]
    with pytest.warns(ResourceWarning, match="never closed"):
        contexts.__del__()
    contexts._closed = True
