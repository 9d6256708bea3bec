"""What is in `deploy/kubernetes`, applied to a cluster under names of its own."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml  # type: ignore[import-untyped]  # of the cluster's client

from .asked import Asked

BASE = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"
WORKERS, SANDBOXES = "ringfence", "ringfence-sandboxes"
ACCOUNT = "ringfence-worker"

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

    def as_worker(self) -> Asked:
        """Return the API server as a worker asks it, with the token that its pod would have."""
        path = f"/api/v1/namespaces/{self.workers}/serviceaccounts/{ACCOUNT}/token"
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


def wait_for(asked: Asked, path: str, condition: str, *, seconds: float = 40) -> Any:
    """Return an object once a condition of its status is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = asked.get(path)
        conditions = found["status"].get("conditions", ())
        if any(one["type"] == condition and one["status"] == "True" for one in conditions):
            return found
        assert time.monotonic() < deadline, json.dumps(found["status"], indent=1)
        time.sleep(0.1)
