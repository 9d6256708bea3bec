"""Sandboxes that are pods of a real cluster: what they do, how they fail, and what is left."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ringfence import (
    CreateError,
    ImageError,
    Limits,
    Pool,
    PoolConfig,
    SandboxLostError,
    SandboxSpec,
    inventory,
    shell,
)
from ringfence.models import ExitReason
from scripts.services.steps import until

from ..own_places import own_places
from .conftest import PATIENCE, PYTHON, Cluster
from .pods import GROUPS, call, delete, names, nothing_left, pods, run_out, until_refused
from .workers import killed_afterwards

__all__ = ("own_places",)

pytestmark = pytest.mark.timeout(3 * PATIENCE)


@pytest.fixture(autouse=True)
def owner(own_places: object) -> None:
    """Be an owner already: its file stays open from the first time to the end of this process."""
    inventory.owner()


def test_a_live_sandbox_keeps_its_streams_apart_and_its_files(
    cluster: Cluster, namespace: str
) -> None:
    async def main() -> None:
        async with pods(cluster, namespace) as backend:
            async with await backend.create() as sandbox:
                result = await sandbox.exec(shell("echo out; echo err >&2; exit 7"))
                assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
                assert result.exit_code == 7
                await sandbox.write_file("a/b", b"\0\xff" * 100_000)
                assert await sandbox.read_file("/workspace/a/b") == b"\0\xff" * 100_000
                stopped = await sandbox.exec("sleep", ["60"], timeout=0.3)
                assert stopped.exit_reason is ExitReason.TIMED_OUT
                assert (await sandbox.exec("id", ["-u"])).stdout == b"65534\n"
            assert names(cluster, namespace, "jobs") == []
        assert names(cluster, namespace, "leases") == []

    anyio.run(main)
    nothing_left(cluster, namespace)


def test_running_out_of_memory_is_a_result_that_says_so(cluster: Cluster, namespace: str) -> None:
    async def main() -> None:
        async with pods(cluster, namespace, image=PYTHON) as backend:
            result = await backend.execute("python3", ["-c", "x = bytearray(200 << 20)"])
            assert result.out_of_memory
            assert result.exit_code == 137

    anyio.run(main)


HASTY = {"schedule_timeout": 1.0}  # of those that fit on no node, however long they wait

FAILURES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"image": "nobody/has:this"}, ImageError, "ErrImageNeverPull"),
    ({"image": "127.0.0.1:1/a:b", "pull_policy": "Always"}, ImageError, "ErrImagePull"),
    ({"image": "UPPER/case:x"}, ImageError, "InvalidImageName"),
    ({**HASTY, "cpus": 4096.0, "cpu_request": 4096.0}, CreateError, "Insufficient cpu"),
    ({**HASTY, "node_selector": {"no": "node"}}, CreateError, "Unschedulable"),
    ({"service_account": "nobody"}, CreateError, "FailedCreate.*nobody"),
    ({"priority_class": "none"}, CreateError, "PriorityClass"),
    ({"runtime_class": "none"}, CreateError, "none"),
]


@pytest.mark.parametrize(("settings", "kind", "said"), FAILURES)
def test_a_pod_that_can_t_run_is_an_error_that_says_why(
    cluster: Cluster, namespace: str, settings: dict[str, Any], kind: type[Exception], said: str
) -> None:
    """Catches one that is waited for until its time to start is over, which is another error."""

    async def main() -> None:
        async with pods(cluster, namespace, **settings) as backend:
            with pytest.raises(kind, match=said):
                await backend.create()
            assert names(cluster, namespace, "jobs") == []

    anyio.run(main)


def test_a_quota_that_is_used_up_is_an_error_that_says_so(cluster: Cluster, namespace: str) -> None:
    body = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    call(cluster, "POST", f"/api/v1/namespaces/{namespace}/resourcequotas", body)
    container = {"name": "main", "image": "any"}
    pod = {"metadata": {"name": "one"}, "spec": {"containers": [container]}}
    path = f"/api/v1/namespaces/{namespace}/pods"
    until_refused(cluster.asked, path, pod, "exceeded quota: few")

    async def main() -> None:
        async with pods(cluster, namespace) as backend:
            with pytest.raises(CreateError, match="exceeded quota: few"):
                await backend.create()

    anyio.run(main)


@pytest.mark.parametrize("kind", ["pods", "jobs"])
def test_one_that_is_deleted_behind_our_back_is_lost_and_not_replaced(
    cluster: Cluster, namespace: str, kind: str
) -> None:
    async def main() -> None:
        async with pods(cluster, namespace) as backend:
            sandbox = await backend.create()
            name = names(cluster, namespace, kind)[0]
            delete(cluster, f"{GROUPS[kind]}/namespaces/{namespace}/{kind}/{name}")
            with pytest.raises(SandboxLostError) as caught:
                await sandbox.exec("sleep", ["300"], timeout=300)
            assert caught.value.cause in ("removed", "replaced")
            await sandbox.aclose()

    anyio.run(main)
    nothing_left(cluster, namespace)


@pytest.mark.parametrize("delay", [0.01, 0.2, 0.6])
def test_a_cancelled_call_leaves_nothing(cluster: Cluster, namespace: str, delay: float) -> None:
    async def main() -> None:
        async with pods(cluster, namespace) as backend:
            with anyio.move_on_after(delay):
                await backend.execute("sleep", ["60"])
            assert (await backend.execute("true")).ok

    anyio.run(main)
    nothing_left(cluster, namespace)


def test_a_pool_hands_each_pod_out_once(cluster: Cluster, namespace: str) -> None:
    async def main() -> None:
        async with (
            pods(cluster, namespace) as backend,
            Pool(PoolConfig(factory=backend.create, max_size=2)) as pool,
        ):
            await pool.warmup(2)
            seen = set()
            for _ in range(3):
                async with pool.lease() as sandbox:
                    assert (await sandbox.exec("touch", ["left"])).ok
                    assert (await sandbox.list_files()).total == 1
                    seen.add(sandbox.id)
            assert len(seen) == 3

    anyio.run(main)
    nothing_left(cluster, namespace)


def test_another_worker_s_sandboxes_are_removed_when_its_lease_has_run_out(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = str(tmp_path_factory.mktemp("other"))
    with killed_afterwards(cluster, namespace, state, reconnect_timeout=600.0) as left:
        (theirs,) = names(cluster, namespace, "leases")

    async def main() -> None:
        async with pods(cluster, namespace) as backend, await backend.create() as sandbox:
            assert await backend.reap() == 0  # as far as anybody can tell, it lives
            assert names(cluster, namespace, "jobs") == sorted([sandbox.id, left])
            run_out(cluster, namespace, theirs)
            assert await backend.reap() == 1
            assert names(cluster, namespace, "jobs") == [sandbox.id]
            assert (await sandbox.exec("true")).ok

    anyio.run(main)


def test_a_pod_whose_worker_was_killed_ends_by_itself(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = str(tmp_path_factory.mktemp("other"))
    with killed_afterwards(cluster, namespace, state, reconnect_timeout=0.5, ttl=1) as left:
        assert names(cluster, namespace, "jobs") == [left]
    until(lambda: not names(cluster, namespace, "jobs"), seconds=PATIENCE, what="no Job")
    nothing_left(cluster, namespace)


# One pod for each command, whose log is the output.


def test_a_log_is_followed_and_its_end_is_told(cluster: Cluster, namespace: str) -> None:
    async def main() -> None:
        async with pods(cluster, namespace, transport="logs") as backend:
            result = await backend.execute(shell("echo a; echo b >&2; exit 7"))
            assert sorted(result.stdout.split()) == [b"a", b"b"]
            assert (result.stderr, result.exit_code) == (b"", 7)
            missing = await backend.execute("nobody-has-this")
            assert missing.exit_code == 127
            for seconds in (1, 10, 60):  # what it says comes late on a busy machine
                slow = await backend.execute(shell("echo begun; sleep 300"), timeout=seconds)
                assert slow.timed_out
                if slow.stdout:
                    break
            assert slow.stdout == b"begun\n"
            hungry = await backend.execute(shell("x=a; while :; do x=$x$x; done"))
            assert hungry.out_of_memory

    anyio.run(main)
    nothing_left(cluster, namespace)


def test_what_a_log_says_is_there_while_the_program_runs(cluster: Cluster, namespace: str) -> None:
    async def main() -> None:
        async with (
            pods(cluster, namespace, transport="logs") as backend,
            await backend.create() as sandbox,
            sandbox.stream(shell("echo first; sleep 300"), timeout=300) as run,
        ):
            async for chunk in run:
                assert chunk.data == b"first\n"
                break

    anyio.run(main)
    nothing_left(cluster, namespace)


def test_limits_of_a_spec_reach_the_pod(cluster: Cluster, namespace: str) -> None:
    async def main() -> None:
        async with pods(cluster, namespace) as backend:
            spec = SandboxSpec(
                limits=Limits(memory_bytes=48 << 20, cpus=0.25, tmp_bytes=8 << 20),
                labels={"tenant": "t-1", "note": "any text: at all"},
            )
            async with await backend.create(spec):
                path = f"/api/v1/namespaces/{namespace}/pods"
                pod = call(cluster, "GET", path)["items"][0]
        found = pod["spec"]["containers"][0]["resources"]["limits"]
        assert (found["memory"], found["cpu"]) == (str(48 << 20), "250m")
        assert pod["metadata"]["labels"]["tenant"] == "t-1"
        assert "any text: at all" in pod["metadata"]["annotations"]["ringfence.labels"]

    anyio.run(main)
