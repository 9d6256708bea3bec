"""How a pod fails to run, and how it ends: what the cluster says, as our own errors.

Each row gives the API's own reason and message back, for only they tell what to mend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import (
    BackendUnavailableError,
    CreateError,
    ImageError,
    LimitError,
    SandboxError,
)
from ._kube_answers import RefusedError

__all__ = (
    "End",
    "container_status",
    "creation_error",
    "event_error",
    "job_end",
    "pod_end",
    "pod_failure",
    "unschedulable",
)

_NAME = "kubernetes"
_PULL = "is the image's name right, and may the cluster pull it? pull_secrets names credentials"

WAITING: Mapping[str, tuple[type[SandboxError], str]] = {
    "ErrImagePull": (ImageError, _PULL),
    "ImagePullBackOff": (ImageError, _PULL),
    "ErrImageNeverPull": (ImageError, "the image is not on the node, and pull_policy is Never"),
    "ImageInspectError": (ImageError, "the node can't read the image; pull it again"),
    "InvalidImageName": (ImageError, "the image's name is malformed"),
    "RegistryUnavailable": (ImageError, "the registry does not answer the node"),
    "SignatureValidationFailed": (ImageError, "the image is not signed as the node demands"),
    "CreateContainerConfigError": (CreateError, "what the pod refers to has to be there"),
    "CreateContainerError": (CreateError, "the node's runtime could not make the container"),
    "PreCreateHookError": (CreateError, "the node refused the container"),
    "PreStartHookError": (CreateError, "the node refused the container"),
    "PostStartHookError": (CreateError, "the node refused the container"),
    "RunContainerError": (CreateError, "the node's runtime could not start the container"),
    "CrashLoopBackOff": (CreateError, "the container ended at once"),
}
"""Why a container waits and won't start, as the kubelet says it, and the mend."""

POD_REASONS: Mapping[str, str] = {
    "Evicted": "evicted",
    "NodeLost": "node lost",
    "NodeShutdown": "node shutdown",
    "Shutdown": "node shutdown",
    "Terminated": "node shutdown",
    "DeadlineExceeded": "maximum age",
    "Preempting": "preempted",
    "NodeAffinity": "refused by the node",
    "UnexpectedAdmissionError": "refused by the node",
    "OutOfcpu": "refused by the node",
    "OutOfmemory": "refused by the node",
    "OutOfpods": "refused by the node",
    "OutOfephemeral-storage": "refused by the node",
}
"""Why a pod has failed as a whole, as the API says it, and what that is for a sandbox."""

DISRUPTIONS: Mapping[str, str] = {
    "DeletionByTaintManager": "node lost",
    "DeletionByPodGC": "node lost",
    "EvictionByEvictionAPI": "evicted",
    "PreemptionByScheduler": "preempted",
    "PreemptionByKubeScheduler": "preempted",
    "TerminationByKubelet": "evicted",
}
"""Why a pod is about to be removed, as new servers say in its condition `DisruptionTarget`."""

_OOM = "OOMKilled"
_KILLED = 137
_NOT_STARTED = ("ContainerCannotRun", "StartError", "ContainerStatusUnknown")
_FORBIDDEN, _NOT_FOUND, _INVALID = 403, 404, 422
_UNAUTHORIZED = 401


@dataclass(frozen=True)
class End:
    """How a pod has ended.

    Attributes:
        cause: In words: `out of memory`, `evicted`, `maximum age`, `removed`, `ended`, ...
        message: What the API said.
        code: The container's exit code, if it has one.
        started: Whether its container ever ran.
    """

    cause: str
    message: str = ""
    code: int | None = None
    started: bool = True

    @property
    def text(self) -> str:
        """Both, for an error."""
        return f"{self.cause}: {self.message}" if self.message else self.cause


def container_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the kubelet says of the one container; empty if it has not said anything yet."""
    found = (pod.get("status") or {}).get("containerStatuses") or [{}]
    status = found[0]
    return status if isinstance(status, dict) else {}


def pod_failure(pod: Mapping[str, Any]) -> SandboxError | None:
    """Return the error of a pod that won't start, or None if it may still.

    One that fits on no node is told by `unschedulable`, since it may fit in a moment.
    """
    waiting = (container_status(pod).get("state") or {}).get("waiting") or {}
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason in WAITING:
        kind, hint = WAITING[reason]
        return kind(_said(reason, message), backend=_NAME, hint=hint)
    end = pod_end(pod)
    if end is None:
        return None
    if end.cause == "out of memory":
        return LimitError(
            "memory_bytes",
            "the memory limit is too low for the sandbox to start",
            backend=_NAME,
            hint="raise memory_bytes",
        )
    return CreateError(f"the pod ended before it was ready ({end.text})", backend=_NAME)


def _said(reason: str, message: str) -> str:
    return f"the pod can't start: {reason}" + (f": {message[:1000]}" if message else "")


def unschedulable(pod: Mapping[str, Any]) -> str:
    """Return why a pod fits on no node now, or empty."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason = str(condition.get("reason") or "Unschedulable")
            return f"{reason}: {str(condition.get('message') or '')[:1000]}"
    return ""


