"""Sessions and the command line on pods, and an API server that goes away and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from ringfence import SessionManager, StreamBrokenError, inventory, shell
from ringfence.leases import MemoryLeases
from scripts.services.kubernetes import Kubernetes

from ..own_places import own_places
from .conftest import MINIMAL, PATIENCE, Cluster
from .pods import call, names, nothing_left, pods

__all__ = ("own_places",)

pytestmark = pytest.mark.timeout(3 * PATIENCE)


@pytest.fixture(autouse=True)
def owner(own_places: object) -> None:
    """Be an owner already: its file stays open from the first time to the end of this process."""
    inventory.owner()


def test_an_execution_has_one_pod_from_first_to_last(cluster: Cluster, namespace: str) -> None:
    async def main() -> None:
        store = MemoryLeases()
        async with (
            pods(cluster, namespace) as backend,
            SessionManager(backend, leases=store) as manager,
        ):
            await manager.exec("run-1", "echo kept > f", tenant_id="acme")
            result = await manager.exec("run-1", "cat f", tenant_id="acme")
            assert result.stdout == b"kept\n"
            path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
            jobs = call(cluster, "GET", path)["items"]
            labels = [job["metadata"]["labels"] for job in jobs]
            assert [found["ringfence.execution_id"] for found in labels] == ["run-1"]
            assert labels[0]["ringfence.tenant_id"] == "acme"
            await manager.destroy_execution("run-1", tenant_id="acme")
            assert names(cluster, namespace, "jobs") == []

    anyio.run(main)
    nothing_left(cluster, namespace)


def test_the_command_line_runs_a_command_in_a_pod(
    cluster: Cluster, namespace: str, own_places: Path
) -> None:
    command = ["run", "--backend", "kubernetes", "--image", MINIMAL, "--cpus", "0.2", "cat"]
    done = subprocess.run(
        [sys.executable, "-m", "ringfence", *command],
        input=b"in and out",
        capture_output=True,
        timeout=PATIENCE,
        env={
            **os.environ,
            "KUBECONFIG": cluster.kubeconfig,
            "RINGFENCE_NAMESPACE": namespace,
            "RINGFENCE_PULL_POLICY": "Never",
        },
    )
    assert (done.returncode, done.stdout) == (0, b"in and out"), done.stderr
    nothing_left(cluster, namespace)


def test_a_sandbox_outlives_a_restart_of_the_api_server(
    cluster: Cluster, namespace: str, own_parts: Kubernetes
) -> None:
    """Catches a sandbox that is taken for lost, or an open backend that does not come back."""

    async def main() -> None:
        async with pods(cluster, namespace) as backend, await backend.create() as sandbox:
            await sandbox.write_file("f", "kept")
            async with sandbox.stream(shell("echo on; sleep 300"), timeout=300) as run:
                assert (await anext(aiter(run))).data == b"on\n"
                await anyio.to_thread.run_sync(own_parts.api.stop)
                with pytest.raises(StreamBrokenError):
                    await run.finish()
            await anyio.to_thread.run_sync(own_parts.start_api)
            assert await sandbox.read_file("f") == b"kept"
            assert (await sandbox.exec("echo", ["again"])).stdout == b"again\n"
            assert (await backend.execute("true")).ok

    anyio.run(main)
    nothing_left(cluster, namespace)
