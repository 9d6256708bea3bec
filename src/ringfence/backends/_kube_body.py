"""What is said to the cluster about a sandbox: pure functions of values.

The hardened defaults are here, each with its reason; tests hold them to literal expectations.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import KubernetesConfig
from ..models import Limits

__all__ = (
    "ARCHITECTURES",
    "CONTAINER",
    "ENVIRONMENT",
    "LABEL",
    "WARDEN",
    "WORKSPACE",
    "Plan",
    "job_body",
)

LABEL = "ringfence."
WARDEN_DIR = "/run/ringfence"
WARDEN = f"{WARDEN_DIR}/warden"
WORKSPACE = "/workspace"
CONTAINER = "sandbox"
HOME = "/tmp/home"  # noqa: S108  # inside
_TMP = "/tmp"  # noqa: S108  # inside
_SHM = "/dev/shm"  # noqa: S108  # inside
_MIB = 1 << 20
_POD_SLACK = 15  # seconds behind the warden's own maximum age, which tells more
_JOB_SLACK = 45  # behind the pod's deadline: the Job's takes the pod away, its log and end too
_GRACE = 1  # from TERM to KILL: the warden passes over TERM, and what has to end it tells it so
_LOGS_MIB = 64  # on the node's disk, which a pod's log counts against
_CPU_REQUEST = 0.1
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?\Z")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""A node's architecture, as the cluster and as the warden's binary call it."""

ENVIRONMENT = {
    b"PATH": b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    b"LANG": b"C.UTF-8",
    b"TERM": b"dumb",
    # The root file system can't be written to, so these lie where one can.
    b"HOME": HOME.encode(),
    b"TMPDIR": _TMP.encode(),
    b"XDG_CACHE_HOME": f"{HOME}/.cache".encode(),
    b"MPLCONFIGDIR": f"{HOME}/.cache/matplotlib".encode(),
}
"""What commands get. What the image says of its own is not known here."""


@dataclass(frozen=True)
class Plan:
    """All that is decided about one sandbox before the cluster hears of it.

    Attributes:
        sandbox_id: Also the Job's name.
        limits: Every limit filled in.
        warden: The ConfigMap with the warden, or empty where the command is the container's own.
        labels: Ours, all of which are good labels for the cluster too.
        told: What the caller labels it with; what the cluster does not take as labels is in an
            annotation.
        await_seconds: How long the warden waits for its first stream.
        orphan_seconds: How long it waits for another one when its own has broken.
        command: The container's command, where that is not the warden.
        env: Its variables.
        cwd: Its working directory.
        deadline: Seconds after which the pod is ended.
        version: The server's, as major and minor number.
    """

    sandbox_id: str
    limits: Limits
    warden: str
    labels: Mapping[str, str]
    told: Mapping[str, str] = field(default_factory=dict)
    await_seconds: float = 60.0
    orphan_seconds: float = 0.0
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = WORKSPACE
    deadline: float = 3600.0
    version: tuple[int, int] = (1, 20)


def job_body(plan: Plan, config: KubernetesConfig) -> dict[str, Any]:
    """Return the request that creates a sandbox's Job."""
    pod_seconds = math.ceil(plan.deadline) + _POD_SLACK
    metadata = {
        "labels": {**_good_labels({**config.labels, **plan.told}), **plan.labels},
        "annotations": {f"{LABEL}labels": json.dumps(dict(plan.told), sort_keys=True)},
    }
    spec: dict[str, Any] = {
        "backoffLimit": 0,  # a sandbox that has died is not made again
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": pod_seconds + _JOB_SLACK,
        "ttlSecondsAfterFinished": config.ttl,
        "template": {"metadata": metadata, "spec": pod_spec(plan, config, pod_seconds)},
    }
    if plan.version >= (1, 29):  # before it the server does not know it
        spec["podReplacementPolicy"] = "Failed"  # one that is being removed is not replaced
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": plan.sandbox_id, **metadata},
        "spec": spec,
    }


def pod_spec(plan: Plan, config: KubernetesConfig, seconds: int) -> dict[str, Any]:
    """Return the part that is about the pod: hardening, placing and limits."""
    uid, gid = map(int, config.user.split(":"))
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": seconds,
        "terminationGracePeriodSeconds": _GRACE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # what services there are is no business of a program
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,  # the warden has to be PID 1
        "hostname": "sandbox",
        "dnsPolicy": "Default" if config.network_policy == "none" else "None",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": gid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": {
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": config.architecture,
            **config.node_selector,
        },
        "containers": [container_spec(plan, config)],
        "volumes": volumes(plan, config),
    }
    if config.network_policy != "none":
        spec["dnsConfig"] = {"nameservers": ["127.0.0.1"]}  # nobody: no name leads anywhere
    if config.service_account:
        spec["serviceAccountName"] = config.service_account
    if config.runtime_class:
        spec["runtimeClassName"] = config.runtime_class
    if config.priority_class:
        spec["priorityClassName"] = config.priority_class
    if config.tolerations:
        spec["tolerations"] = [dict(item) for item in config.tolerations]
    if config.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in config.pull_secrets]
    return spec