def pod_end(pod: Mapping[str, Any]) -> End | None:
    """Return how a pod has ended, or None if it has not.

    One that is being deleted has ended for us: what runs in it is about to.
    """
    status = pod.get("status") or {}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")[:1000]
    state = container_status(pod).get("state") or {}
    ended = state.get("terminated")
    # It is said of a container in which anything was killed; what has lived on has its own code.
    if ended and ended.get("reason") == _OOM and _code(ended) == _KILLED:
        return End("out of memory", message, _code(ended))
    if reason in POD_REASONS:
        return End(POD_REASONS[reason], message or reason, _code(ended))
    if ended:
        why = str(ended.get("reason") or "")
        if why in _NOT_STARTED:
            said = f"{why}: {str(ended.get('message') or '')[:1000]}"
            return End("could not be started", said, _code(ended), started=False)
        return End("ended", f"exit code {ended.get('exitCode')}", _code(ended))
    if status.get("phase") == "Failed":
        return End(reason or "failed", message)
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return _disruption(status) or End("removed", message)
    return None


def _disruption(status: Mapping[str, Any]) -> End | None:
    """Return why a pod is being removed, where the server tells."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            reason = str(condition.get("reason") or "")
            said = f"{reason}: {str(condition.get('message') or '')[:1000]}"
            return End(DISRUPTIONS.get(reason, "removed"), said)
    return None


def _code(ended: Mapping[str, Any] | None) -> int | None:
    code = (ended or {}).get("exitCode")
    return code if isinstance(code, int) else None


def job_end(job: Mapping[str, Any]) -> tuple[bool, str] | None:
    """Return whether a Job has succeeded and why not, or None if it has not ended.

    New servers say early what will become of it, in `SuccessCriteriaMet` and `FailureTarget`, while
    its pods may still run. Only the last word counts.
    """
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") != "True":
            continue
        if condition.get("type") == "Complete":
            return True, ""
        if condition.get("type") == "Failed":
            reason = str(condition.get("reason") or "Failed")
            return False, f"{reason}: {condition.get('message') or ''}".rstrip(": ")
    return None


def event_error(event: Mapping[str, Any]) -> SandboxError | None:
    """Return the error of a Job for which the cluster can't make a pod, told by an event."""
    if event.get("reason") != "FailedCreate":
        return None
    message = str(event.get("message") or "")[:1000]
    return _refused_pod(message)


def _refused_pod(message: str) -> SandboxError:
    lower = message.lower()
    if "exceeded quota" in lower or "must specify" in lower or "limitrange" in lower:
        hint = "ask for less, wait for others to end, or have the namespace's quota raised"
    elif "podsecurity" in lower or "pod security" in lower:
        hint = "the namespace's pod security level forbids what the settings ask for"
    elif "admission webhook" in lower:
        hint = "a webhook of the cluster's refuses such pods"
    elif "service account" in lower or "serviceaccount" in lower:
        hint = "service_account has to exist in the namespace"
    elif "priorityclass" in lower or "runtimeclass" in lower:
        hint = "the cluster has no such class"
    else:
        hint = None
    return CreateError(
        f"the cluster refused the pod: FailedCreate: {message}", backend=_NAME, hint=hint
    )


def creation_error(error: RefusedError, namespace: str) -> SandboxError:
    """Return what the API's refusal to create a Job means."""
    said = f"{error.reason or error.status}: {error.message}"
    lower = error.message.lower()
    if error.status == _UNAUTHORIZED:
        return BackendUnavailableError(f"the cluster does not know us: {said}", backend=_NAME)
    if error.status == _NOT_FOUND and "namespaces" in lower:
        return CreateError(
            f"there is no namespace {namespace!r}: {said}",
            backend=_NAME,
            hint=f"`kubectl create namespace {namespace}` makes it",
        )
    if error.status == _FORBIDDEN and "exceeded quota" in lower:
        return CreateError(
            f"the cluster refused the Job: {said}",
            backend=_NAME,
            hint="the namespace's quota is used up: wait, or have it raised",
        )
    if error.status == _FORBIDDEN and "cannot create" in lower:
        return BackendUnavailableError(
            f"the verb 'create' on jobs.batch is not permitted: {said}",
            backend=_NAME,
            hint="docs/kubernetes.md has the role that is needed",
        )
    if error.status == _INVALID:
        return CreateError(f"the cluster can't make sense of the settings: {said}", backend=_NAME)
    return CreateError(f"the cluster refused the Job: {said}", backend=_NAME)
