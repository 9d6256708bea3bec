"""What is listed of a namespace: whoever made it, and whatever somebody has written on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringfence import inventory
from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.errors import BackendUnavailableError

from ..own_places import own_places
from .kube_running import run, sandbox_of
from .kube_server import KubeServer

__all__ = ("own_places",)

JOBS = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture(autouse=True)
def owner(own_places: Path) -> None:
    """Be an owner already: its file stays open from the first time to the end of this process."""
    inventory.owner()


def job(name: str, told: Any, **labels: str) -> dict[str, Any]:
    ours = {f"ringfence.{key}": value for key, value in {"sandbox": name, **labels}.items()}
    annotations = {"ringfence.labels": told}
    return {"metadata": {"name": name, "labels": ours, "annotations": annotations}}


def test_sandboxes_are_listed_with_who_holds_them(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with sandbox_of(backend) as sandbox:
            lease = server.names("leases")[0]
            theirs = job("rf-theirs", '{"a": "b"}', store="s", owner=lease, created="2")
            server.objects[f"{JOBS}/rf-theirs"] = theirs
            server.objects[f"{JOBS}/rf-nobodys"] = job("rf-nobodys", "{}", created="1")
            nobodys, held, mine = await backend.sandboxes()
            assert (nobodys.id, nobodys.alive, nobodys.owner) == ("rf-nobodys", False, "")
            assert (held.id, held.alive, held.created) == ("rf-theirs", True, 2.0)
            assert held.labels == {"a": "b"}
            assert (mine.id, mine.alive) == (sandbox.id, True)
            assert mine.owner == held.owner != ""

    run(tmp_path, body)


@pytest.mark.parametrize("told", ["", "{", "[1]", '{"a": 1}', "[" * 100_000, None])
def test_labels_that_somebody_has_spoilt_are_none(tmp_path: Path, told: Any) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            server.objects[f"{JOBS}/rf-x"] = job("rf-x", told, created="yesterday")
            (found,) = await backend.sandboxes()
            assert (found.labels, found.created) == ({}, 0.0)

    run(tmp_path, body)


def test_a_namespace_that_may_not_be_looked_at_is_an_error_that_says_so(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.token = "another's"
        with pytest.raises(BackendUnavailableError, match="can't be looked at: 401"):
            await backend.sandboxes()

    run(tmp_path, body)
