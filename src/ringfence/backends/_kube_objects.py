"""What has to be in a namespace beside the sandboxes, what they are found by, and what it takes.

As in `_kube_body`, these are pure functions of values.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

from ..config import KubernetesConfig
from ._kube_body import LABEL

__all__ = (
    "POLICY",
    "Access",
    "access_review",
    "configmap_body",
    "configmap_name",
    "deny_policy_body",
    "lease_body",
    "needed_access",
    "own_labels",
)

POLICY = "ringfence-deny-all"
"""The name of the policy that denies all traffic."""


def own_labels(
    sandbox_id: str, store: str, owner: str, now: float, deadline: float
) -> dict[str, str]:
    """Return the labels by which what is ours is found again, and its owner.

    Args:
        sandbox_id: The sandbox's.
        store: The inventory that knows it.
        owner: The name of its owner's lease.
        now: By the server's clock, in seconds since the epoch.
        deadline: Seconds from now until it has reached its age.
    """
    return {
        f"{LABEL}sandbox": sandbox_id,
        f"{LABEL}store": store,
        f"{LABEL}owner": owner,
        f"{LABEL}created": str(int(now)),
        f"{LABEL}expires": str(int(now + deadline)),
    }


def configmap_name(binary: bytes) -> str:
    """Return the name of the ConfigMap for this binary."""
    return f"ringfence-warden-{hashlib.sha256(binary).hexdigest()[:16]}"


def configmap_body(binary: bytes) -> dict[str, Any]:
    """Return the request that brings the warden in, for good: nobody can change it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": configmap_name(binary),
            "labels": {f"{LABEL}warden": hashlib.sha256(binary).hexdigest()[:16]},
        },
        "immutable": True,
        "binaryData": {"warden": base64.b64encode(binary).decode("ascii")},
    }


def deny_policy_body() -> dict[str, Any]:
    """Return the policy that lets nothing into our pods and nothing out of them."""
    selector = {"matchExpressions": [{"key": f"{LABEL}sandbox", "operator": "Exists"}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY},
        "spec": {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]},
    }


def lease_body(
    name: str, store: str, slot: int, holder: str, seconds: int, now: str
) -> dict[str, Any]:
    """Return the lease of an owner, which says until when it is taken to live.

    Args:
        name: Its name.
        store: The inventory of the owner.
        slot: Its slot there.
        holder: Who that is, for people.
        seconds: How long it lives without being renewed.
        now: By the server's clock, as the API writes it.
    """
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "labels": {
                f"{LABEL}owner": name,
                f"{LABEL}store": store,
                f"{LABEL}slot": str(slot),
            },
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "acquireTime": now,
            "renewTime": now,
        },
    }


@dataclass(frozen=True)
class Access:
    """One thing that has to be permitted.

    Attributes:
        verb: What is done.
        group: The API group; empty for the core.
        resource: To what; `pods/exec` for a part of it.
    """

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


def needed_access(config: KubernetesConfig) -> tuple[Access, ...]:
    """Return all that the backend does in its namespace."""
    rows: list[tuple[str, str, str]] = [
        ("batch", "jobs", "create delete get list"),
        ("", "pods", "get list watch"),
        ("", "events", "list watch"),
        ("coordination.k8s.io", "leases", "create delete list patch"),
    ]
    if config.transport == "warden":
        rows += [("", "pods/exec", "create get"), ("", "configmaps", "create get")]
    else:
        rows += [("", "pods/log", "get")]
    if config.network_policy == "deny":
        rows += [("networking.k8s.io", "networkpolicies", "create get")]
    return tuple(Access(verb, group, name) for group, name, verbs in rows for verb in verbs.split())


def access_review(access: Access, namespace: str) -> dict[str, Any]:
    """Return the question whether we may do something."""
    resource, _, part = access.resource.partition("/")
    attributes = {
        "namespace": namespace,
        "verb": access.verb,
        "group": access.group,
        "resource": resource,
        "subresource": part,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
