"""The manifests that ship: a real API server takes each, and workers may do what they have to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from ringfence import KubernetesConfig, open_backend
from ringfence.backends import _kube_objects

from .asked import Asked, RefusedError
from .conftest import MINIMAL, PATIENCE
from .deployed import (
    BASE,
    SERVER,
    WORKER,
    Deployed,
    Manifest,
    deployed,
    manifests,
    path_of,
    read,
    until_available,
)
from .pods import until_refused

__all__ = ("deployed",)

pytestmark = pytest.mark.timeout(3 * PATIENCE)

NEEDED = _kube_objects.needed_access(KubernetesConfig(image="any"))
EVERYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}


@pytest.fixture(scope="module", params=[WORKER, SERVER])
def worker(deployed: Deployed, request: pytest.FixtureRequest) -> Asked:
    """Whoever makes sandboxes."""
    return deployed.account(request.param)


def test_all_that_is_there_is_listed() -> None:
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    listed = sum(len(read(name)) for name in files)
    assert len(manifests()) == listed > 10


@pytest.mark.parametrize(
    "manifest", manifests(), ids=lambda one: path_of(one).rpartition("/v1/")[2]
)
def test_the_api_server_would_take_it_again(deployed: Deployed, manifest: Manifest) -> None:
    """Applied by the server, which refuses a field that it does not know."""
    named = deployed.named(manifest)
    answered = deployed.asked.apply(path_of(named), named, dryRun="All")
    assert answered["metadata"]["name"] == named["metadata"]["name"]


def test_a_field_that_does_not_exist_would_be_refused(deployed: Deployed) -> None:
    (policy, *_) = read("network.yaml")
    named = deployed.named(policy)
    named["spec"]["podSelektor"] = {}
    with pytest.raises(RefusedError, match="podSelektor"):
        deployed.asked.apply(path_of(named), named, dryRun="All")


def test_workers_start_with_their_settings_token_and_nowhere_else_to_write(
    deployed: Deployed,
) -> None:
    path = f"/apis/apps/v1/namespaces/{deployed.workers}/deployments/{WORKER}"
    until_available(deployed.asked, path)
    assert deployed.asked.get(path)["status"]["availableReplicas"] == 2


def test_a_worker_may_do_what_the_backend_does_and_nothing_else(
    deployed: Deployed, worker: Asked
) -> None:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": deployed.sandboxes},
    }
    status = worker.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)[
        "status"
    ]
    allowed = {
        (verb, group, resource)
        for rule in status["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if resource not in EVERYBODY
    }
    assert not status["incomplete"]
    assert allowed == {(one.verb, one.group, one.resource) for one in NEEDED} - {OPENS}


OPENS = ("create", "networking.k8s.io", "networkpolicies")
"""Policies add up: whoever makes one can open what another shuts. The base has it already."""


def test_a_worker_makes_sees_and_removes_a_job(deployed: Deployed, worker: Asked) -> None:
    jobs = f"/apis/batch/v1/namespaces/{deployed.sandboxes}/jobs"
    worker.call("POST", jobs, job("mine"))
    assert [one["metadata"]["name"] for one in worker.get(jobs)["items"]] == ["mine"]
    worker.call("DELETE", f"{jobs}/mine", propagationPolicy="Background")


REFUSED: list[tuple[str, str, Manifest | None]] = [
    ("GET", "/api/v1/namespaces/{sandboxes}/secrets", None),
    ("GET", "/api/v1/namespaces/{sandboxes}/configmaps", None),
    ("POST", "/api/v1/namespaces/{sandboxes}/pods", {"metadata": {"name": "x"}}),
    ("DELETE", "/api/v1/namespaces/{sandboxes}/pods/x", None),
    ("DELETE", "/apis/batch/v1/namespaces/{sandboxes}/jobs", None),
    (
        "POST",
        "/apis/networking.k8s.io/v1/namespaces/{sandboxes}/networkpolicies",
        {"metadata": {"name": "open"}, "spec": {"podSelector": {}, "egress": [{}]}},
    ),
    ("POST", "/api/v1/namespaces/{sandboxes}/serviceaccounts/default/token", {"spec": {}}),
    ("GET", "/api/v1/namespaces/{workers}/pods", None),
    ("GET", "/apis/batch/v1/namespaces/{workers}/jobs", None),
    ("GET", "/api/v1/namespaces/kube-system/secrets", None),
    ("GET", "/api/v1/nodes", None),
    ("GET", "/api/v1/namespaces", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REFUSED)
def test_a_worker_is_refused_all_else(
    deployed: Deployed, worker: Asked, method: str, path: str, body: Manifest | None
) -> None:
    where = path.format(sandboxes=deployed.sandboxes, workers=deployed.workers)
    with pytest.raises(RefusedError) as refused:
        worker.call(method, where, body)
    assert (refused.value.code, refused.value.reason) == (403, "Forbidden")


def test_a_worker_runs_sandboxes(deployed: Deployed, worker: Asked, tmp_path: Path) -> None:
    config = KubernetesConfig(
        image=MINIMAL,
        namespace=deployed.sandboxes,
        kubeconfig=worker.write_kubeconfig(tmp_path / "config"),
        pull_policy="Never",
        sized_volumes=True,  # the tests' cluster is old, and has been told to
        start_timeout=PATIENCE,
        schedule_timeout=PATIENCE,
    )

    async def main() -> None:
        async with open_backend(config) as backend:
            assert (await backend.execute("echo", ["one"])).stdout_text == "one\n"
            async with await backend.create() as sandbox:
                assert (await sandbox.exec("echo", ["two"])).stdout_text == "two\n"

    anyio.run(main)


def test_sandboxes_are_held_to_the_limits_of_their_namespace(deployed: Deployed) -> None:
    core = f"/api/v1/namespaces/{deployed.sandboxes}"
    spec = job("big")["spec"]["template"]["spec"]
    spec["containers"][0]["resources"] = {"limits": {"memory": "64Gi"}}
    big = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big"}, "spec": spec}
    why = "maximum memory usage per Container is 4Gi"
    until_refused(deployed.asked, f"{core}/pods", big, why)
    service = {"metadata": {"name": "open"}, "spec": {"ports": [{"port": 80}]}}
    until_refused(deployed.asked, f"{core}/services", service, "exceeded quota: sandboxes")


def test_pods_of_that_namespace_get_no_token(deployed: Deployed) -> None:
    pods = f"/api/v1/namespaces/{deployed.sandboxes}/pods"
    body = {"metadata": {"name": "plain"}, "spec": job("plain")["spec"]["template"]["spec"]}
    made = deployed.asked.call("POST", pods, body, dryRun="All")
    assert "volumes" not in made["spec"]


def test_the_policy_is_the_one_that_the_backend_would_make() -> None:
    (policy, *_) = read("network.yaml")
    made: dict[str, Any] = _kube_objects.deny_policy_body()
    assert (policy["metadata"]["name"], policy["spec"]) == (made["metadata"]["name"], made["spec"])


def job(name: str) -> Manifest:
    container = {"name": "main", "image": MINIMAL, "command": ["true"]}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": pod},
    }
