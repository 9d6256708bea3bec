"""How a sandbox in a pod ends, what is left of it, and what can't be had."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from ringfence import inventory
from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.errors import (
    CommandError,
    LimitError,
    SandboxLostError,
    StreamBrokenError,
    UnsupportedError,
)
from ringfence.models import Command, Limits, Network, SandboxSpec

from ..own_places import own_places
from .kube_peer import Peer
from .kube_running import cause_of_loss, run, sandbox_of
from .kube_server import RUNNING, KubeServer, terminated

__all__ = ("own_places",)


@pytest.fixture(autouse=True)
def owner(own_places: Path) -> None:
    """Be an owner already: its file stays open from the first time to the end of this process."""
    inventory.owner()


ENDS: list[tuple[dict[str, Any], str]] = [
    ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "evicted"),
    ({"phase": "Failed", "reason": "DeadlineExceeded"}, "maximum age"),
    ({"phase": "Failed", "reason": "NodeLost"}, "node lost"),
    (terminated(137, "OOMKilled"), "out of memory"),
    (terminated(0, "Completed"), "ended"),
]


@pytest.mark.parametrize(("status", "cause"), ENDS)
def test_a_sandbox_that_died_says_of_what(
    tmp_path: Path, status: dict[str, Any], cause: str
) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            server.change(status)
            assert await cause_of_loss(sandbox) == cause

    run(tmp_path, body)


def test_a_pod_in_the_place_of_ours_is_never_used(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            server.replace_pod()
            assert await cause_of_loss(sandbox) == "replaced"
            assert len(server.spoken) == 1

    run(tmp_path, body)


def test_a_pod_that_is_deleted_is_lost(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            server.remove_pod()
            assert await cause_of_loss(sandbox) == "removed"

    run(tmp_path, body)


def test_a_death_that_nobody_watched_is_found_by_the_next_list(tmp_path: Path) -> None:
    """Catches a watch that goes on behind a gap as if nothing had happened in it."""

    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            server.gone = 4
            server.end_watches()
            del server.objects[next(path for path in server.objects if "/pods/" in path)]
            assert await cause_of_loss(sandbox) == "removed"

    run(tmp_path, body)


def test_a_watch_that_is_too_old_is_begun_anew(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.gone = 4
        async with backend:
            for _ in range(3):
                await backend.execute("true")
                server.end_watches()

    run(tmp_path, body)


def test_a_stream_that_breaks_is_taken_up_again(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            await server.break_streams()
            with pytest.raises(StreamBrokenError):
                await sandbox.exec("true")
            assert (await sandbox.exec("true")).ok
            assert len(server.spoken) == 2

    run(tmp_path, body)


def test_one_that_is_closed_when_its_stream_is_broken_is_told_to_end(tmp_path: Path) -> None:
    """Catches a sandbox whose commands run on until the cluster gets round to ending its pod."""

    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            sandbox = await backend.create()
            await server.break_streams()
            with pytest.raises(StreamBrokenError):
                await sandbox.exec("true")
            with anyio.fail_after(3):
                await sandbox.aclose()
            assert server.told_to_end == 1
            assert server.names("jobs") == []

    run(tmp_path, body)


def test_a_stranger_s_warden_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            monkeypatch.setattr(Peer, "instance", bytes(16))
            await server.break_streams()
            with pytest.raises(StreamBrokenError):
                await sandbox.exec("true")
            with pytest.raises(SandboxLostError, match="another warden"):
                await sandbox.exec("true")

    run(tmp_path, body)


# One pod for each command, whose log is the output.


def test_a_log_that_breaks_off_is_gone_on_with(tmp_path: Path) -> None:
    """Catches output that is lost or doubled where the API server was restarted."""

    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.logs = [b"one\ntw", b"", b"one\ntwo\nthree\n"]
        async with backend:
            result = await backend.execute("a")
        assert (result.stdout, result.exit_code) == (b"one\ntwo\nthree\n", 3)
        assert server.names("jobs") == []

    run(tmp_path, body, transport="logs")


def test_what_a_log_can_t_give_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend, await backend.create() as sandbox:
            with pytest.raises(UnsupportedError, match="stdin"):
                await sandbox.exec(Command(["cat"], stdin="x"))
            with pytest.raises(UnsupportedError, match="file operations"):
                await sandbox.write_file("f", "x")
            with pytest.raises(CommandError, match="not UTF-8"):
                await sandbox.exec(Command(["echo", b"\xff"]))
            assert server.names("jobs") == []

    run(tmp_path, body, transport="logs")


def test_a_pod_without_a_warden_runs_one_command(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.logs = [b"out\n"]
        async with backend, await backend.create() as sandbox:
            assert (await sandbox.exec("a")).stdout == b"out\n"
            with pytest.raises(UnsupportedError, match="one command"):
                await sandbox.exec("b")

    run(tmp_path, body, transport="logs")


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15])
def test_a_creation_that_is_cancelled_leaves_nothing(tmp_path: Path, delay: float) -> None:
    """Catches a Job that the server made for a request whose sender did not wait for it."""

    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.pause = 0.2
        async with backend:
            with anyio.move_on_after(delay):
                await backend.create()
            with anyio.fail_after(5):
                while server.names("jobs"):
                    await anyio.sleep(0.01)
            await asyncio.sleep(0.3)
            assert server.names("jobs") == []

    run(tmp_path, body)


def test_what_was_not_closed_is_removed_with_the_backend(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            sandbox = await backend.create()
        assert server.names("jobs") == []
        await sandbox.aclose()

    run(tmp_path, body)


def test_reaping_spares_live_owners_and_strangers(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            jobs = "/apis/batch/v1/namespaces/default/jobs"
            mine = server.objects[f"{jobs}/{sandbox.id}"]
            labels = mine["metadata"]["labels"]
            lease = server.names("leases")[0]
            for name, own in {
                "rf-dead-here": {"ringfence.sandbox": "rf-dead-here"},
                "rf-dead-there": {"ringfence.store": "s", "ringfence.owner": "nobody"},
                "rf-old-there": {"ringfence.store": "s", "ringfence.expires": "1"},
                "rf-live-there": {"ringfence.store": "s", "ringfence.owner": lease},
            }.items():
                metadata = {"name": name, "labels": {**labels, **own}}
                server.objects[f"{jobs}/{name}"] = {"metadata": metadata}
            assert await backend.reap() == 3
            assert sorted(server.names("jobs")) == sorted([sandbox.id, "rf-live-there"])

    run(tmp_path, body)


def test_what_a_pod_can_t_be_held_to_is_refused(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            for limits in (Limits(pids=10), Limits(workspace_files=10), Limits(memory_bytes=1)):
                with pytest.raises(LimitError):
                    await backend.create(SandboxSpec(limits=limits))
            with pytest.raises(UnsupportedError):
                await backend.create(SandboxSpec(network=Network("cluster")))
            assert server.names("jobs") == []

    run(tmp_path, body)


def test_the_status_of_a_pod_that_runs_is_no_failure() -> None:
    from ringfence.backends._kube_failures import pod_end, pod_failure

    assert pod_failure({"status": RUNNING}) is None
    assert pod_end({"status": RUNNING}) is None
    assert pod_failure({}) is None
