"""What is said to a cluster, held to literal expectations."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any

from ringfence.backends._kube_body import Plan, job_body
from ringfence.backends._kube_objects import (
    configmap_body,
    deny_policy_body,
    needed_access,
)
from ringfence.config import KubernetesConfig
from ringfence.models import Limits

LIMITS = Limits(
    memory_bytes=256 << 20,
    cpus=0.5,
    open_files=1024,
    workspace_bytes=128 << 20,
    tmp_bytes=64 << 20,
    max_age=3600.0,
)
PLAN = Plan(
    sandbox_id="rf-1",
    limits=LIMITS,
    warden="ringfence-warden-1",
    labels={"ringfence.sandbox": "rf-1"},
    told={"tenant": "a", "long": "b c"},
    await_seconds=60.0,
    orphan_seconds=30.0,
    deadline=3660.0,
)
CONFIG = KubernetesConfig(image="alpine:3")


def pod(config: KubernetesConfig = CONFIG, plan: Plan = PLAN) -> Any:
    return job_body(plan, config)["spec"]["template"]["spec"]


def test_a_job_runs_one_pod_once() -> None:
    body = job_body(PLAN, CONFIG)
    template = body["spec"].pop("template")
    assert body == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "rf-1",
            "labels": {"tenant": "a", "ringfence.sandbox": "rf-1"},
            "annotations": {"ringfence.labels": '{"long": "b c", "tenant": "a"}'},
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "activeDeadlineSeconds": 3660 + 15 + 45,
            "ttlSecondsAfterFinished": 60,
        },
    }
    assert template["metadata"]["labels"] == {"tenant": "a", "ringfence.sandbox": "rf-1"}
    assert template["spec"]["activeDeadlineSeconds"] == 3660 + 15


def test_a_server_that_knows_it_is_told_not_to_replace_pods() -> None:
    assert "podReplacementPolicy" not in job_body(PLAN, CONFIG)["spec"]
    new = job_body(replace(PLAN, version=(1, 29)), CONFIG)
    assert new["spec"]["podReplacementPolicy"] == "Failed"


def test_a_pod_is_hardened() -> None:
    found = pod()
    container = found.pop("containers")[0]
    del found["volumes"]
    assert found == {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 3675,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "hostname": "sandbox",
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "runAsGroup": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["command"] == ["/run/ringfence/warden"]
    assert container["args"] == [
        *("serve", "--count-oom", "--seccomp", "--await-ms", "60000", "--orphan-ms", "30000"),
        *("--home", "/tmp/home", "--open-files", "1024", "--max-age-ms", "3600000"),
    ]


def test_what_a_pod_may_use_and_what_is_kept_for_it() -> None:
    assert pod()["containers"][0]["resources"] == {
        "limits": {"cpu": "500m", "memory": "268435456", "ephemeral-storage": "67108864"},
        "requests": {"cpu": "100m", "memory": "268435456", "ephemeral-storage": "67108864"},
    }
    config = KubernetesConfig(
        image="i", cpu_request=0.5, memory_request_bytes=1 << 20, volume_medium="disk"
    )
    found = pod(config)["containers"][0]["resources"]
    assert found["requests"] == {
        "cpu": "500m",
        "memory": "1048576",
        "ephemeral-storage": "67108864",
    }
    assert found["limits"]["ephemeral-storage"] == str((64 + 128 + 64) << 20)


def test_volumes_have_sizes_and_the_warden_s_can_t_be_written_to() -> None:
    assert pod()["volumes"] == [
        {"name": "workspace", "emptyDir": {"medium": "Memory", "sizeLimit": str(128 << 20)}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": str(64 << 20)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(64 << 20)}},
        {
            "name": "warden",
            "configMap": {
                "name": "ringfence-warden-1",
                "defaultMode": 0o555,
                "items": [{"key": "warden", "path": "warden", "mode": 0o555}],
            },
        },
    ]
    mounts = {item["name"]: item for item in pod()["containers"][0]["volumeMounts"]}
    assert mounts["warden"]["readOnly"] is True
    assert mounts["workspace"]["mountPath"] == "/workspace"


def test_what_the_settings_add() -> None:
    toleration = {"key": "sandbox", "operator": "Exists"}
    config = KubernetesConfig(
        image="i",
        service_account="sa",
        runtime_class="gvisor",
        priority_class="low",
        node_selector={"pool": "sandboxes"},
        tolerations=(toleration,),
        pull_secrets=("registry",),
        pull_policy="Always",
        network_policy="none",
        architecture="arm64",
        user="1000:1001",
        labels={"team": "x"},
    )
    found = pod(config)
    assert found["serviceAccountName"] == "sa"
    assert found["runtimeClassName"] == "gvisor"
    assert found["priorityClassName"] == "low"
    assert found["tolerations"] == [toleration]
    assert found["imagePullSecrets"] == [{"name": "registry"}]
    assert found["dnsPolicy"] == "Default"
    assert "dnsConfig" not in found
    assert found["securityContext"]["runAsGroup"] == 1001
    assert found["nodeSelector"] == {
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "pool": "sandboxes",
    }
    assert found["containers"][0]["imagePullPolicy"] == "Always"
    assert job_body(PLAN, config)["metadata"]["labels"]["team"] == "x"


def test_without_a_warden_the_command_is_the_container_s_and_stays_as_it_is() -> None:
    plan = replace(PLAN, warden="", command=["sh", "-c", "echo $(HOME) $$"], env={"A": "$(B)"})
    container = pod(plan=plan)["containers"][0]
    assert container["command"] == ["sh", "-c", "echo $$(HOME) $$$$"]
    assert container["env"] == [{"name": "A", "value": "$$(B)"}]
    assert container["workingDir"] == "/workspace"
    assert "args" not in container


def test_the_warden_s_configmap_can_t_be_changed() -> None:
    digest = hashlib.sha256(b"elf").hexdigest()[:16]
    assert configmap_body(b"elf") == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"ringfence-warden-{digest}",
            "labels": {"ringfence.warden": digest},
        },
        "immutable": True,
        "binaryData": {"warden": base64.b64encode(b"elf").decode()},
    }


def test_the_policy_denies_all() -> None:
    assert deny_policy_body()["spec"] == {
        "podSelector": {
            "matchExpressions": [{"key": "ringfence.sandbox", "operator": "Exists"}],
        },
        "policyTypes": ["Ingress", "Egress"],
    }


def test_no_more_is_asked_for_than_is_used() -> None:
    assert [str(access) for access in needed_access(CONFIG)] == [
        *("create jobs.batch", "delete jobs.batch", "get jobs.batch", "list jobs.batch"),
        *("get pods", "list pods", "watch pods", "list events", "watch events"),
        *("create leases.coordination.k8s.io", "delete leases.coordination.k8s.io"),
        *("list leases.coordination.k8s.io", "patch leases.coordination.k8s.io"),
        *("create pods/exec", "get pods/exec", "create configmaps", "get configmaps"),
        *(
            "create networkpolicies.networking.k8s.io",
            "get networkpolicies.networking.k8s.io",
        ),
    ]
    logs = KubernetesConfig(image="i", transport="logs", network_policy="none")
    names = {access.resource for access in needed_access(logs)}
    assert names == {"jobs", "pods", "events", "leases", "pods/log"}
