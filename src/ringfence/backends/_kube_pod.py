"""The pod of a sandbox, as the cluster tells of it: how far it has come, and how it has ended.

The pod is known by its uid from the first time that it is seen. Another one in its place, as the
cluster makes where somebody has deleted the first, is the end of the sandbox and never used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import anyio

from ..config import KubernetesConfig
from ..errors import BackendUnavailableError, CreateError, SandboxError
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_failures import (
    End,
    container_status,
    event_error,
    job_end,
    pod_end,
    pod_failure,
    unschedulable,
)

__all__ = ("Pod", "jobs_path")

_NAME = "kubernetes"
_NOT_FOUND = 404


def jobs_path(namespace: str, name: str = "") -> str:
    """Return the path of a namespace's Jobs, or of one."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")


class UnschedulableError(CreateError):
    """The pod fits on no node of the cluster now."""

    code = "unschedulable"
    retryable = True


class Pod:
    """One pod.

    Args:
        api: The cluster's.
        name: The sandbox's id, which is the name of its Job.
        config: The backend's settings.

    Attributes:
        name: The sandbox's id.
        namespace: Where it is.
        pod: What is known of it, or None.
        end: How it has ended, or None.
    """

    def __init__(self, api: Api, name: str, config: KubernetesConfig) -> None:
        self.name = name
        self.namespace = config.namespace
        self.pod: Mapping[str, Any] | None = None
        self.end: End | None = None
        self._api = api
        self._schedule_timeout = config.schedule_timeout
        self._uid = ""
        self._failure: SandboxError | None = None
        self._changed = asyncio.Event()
        self._dead = asyncio.Event()
        self._gone = asyncio.Event()

    # What is heard of it.

    @property
    def pod_name(self) -> str:
        """The name of its pod; empty if there is none yet."""
        return "" if self.pod is None else str(self.pod["metadata"]["name"])

    def take_pod(self, pod: Mapping[str, Any], *, deleted: bool = False) -> None:
        """Take what the cluster says of a pod of this Job."""
        uid = str((pod.get("metadata") or {}).get("uid") or "")
        if self._uid and uid != self._uid:
            self.died(End("replaced", "the cluster made another pod in its place"))
            return
        self._uid = uid
        self.pod = pod
        end = pod_end(pod)
        if end is not None:
            self.died(end)
        if deleted:
            self.died(End("removed", "its pod was deleted"))
            self._gone.set()
        self._wake()

    def take_event(self, event: Mapping[str, Any]) -> None:
        """Take what the cluster says of the Job itself."""
        self._failure = self._failure or event_error(event)
        self._wake()

    def missing(self) -> None:
        """Take that its pod is not there any more."""
        if self.pod is not None:
            self.died(End("removed", "its pod is gone"))
            self._gone.set()
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def died(self, end: End) -> None:
        """Note that it has ended."""
        if self.end is None:
            self.end = end
            self._dead.set()
            self._wake()

    async def until_dead(self) -> None:
        """Return when it has ended."""
        await self._dead.wait()

    async def wait_for_change(self, seconds: float) -> None:
        """Return when something new was heard, or after that time."""
        changed = self._changed
        with anyio.move_on_after(seconds):
            await changed.wait()

    def check_start(self, since: float | None) -> float | None:
        """Return since when its pod has fitted on no node.

        Args:
            since: What this returned last.

        Raises:
            SandboxError: It can't start.
        """
        if self._failure is not None:
            raise self._failure
        if self.pod is None:
            return None
        if (failure := pod_failure(self.pod)) is not None:
            raise failure
        if self.end is not None:
            raise CreateError(f"the pod is gone: {self.end.text}", backend=_NAME)
        if not (why := unschedulable(self.pod)):
            return None
        now = asyncio.get_running_loop().time()
        since = now if since is None else since
        if now - since >= self._schedule_timeout:
            raise UnschedulableError(
                f"the pod fits on no node: {why}",
                backend=_NAME,
                hint="ask for less, wait for others to end, or add nodes",
            )
        return since

    @property
    def is_scheduled(self) -> bool:
        """Whether its pod has a node."""
        return self.pod is not None and bool((self.pod.get("spec") or {}).get("nodeName"))

    @property
    def is_running(self) -> bool:
        """Whether the kubelet says that the container runs."""
        if self.pod is None:
            return False
        return (container_status(self.pod).get("state") or {}).get("running") is not None

    def _state(self) -> str:
        """Return how far it has come."""
        if self.pod is None:
            return "the cluster has made no pod for it"
        waiting = (container_status(self.pod).get("state") or {}).get("waiting") or {}
        said = ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
        if not self.is_scheduled:
            return f"its pod has no node{': ' if (why := unschedulable(self.pod)) else ''}{why}"
        return f"its pod is {said or 'starting'}"

    async def look(self) -> str:
        """Ask what has become of its pod: `running`, `unreachable`, or how it has ended."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.pod_name}"
        try:
            self.take_pod(await self._api.call("GET", path, patience=0))
        except RefusedError as error:
            if error.status != _NOT_FOUND:
                return "unreachable"
            await self._explain_absence()
        except BackendUnavailableError:
            return "unreachable"
        return "running" if self.end is None else self.end.cause

    async def _explain_absence(self) -> None:
        try:
            job = await self._api.call("GET", jobs_path(self.namespace, self.name), patience=0)
        except (RefusedError, BackendUnavailableError):
            job = {}
        found = job_end(job)
        if found is not None and "DeadlineExceeded" in found[1]:
            self.died(End("maximum age", found[1]))
        else:
            self.died(End("removed", found[1] if found else "its Job is gone"))
