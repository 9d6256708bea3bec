"""Each way in which a pod fails to start, as the API tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from ringfence import inventory
from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.errors import (
    BackendUnavailableError,
    CreateError,
    CreateTimeoutError,
    ImageError,
    LimitError,
)
from ringfence.models import Limits, SandboxSpec

from ..own_places import own_places
from .kube_running import run
from .kube_server import KubeServer, terminated, waiting

__all__ = ("own_places",)


@pytest.fixture(autouse=True)
def owner(own_places: Path) -> None:
    """Be an owner already: its file stays open from the first time to the end of this process."""
    inventory.owner()


POD_FAILURES: list[tuple[dict[str, Any], type[Exception], str]] = [
    (waiting("ErrImagePull", "manifest unknown"), ImageError, "ErrImagePull: manifest unknown"),
    (waiting("ImagePullBackOff", "Back-off"), ImageError, "ImagePullBackOff: Back-off"),
    (waiting("InvalidImageName", "bad"), ImageError, "InvalidImageName: bad"),
    (waiting("ErrImageNeverPull", "not present"), ImageError, "ErrImageNeverPull"),
    (waiting("CreateContainerConfigError", "no secret"), CreateError, "no secret"),
    (waiting("CreateContainerError", "no runtime"), CreateError, "no runtime"),
    (waiting("RunContainerError", "no room"), CreateError, "RunContainerError: no room"),
    (terminated(128, "StartError", "exec: not found"), CreateError, "exec: not found"),
    (terminated(137, "OOMKilled"), LimitError, "memory limit is too low"),
    (
        {"phase": "Failed", "reason": "Evicted", "message": "low on disk"},
        CreateError,
        "low on disk",
    ),
    ({"phase": "Failed", "reason": "NodeLost", "message": "n"}, CreateError, "node lost"),
    ({"phase": "Failed", "reason": "OutOfcpu", "message": "none left"}, CreateError, "none left"),
    ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, CreateError, "refused by the node"),
    ({"phase": "Failed", "reason": "NewReason", "message": "why"}, CreateError, "NewReason: why"),
]


@pytest.mark.parametrize(("status", "kind", "said"), POD_FAILURES)
def test_a_pod_that_can_t_start_is_an_error_with_the_api_s_own_words(
    tmp_path: Path, status: dict[str, Any], kind: type[Exception], said: str
) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.status = status
        async with backend:
            with anyio.fail_after(5), pytest.raises(kind, match=said):
                await backend.create()
            assert server.names("jobs") == []

    run(tmp_path, body)


EVENTS = [
    ('pods "x" is forbidden: exceeded quota: q, requested: pods=1', "quota"),
    ('pods "x" is forbidden: violates PodSecurity "restricted:latest"', "pod security level"),
    ('admission webhook "w.example" denied the request: no', "webhook"),
    ('error looking up service account default/sa: serviceaccount "sa" not found', "account"),
    ('pods "x" is forbidden: no PriorityClass with name nope was found', "no such class"),
    ("something that nobody has seen yet", "something that nobody has seen yet"),
]


@pytest.mark.parametrize(("message", "hint"), EVENTS)
def test_a_pod_that_the_cluster_does_not_make_is_an_error_at_once(
    tmp_path: Path, message: str, hint: str
) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.event = message
        async with backend:
            await anyio.sleep(0.1)  # for the watch to begin
            with anyio.fail_after(5), pytest.raises(CreateError, match="FailedCreate") as caught:
                await backend.create()
            assert message in str(caught.value)
            assert hint in str(caught.value)
            assert server.names("jobs") == []

    run(tmp_path, body)


REFUSALS: list[tuple[tuple[int, str, str], type[Exception], str]] = [
    ((403, "Forbidden", "exceeded quota: q"), CreateError, "quota is used up"),
    ((403, "Forbidden", "User cannot create resource"), BackendUnavailableError, "'create'"),
    ((404, "NotFound", 'namespaces "default" not found'), CreateError, "no namespace"),
    ((422, "Invalid", "spec.x: Invalid value"), CreateError, "Invalid value"),
    ((401, "Unauthorized", "Unauthorized"), BackendUnavailableError, "does not know us"),
    ((500, "InternalError", "etcd is full"), CreateError, "etcd is full"),
]


@pytest.mark.parametrize(("answer", "kind", "said"), REFUSALS)
def test_a_job_that_is_refused_is_an_error(
    tmp_path: Path, answer: tuple[int, str, str], kind: type[Exception], said: str
) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.refused = answer
        async with backend:
            with anyio.fail_after(5), pytest.raises(kind, match=said):
                await backend.create()

    run(tmp_path, body)


def test_a_pod_that_fits_nowhere_is_given_a_moment(tmp_path: Path) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Pending", "conditions": [{**condition, "message": "0/3 nodes"}]}

    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.status = status
        async with backend:
            with anyio.fail_after(5), pytest.raises(CreateError, match="0/3 nodes") as caught:
                await backend.create()
            assert caught.value.retryable
            assert server.names("jobs") == []

    run(tmp_path, body, schedule_timeout=0.2)


def test_a_start_that_takes_too_long_says_how_far_it_came(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.status = None
        async with backend:
            with pytest.raises(CreateTimeoutError, match="has made no pod"):
                await backend.create(SandboxSpec(limits=Limits(start_timeout=0.3)))
            assert server.names("jobs") == []

    run(tmp_path, body)


def test_a_server_that_drops_a_protection_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        create = server._create

        async def dropping(request: Any) -> Any:
            answer = await create(request)
            if request.path.endswith("/jobs"):
                job = next(item for path, item in server.objects.items() if "/jobs/" in path)
                del job["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]
                return web.json_response(job, status=201)
            return answer

        monkeypatch.setattr(server, "_create", dropping)
        async with backend:
            with pytest.raises(CreateError, match="does not keep the protection"):
                await backend.create()
            assert server.names("jobs") == []

    run(tmp_path, body)
