"""A pod whose node kills all of it together when its memory runs out, as new ones do."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from ringfence import inventory
from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.errors import SandboxLostError
from ringfence.models import ExitReason

from ..own_places import own_places
from .kube_peer import Peer
from .kube_running import cause_of_loss, run, sandbox_of
from .kube_server import KubeServer, terminated

__all__ = ("own_places",)

OUT_OF_MEMORY = (137, ExitReason.OUT_OF_MEMORY)


@pytest.fixture(autouse=True)
def owner(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be an owner already, and have commands that run until something ends them."""
    inventory.owner()
    monkeypatch.setattr(Peer, "endless", True)
    monkeypatch.setattr(Peer, "started", 0)


def test_commands_that_the_node_ends_with_all_the_rest_ran_out_of_memory(tmp_path: Path) -> None:
    """New nodes kill all of a container together; catches results that are lost with it."""

    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox, AsyncExitStack() as stack:
            running = [sandbox.stream("sleep", ["60"], timeout=60) for _ in range(2)]
            runs = [await stack.enter_async_context(one) for one in running]
            for run in runs:
                assert (await anext(aiter(run))).data == b"hi\n"
            server.change(terminated(137, "OOMKilled"))
            for run in runs:
                result = await run.finish()
                assert (result.exit_code, result.exit_reason) == OUT_OF_MEMORY
                assert (result.stdout, result.stdout_bytes) == (b"hi\n", 3)
            assert await cause_of_loss(sandbox) == "out of memory"

    run(tmp_path, body)


@pytest.mark.parametrize("first", ["stream", "status"])
def test_a_one_shot_that_the_node_ends_ran_out_of_memory(tmp_path: Path, first: str) -> None:
    """Whatever is heard first: that the stream has ended, or why."""

    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async def end_it() -> None:
            while not Peer.started:
                await anyio.sleep(0.01)
            if first == "stream":
                await server.break_streams()
            server.change(terminated(137, "OOMKilled"))

        async with backend, anyio.create_task_group() as group:
            group.start_soon(end_it)
            result = await backend.execute("sleep", ["60"], timeout=60)
        assert (result.exit_code, result.exit_reason) == OUT_OF_MEMORY
        assert server.names("jobs") == []

    run(tmp_path, body)


@pytest.mark.parametrize(("code", "reason"), [(1, "OOMKilled"), (137, "Error")])
def test_other_ends_of_a_pod_are_no_end_of_a_command(
    tmp_path: Path, code: int, reason: str
) -> None:
    """Catches an out of memory that is guessed from a number, or from what a child died of."""

    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            async with sandbox.stream("sleep", ["60"], timeout=60) as running:
                assert (await anext(aiter(running))).data == b"hi\n"
                server.change(terminated(code, reason))
                with pytest.raises(SandboxLostError) as caught:
                    await running.finish()
            assert caught.value.cause == "ended"

    run(tmp_path, body)
