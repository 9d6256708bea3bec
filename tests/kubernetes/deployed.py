"""What is in `deploy/kubernetes`, applied to a cluster under names of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import pytest
import yaml  # type: ignore[import-untyped]  # of the cluster's client

from scripts.services.steps import until

from .asked import Asked, RefusedError
from .conftest import MINIMAL, PATIENCE, Cluster

BASE = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"
WORKERS, SANDBOXES = "ringfence", "ringfence-sandboxes"
WORKER, SERVER = "ringfence-worker", "ringfence-mcp"
"""Deployments, and the service accounts that they run as."""

Manifest = dict[str, Any]

PLURALS = {
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "LimitRange": "limitranges",
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
    "ResourceQuota": "resourcequotas",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}


@dataclass(frozen=True)
class Deployed:
    """Where it is now.

    Attributes:
        asked: The API server, as its administrator.
        workers: The namespace of the workers.
        sandboxes: The namespace of the sandboxes.
    """

    asked: Asked
    workers: str
    sandboxes: str

    def account(self, name: str) -> Asked:
        """Return the API server as a service account asks it, with the token of its pods."""
        path = f"/api/v1/namespaces/{self.workers}/serviceaccounts/{name}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        token = self.asked.call("POST", path, body)["status"]["token"]
        return Asked(self.asked.kubeconfig, token)

    def named(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the namespaces of this deployment."""
        names = {WORKERS: self.workers, SANDBOXES: self.sandboxes}
        found = cast("Manifest", json.loads(json.dumps(manifest)))
        metadata = found["metadata"]
        where = "name" if found["kind"] == "Namespace" else "namespace"
        metadata[where] = names[metadata[where]]
        for subject in found.get("subjects", ()):
            subject["namespace"] = names[subject["namespace"]]
        return found


def manifests() -> list[Manifest]:
    """Return what `kustomization.yaml` lists, in its order."""
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text("utf-8"))["resources"]
    return [one for name in listed for one in read(name)]


def read(name: str) -> list[Manifest]:
    """Return the manifests in one file."""
    return list(yaml.safe_load_all((BASE / name).read_text("utf-8")))


def path_of(manifest: Manifest) -> str:
    """Return where the API server has an object."""
    version, metadata = manifest["apiVersion"], manifest["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    inside = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{inside}/{PLURALS[manifest['kind']]}/{metadata['name']}"


def until_available(asked: Asked, path: str) -> None:
    """Wait until all pods of a Deployment, as it is now, are ready."""

    def holds() -> bool:
        found = asked.get(path)
        status, wanted = found["status"], found["spec"]["replicas"]
        is_seen = status.get("observedGeneration") == found["metadata"]["generation"]
        counts = [status.get(kind, 0) for kind in ("updatedReplicas", "availableReplicas")]
        return is_seen and counts == [wanted, wanted]

    until(holds, seconds=PATIENCE, what=f"{path} to be available")


@pytest.fixture(scope="module")
def deployed(cluster: Cluster) -> Iterator[Deployed]:
    """All of it, with a shell in the place of the workers' program, and no server yet."""
    mark = token_hex(3)
    found = Deployed(cluster.asked, f"test-{mark}-workers", f"test-{mark}-sandboxes")
    try:
        for manifest in manifests():
            named = found.named(manifest)
            if named["kind"] == "Deployment":
                stand_in(named)
            found.asked.apply(path_of(named), named)
        yield found
    finally:
        for name in (found.workers, found.sandboxes):
            with contextlib.suppress(RefusedError):  # which was never made
                found.asked.call("DELETE", f"/api/v1/namespaces/{name}")


def stand_in(deployment: Manifest) -> None:
    """Have a shell where the program that uses ringfence would be: it checks what it is given."""
    if deployment["metadata"]["name"] == SERVER:
        deployment["spec"]["replicas"] = 0
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = MINIMAL
    container["imagePullPolicy"] = "Never"
    container["command"] = ["sh", "-ec", PROGRAM]


PROGRAM = """
test "$SANDBOX_NAMESPACE" = ringfence-sandboxes
test -n "$SANDBOX_IMAGE"
test -s /var/run/secrets/kubernetes.io/serviceaccount/token
touch "$TMPDIR/x" "$HOME/y"
if touch /z; then exit 1; fi
test "$(id -u)" = 65534
exec sleep 3600
"""
