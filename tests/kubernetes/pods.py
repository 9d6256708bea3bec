"""Backends on the tests' cluster, each in a namespace of its own, and a look at what is there."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.config import KubernetesConfig

from .asked import RefusedError
from .conftest import MINIMAL, Cluster

SECONDS = 20.0


GROUPS = {
    "jobs": "/apis/batch/v1",
    "leases": "/apis/coordination.k8s.io/v1",
    "pods": "/api/v1",
    "resourcequotas": "/api/v1",
}


def call(cluster: Cluster, method: str, path: str, body: object = None, **options: str) -> Any:
    """Ask the API server from a thread, so that it can be done beside an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(cluster.asked.call, method, path, body, **options).result(60)


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
        "schedule_timeout": 30.0,  # for a node that was just taken for lost by another test
    }
    return KubernetesConfig(**{**given, **settings})


def pods(cluster: Cluster, namespace: str, **settings: Any) -> KubernetesBackend:
    """Return a backend, not yet opened."""
    return KubernetesBackend(config(cluster, namespace, **settings))


def names(cluster: Cluster, namespace: str, kind: str) -> list[str]:
    """Return the names of a namespace's `jobs`, `pods` or `leases`, whatever state they are in."""
    group = {"jobs": "/apis/batch/v1", "leases": "/apis/coordination.k8s.io/v1"}.get(
        kind, "/api/v1"
    )
    items = cluster.asked.get(f"{group}/namespaces/{namespace}/{kind}")["items"]
    return sorted(item["metadata"]["name"] for item in items)


def nothing_left(cluster: Cluster, namespace: str) -> None:
    """Fail if a Job is left, or after a while a pod that is not on its way out."""
    assert names(cluster, namespace, "jobs") == []
    deadline = time.monotonic() + SECONDS
    while left := _staying(cluster, namespace):
        assert time.monotonic() < deadline, f"left in the cluster: {left}"
        time.sleep(0.2)


def _staying(cluster: Cluster, namespace: str) -> list[str]:
    pods = call(cluster, "GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    found = [pod["metadata"] for pod in pods]
    return [metadata["name"] for metadata in found if "deletionTimestamp" not in metadata]


def delete(cluster: Cluster, path: str) -> None:
    """Delete something behind everybody's back."""
    try:
        call(cluster, "DELETE", path, propagationPolicy="Background")
    except RefusedError as error:
        assert error.code == 404, error  # noqa: PT017  # somebody was quicker
