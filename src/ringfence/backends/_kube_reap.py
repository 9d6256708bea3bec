"""Finds what owners have in a namespace, and removes what dead ones left there.

Every Job bears the name of its owner's lease, and of the inventory of the owner's machine. A Job of
this machine's inventory is a left-over if no live owner here has noted its sandbox: the kernel's
locks say so at once. One of another machine is a left-over when its owner's lease is gone or has
run out, by the server's clock, or when it has outlived its age. A lease goes when nobody holds its
owner's slot here, or long after it has run out. What does not bear our labels is never touched.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import anyio.to_thread

from .. import inventory
from ..config import KubernetesConfig
from ..errors import BackendUnavailableError
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_body import LABEL
from ._kube_job import delete_job
from ._kube_lease import LEASE_SECONDS, leases_path
from ._kube_pod import jobs_path

__all__ = (
    "Kept", "is_left_over", "is_over", "kept_in", "lease_end", "looking_into", "reap_namespace",
)  # fmt: skip

_log = logging.getLogger(__name__)
_PAGE = "500"
_SLACK = 5.0  # seconds, for the second that a clock is read to and for what is under way
_AGE_SLACK = 120.0  # behind the deadlines of the warden, the pod and the Job
_KEEP_SECONDS = 600.0  # a lease that ran out so long ago is nobody's


@dataclass(frozen=True)
class Kept:
    """A sandbox in a namespace.

    Attributes:
        id: Its id, which is its Job's name.
        alive: Whether its owner is taken to live; if not, it is a left-over.
        created: When it was made, in seconds since the epoch by the server's clock.
        owner: Who holds it, as `pid@host`; empty if that owner's lease is gone.
        labels: What its maker labelled it with.
    """

    id: str
    alive: bool
    created: float
    owner: str
    labels: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def looking_into(config: KubernetesConfig, api: Api | None) -> AsyncIterator[Api]:
    """Give the API of a backend, or one of its own for a backend that is not open.

    Raises:
        BackendUnavailableError: The cluster can't be reached, or refuses.
    """
    asked = api or Api(config)
    try:
        if api is None:
            await asked.open()
            await asked.call("GET", "/version")  # which tells the time
        yield asked
    except RefusedError as error:
        raise BackendUnavailableError(
            f"namespace {config.namespace!r} can't be looked at: {error}", backend="kubernetes"
        ) from error
    finally:
        if api is None:
            await asked.aclose()


class _Look:
    """What there is in a namespace, and who lives."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def take(self) -> None:
        """Ask the server, and this machine's inventory."""
        self._store = await anyio.to_thread.run_sync(inventory.store_id)
        # Jobs before leases and owners: what is made in between is not on the list.
        self.jobs = await _list(self._api, jobs_path(self._namespace), f"{LABEL}sandbox")
        self.leases = await _list(self._api, leases_path(self._namespace), f"{LABEL}owner")
        self._live = await anyio.to_thread.run_sync(_live)
        self._slots = await anyio.to_thread.run_sync(inventory.held_slots)
        self._owners = {str(item["metadata"]["name"]): item for item in self.leases}
        self._ends = {name: lease_end(item) for name, item in self._owners.items()}

    def is_left_over(self, job: Mapping[str, Any]) -> bool:
        """Return whether a Job is nobody's any more."""
        return is_left_over(job, self._store, self._live, self._ends, self._api.now())

    def is_over(self, lease: Mapping[str, Any]) -> bool:
        """Return whether a lease is nobody's any more."""
        return is_over(lease, self._store, self._slots, self._api.now())

    def holder(self, job: Mapping[str, Any]) -> str:
        """Return who holds a Job, or nothing."""
        owner = str((job["metadata"].get("labels") or {}).get(f"{LABEL}owner"))
        lease = self._owners.get(owner) or {}
        return str((lease.get("spec") or {}).get("holderIdentity") or "")


async def kept_in(api: Api, namespace: str) -> list[Kept]:
    """Return the sandboxes in a namespace, whoever made them, the oldest first.

    Raises:
        RefusedError: The server does not let us look.
        BackendUnreachableError: It does not answer.
    """
    look = _Look(api, namespace)
    await look.take()
    found = [
        Kept(
            str(job["metadata"]["name"]),
            not look.is_left_over(job),
            _created(job),
            look.holder(job),
            _told(job),
        )
        for job in look.jobs
    ]
    return sorted(found, key=lambda one: (one.created, one.id))


