"""Backends on the tests' cluster, each in a namespace of its own, and a look at what is there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.config import KubernetesConfig
from scripts.services.steps import until

from .asked import Asked, RefusedError
from .conftest import MINIMAL, NOT_FOUND, PATIENCE, Cluster

GROUPS = {
    "jobs": "/apis/batch/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "pods": "/api/v1",
    "resourcequotas": "/api/v1",
}


def call(cluster: Cluster, method: str, path: str, body: object = None, **options: str) -> Any:
    """Ask the API server from a thread, so that it can be done beside an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(cluster.asked.call, method, path, body, **options).result(PATIENCE)


def config(cluster: Cluster, namespace: str, **settings: Any) -> KubernetesConfig:
    """Return settings that cost the small cluster little."""
    given: dict[str, Any] = {
        "image": MINIMAL,
        "namespace": namespace,
        "kubeconfig": Path(cluster.kubeconfig),
        "pull_policy": "Never",
        "sized_volumes": True,  # the tests' cluster is old, and has been told to
        "cpu_request": 0.01,
        "memory_bytes": 64 << 20,
        "start_timeout": PATIENCE,
        "schedule_timeout": PATIENCE,  # for a node that a busy machine takes for lost
    }
    return KubernetesConfig(**{**given, **settings})


def pods(cluster: Cluster, namespace: str, **settings: Any) -> KubernetesBackend:
    """Return a backend, not yet opened."""
    return KubernetesBackend(config(cluster, namespace, **settings))


def names(cluster: Cluster, namespace: str, kind: str) -> list[str]:
    """Return the names of a namespace's `jobs`, `pods` or `leases`, whatever state they are in."""
    group = GROUPS.get(kind, "/api/v1")
    items = cluster.asked.get(f"{group}/namespaces/{namespace}/{kind}")["items"]
    return sorted(item["metadata"]["name"] for item in items)


def nothing_left(cluster: Cluster, namespace: str) -> None:
    """Fail if a Job is left, or after a while a pod that is not on its way out."""
    assert names(cluster, namespace, "jobs") == []
    until(lambda: not _staying(cluster, namespace), seconds=PATIENCE, what="no pod that stays")


def _staying(cluster: Cluster, namespace: str) -> list[str]:
    pods = call(cluster, "GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    found = [pod["metadata"] for pod in pods]
    return [metadata["name"] for metadata in found if "deletionTimestamp" not in metadata]


def delete(cluster: Cluster, path: str) -> None:
    """Delete something behind everybody's back."""
    try:
        call(cluster, "DELETE", path, propagationPolicy="Background")
    except RefusedError as error:
        assert error.code == NOT_FOUND, error  # noqa: PT017  # somebody was quicker


def until_refused(asked: Asked, path: str, body: object, why: str) -> None:
    """Wait until the server would not make an object.

    It takes up a quota or a limit a moment after that is made.
    """

    def refused() -> bool:
        try:
            asked.call("POST", path, body, dryRun="All")
        except RefusedError as error:
            return why in str(error)
        return False

    until(refused, seconds=PATIENCE, what=f"a request that is refused: {why}")


def change_lease(cluster: Cluster, namespace: str, name: str, **spec: Any) -> None:
    """Change what an owner's lease says."""
    path = f"{GROUPS['leases']}/namespaces/{namespace}/leases/{name}"
    call(cluster, "PATCH", path, {"spec": spec}, kind="application/merge-patch+json")


def run_out(cluster: Cluster, namespace: str, name: str) -> None:
    """Let a lease be one that was renewed for the last time long ago."""
    change_lease(cluster, namespace, name, renewTime="2020-01-01T00:00:00.000000Z")
