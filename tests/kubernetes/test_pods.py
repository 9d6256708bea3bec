"""Sandboxes that are pods of a real cluster: what they do, how they fail, and what is left."""

from __future__ import annotations

import subprocess
import sys
import textwrap
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

from ..own_places import own_places
from .conftest import PYTHON, Cluster
from .pods import GROUPS, call, config, delete, names, nothing_left, pods

__all__ = ("own_places",)

MERGE = "application/merge-patch+json"

pytestmark = pytest.mark.timeout(120)


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


FAILURES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"image": "nobody/has:this"}, ImageError, "ErrImageNeverPull"),
    ({"image": "nowhere.invalid/a:b", "pull_policy": "Always"}, ImageError, "ErrImagePull"),
    ({"image": "UPPER/case:x"}, ImageError, "InvalidImageName"),
    ({"cpus": 64.0, "cpu_request": 64.0}, CreateError, "Insufficient cpu"),
    ({"node_selector": {"no": "node"}}, CreateError, "Unschedulable"),
    ({"service_account": "nobody"}, CreateError, "FailedCreate.*nobody"),
    ({"priority_class": "none"}, CreateError, "PriorityClass"),
    ({"runtime_class": "none"}, CreateError, "none"),
]


@pytest.mark.parametrize(("settings", "kind", "said"), FAILURES)
def test_a_pod_that_can_t_run_is_an_error_in_seconds(
    cluster: Cluster, namespace: str, settings: dict[str, Any], kind: type[Exception], said: str
) -> None:
    async def main() -> None:
        async with pods(cluster, namespace, schedule_timeout=1.0, **settings) as backend:
            with anyio.fail_after(20), pytest.raises(kind, match=said):
                await backend.create()
            assert names(cluster, namespace, "jobs") == []

    anyio.run(main)


def test_a_quota_that_is_used_up_is_an_error_in_seconds(cluster: Cluster, namespace: str) -> None:
    body = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "0"}}}
    call(cluster, "POST", f"/api/v1/namespaces/{namespace}/resourcequotas", body)

    async def main() -> None:
        async with pods(cluster, namespace) as backend:
            with anyio.fail_after(20), pytest.raises(CreateError, match="exceeded quota: few"):
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
            with anyio.fail_after(20), pytest.raises(SandboxLostError) as caught:
                await sandbox.exec("sleep", ["60"], timeout=60)
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


WORKER = """
    import anyio, os, sys
    from ringfence.config import KubernetesConfig
    from ringfence.registry import open_backend

    async def main():
        config = KubernetesConfig.parse(sys.argv[1])
        async with open_backend(config) as backend:
            sandbox = await backend.create()
            await sandbox.exec("touch", ["x"])
            print(sandbox.id, flush=True)
            os.kill(os.getpid(), 9)

    anyio.run(main)
"""


def killed_worker(cluster: Cluster, namespace: str, state: str, **settings: Any) -> str:
    """Let another process make a sandbox and be killed; return the sandbox's id."""
    given = config(cluster, namespace, **settings).model_dump_json(exclude_defaults=True)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORKER), given],
        capture_output=True,
        text=True,
        timeout=60,
        env={"RINGFENCE_STATE_DIR": state, "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout, done.stderr
    return done.stdout.strip()


def test_another_worker_s_sandboxes_are_removed_when_its_lease_has_run_out(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = str(tmp_path_factory.mktemp("other"))
    left = killed_worker(cluster, namespace, state, reconnect_timeout=600.0)

    async def main() -> None:
        async with pods(cluster, namespace) as backend, await backend.create() as sandbox:
            assert await backend.reap() == 0  # as far as anybody can tell, it lives
            leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
            mine = backend._lease
            assert mine is not None
            theirs = [name for name in names_of_leases() if name != mine.name]
            body = {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}
            for name in theirs:
                call(cluster, "PATCH", f"{leases}/{name}", body, kind=MERGE)
            assert await backend.reap() == 1
            assert names_of_jobs() == [sandbox.id] != [left]
            assert (await sandbox.exec("true")).ok

    def names_of_leases() -> list[str]:
        return names(cluster, namespace, "leases")

    def names_of_jobs() -> list[str]:
        return names(cluster, namespace, "jobs")

    anyio.run(main)


def test_a_pod_whose_worker_was_killed_ends_by_itself(
    cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = str(tmp_path_factory.mktemp("other"))
    left = killed_worker(cluster, namespace, state, reconnect_timeout=0.5, ttl=1)

    async def main() -> None:
        with anyio.fail_after(60):
            while left in names(cluster, namespace, "jobs"):
                await anyio.sleep(0.2)

    anyio.run(main)
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
            slow = await backend.execute(shell("echo begun; sleep 60"), timeout=1)
            assert slow.timed_out
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
            sandbox.stream(shell("echo first; sleep 60"), timeout=60) as run,
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
