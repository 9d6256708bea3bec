"""The cluster that these tests run on: it is there, or they fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from secrets import token_hex

import pytest

from scripts.services.kubernetes import VARIABLE, Kubernetes
from scripts.services.steps import until

from .asked import Asked, RefusedError

MINIMAL, PYTHON = "ringfence-test:minimal", "ringfence-test:python"
NOT_FOUND = 404
PATIENCE = 120.0
"""Seconds for what a busy machine comes to late; nothing that goes well takes so long."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs pods and has the test images.

    Attributes:
        kubeconfig: The file that leads to it, as its administrator.
        service: What has brought it up, by which its parts can be stopped and started.
    """

    kubeconfig: str
    service: Kubernetes

    @property
    def asked(self) -> Asked:
        """Its API server."""
        return Asked(self.kubeconfig)


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The one that is given, or was brought up for the tests."""
    service = Kubernetes()
    if not service.is_ready():
        pytest.fail("there is no cluster: python -m scripts.services up kubernetes", pytrace=False)
    return Cluster(service.env()[VARIABLE], service)


@pytest.fixture
def own_parts(cluster: Cluster) -> Kubernetes:
    """The cluster's parts, for tests that stop one: not of a cluster that is somebody else's."""
    if cluster.service.given():
        pytest.skip("a cluster that is given is not broken")
    return cluster.service


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test, which is removed with all that is in it."""
    name = f"test-{token_hex(4)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.asked.call("POST", "/api/v1/namespaces", body)
    until(lambda: takes_pods(cluster, name), seconds=PATIENCE, what="a namespace that takes pods")
    yield name
    with contextlib.suppress(RefusedError):  # the test has removed it itself
        cluster.asked.call("DELETE", f"/api/v1/namespaces/{name}")


def takes_pods(cluster: Cluster, namespace: str) -> bool:
    """Whether a pod there would find a node, and the account that it runs as.

    The account is made a moment after the namespace, and a node that could not be heard for a
    while, because its API server was stopped or the machine is busy, counts as lost until it is.
    """
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    try:
        cluster.asked.get(path)
    except RefusedError as error:
        if error.code != NOT_FOUND:
            raise
        return False
    nodes = cluster.asked.get("/api/v1/nodes")["items"]
    return any(not node["spec"].get("taints") for node in nodes)