def container_spec(plan: Plan, config: KubernetesConfig) -> dict[str, Any]:
    """Return the one container of a sandbox."""
    found: dict[str, Any] = {
        "name": CONTAINER,
        "image": config.image,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": resources(plan.limits, config),
        "volumeMounts": [
            {"name": "workspace", "mountPath": WORKSPACE},
            {"name": "tmp", "mountPath": _TMP},
            {"name": "shm", "mountPath": _SHM},  # the runtime's own has no limit of ours
        ],
        "terminationMessagePolicy": "File",  # and not the end of what a program has said
    }
    if config.pull_policy:
        found["imagePullPolicy"] = config.pull_policy
    if plan.warden:
        found["command"] = [WARDEN]
        found["args"] = warden_arguments(plan)
        found["workingDir"] = "/"
        mount = {"name": "warden", "mountPath": WARDEN_DIR, "readOnly": True}
        found["volumeMounts"].append(mount)
    else:
        found["command"] = [_literal(part) for part in plan.command]
        found["workingDir"] = plan.cwd
        found["env"] = [
            {"name": name, "value": _literal(value)} for name, value in plan.env.items()
        ]
    return found


def _literal(text: str) -> str:
    """Keep the cluster from putting variables in the place of `$(NAME)`."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text


def warden_arguments(plan: Plan) -> list[str]:
    """Return the arguments of the warden that is PID 1."""
    return [
        "serve",
        "--count-oom",
        "--seccomp",  # no runtime's own profile keeps a program from lowering PID 1
        *("--await-ms", str(round(plan.await_seconds * 1000))),
        *("--orphan-ms", str(round(plan.orphan_seconds * 1000))),
        *("--home", HOME),
        *("--open-files", str(plan.limits.open_files)),
        *("--max-age-ms", str(round((plan.limits.max_age or 0) * 1000))),
    ]


def resources(limits: Limits, config: KubernetesConfig) -> dict[str, dict[str, str]]:
    """Return what a pod may use, and what of it is kept for it.

    Memory can't be taken back from a program, so all of it is reserved. Processor time can.
    """
    cpus, memory = limits.cpus or 0, limits.memory_bytes or 0
    cpu_request = min(cpus, _CPU_REQUEST if config.cpu_request is None else config.cpu_request)
    memory_request = min(memory, config.memory_request_bytes or memory)
    disk = _LOGS_MIB * _MIB
    if config.volume_medium == "disk":
        disk += (limits.workspace_bytes or 0) + (limits.tmp_bytes or 0)
    return {
        "limits": {"cpu": _cores(cpus), "memory": str(memory), "ephemeral-storage": str(disk)},
        "requests": {
            "cpu": _cores(cpu_request),
            "memory": str(memory_request),
            "ephemeral-storage": str(min(disk, _LOGS_MIB * _MIB)),
        },
    }


def _cores(cpus: float) -> str:
    return f"{max(1, math.ceil(cpus * 1000))}m"


def volumes(plan: Plan, config: KubernetesConfig) -> list[dict[str, Any]]:
    """Return what is mounted, each with its size."""
    medium = "Memory" if config.volume_medium == "memory" else ""
    workspace, tmp = plan.limits.workspace_bytes, plan.limits.tmp_bytes
    found: list[dict[str, Any]] = [
        {"name": name, "emptyDir": {"medium": kind, "sizeLimit": str(size)}}
        for name, kind, size in (
            ("workspace", medium, workspace),
            ("tmp", medium, tmp),
            ("shm", "Memory", tmp),
        )
    ]
    if plan.warden:
        found.append(
            {
                "name": "warden",
                "configMap": {
                    "name": plan.warden,
                    "defaultMode": 0o555,
                    "items": [{"key": "warden", "path": "warden", "mode": 0o555}],
                },
            }
        )
    return found


def _good_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return those that the cluster takes as labels."""
    return {
        name: value
        for name, value in labels.items()
        if _LABEL_NAME.match(name) and _LABEL_VALUE.match(value)
    }