def _created(job: Mapping[str, Any]) -> float:
    text = str((job["metadata"].get("labels") or {}).get(f"{LABEL}created") or "")
    return float(text) if text.isdecimal() else 0.0


def _told(job: Mapping[str, Any]) -> dict[str, str]:
    """Return what its maker labelled it with, if nobody has spoilt that."""
    annotations = job["metadata"].get("annotations") or {}
    try:
        found = json.loads(str(annotations.get(f"{LABEL}labels") or "{}"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


async def reap_namespace(api: Api, namespace: str) -> int:
    """Remove what dead owners left and return how many sandboxes that was.

    Raises:
        RefusedError: The server does not let us look.
        BackendUnreachableError: It does not answer.
    """
    look = _Look(api, namespace)
    await look.take()
    count = 0
    for job in look.jobs:
        if look.is_left_over(job):
            count += await _removed(api, namespace, str(job["metadata"]["name"]))
    for lease in look.leases:
        if look.is_over(lease):
            await _forget(api, namespace, str(lease["metadata"]["name"]))
    await anyio.to_thread.run_sync(inventory.reap)  # what dead owners have noted
    return count


def is_left_over(
    job: Mapping[str, Any],
    store: str,
    live: frozenset[str],
    ends: Mapping[str, float],
    now: float,
) -> bool:
    """Return whether a Job is nobody's any more.

    Args:
        job: It.
        store: The inventory of this machine.
        live: The sandboxes that live owners of this machine have noted.
        ends: Until when the owners live, by the name of their lease.
        now: By the server's clock.
    """
    labels = job["metadata"].get("labels") or {}
    if labels.get(f"{LABEL}store") == store:
        return labels.get(f"{LABEL}sandbox") not in live
    expires = str(labels.get(f"{LABEL}expires") or "")
    if expires.isdecimal() and int(expires) + _AGE_SLACK < now:
        return True
    return ends.get(str(labels.get(f"{LABEL}owner")), 0.0) + _SLACK < now


def is_over(lease: Mapping[str, Any], store: str, slots: frozenset[int], now: float) -> bool:
    """Return whether the lease of an owner is nobody's any more.

    Args:
        lease: It.
        store: The inventory of this machine.
        slots: Those that live owners of this machine hold.
        now: By the server's clock.
    """
    labels = lease["metadata"].get("labels") or {}
    slot = str(labels.get(f"{LABEL}slot") or "")
    if labels.get(f"{LABEL}store") == store and slot.isdecimal() and int(slot) not in slots:
        return True
    return lease_end(lease) + _KEEP_SECONDS < now


def lease_end(lease: Mapping[str, Any]) -> float:
    """Return until when an owner lives, in seconds since the epoch."""
    spec = lease.get("spec") or {}
    try:
        renewed = datetime.fromisoformat(str(spec["renewTime"])).timestamp()
        return renewed + float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
    except (KeyError, ValueError, TypeError):
        return 0.0


async def _list(api: Api, path: str, label: str) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    query = {"labelSelector": label, "limit": _PAGE}
    while True:
        page = await api.call("GET", path, query=query)
        found += page.get("items") or ()
        more = str((page.get("metadata") or {}).get("continue") or "")
        if not more:
            return found
        query = {**query, "continue": more}


def _live() -> frozenset[str]:
    """Return the sandboxes that live owners of this inventory have noted."""
    return frozenset(found.entry.id for found in inventory.scan() if found.alive)


async def _removed(api: Api, namespace: str, name: str) -> bool:
    try:
        return await delete_job(api, namespace, name)
    except RefusedError as error:
        _log.warning("job %s of a dead owner can't be removed yet: %s", name, error)
        return False


async def _forget(api: Api, namespace: str, name: str) -> None:
    try:
        await api.call("DELETE", leases_path(namespace, name))
    except RefusedError as error:
        _log.debug("lease %s can't be removed: %s", name, error)
