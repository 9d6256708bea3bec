"""The cluster that these tests run on: it is there, or they fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from secrets import token_hex

import pytest

from scripts.services.kubernetes import VARIABLE, Kubernetes

from .asked import Asked, RefusedError

MINIMAL, PYTHON = "ringfence-test:minimal", "ringfence-test:python"


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
    yield name
    with contextlib.suppress(RefusedError):  # the test has removed it itself
        cluster.asked.call("DELETE", f"/api/v1/namespaces/{name}")
