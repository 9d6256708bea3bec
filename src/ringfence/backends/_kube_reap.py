"""Finds what dead owners left in a namespace, and removes it.

Every Job bears the name of its owner's lease, and of the inventory of the owner's machine. A Job of
this machine's inventory is a left-over if no live owner here has noted its sandbox: the kernel's
locks say so at once. One of another machine is a left-over when its owner's lease is gone or has
run out, by the server's clock, or when it has outlived its age. What does not bear our labels is
never touched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import anyio.to_thread

from .. import inventory
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_body import LABEL
from ._kube_job import delete_job
from ._kube_lease import LEASE_SECONDS, leases_path
from ._kube_pod import jobs_path

__all__ = ("is_left_over", "lease_end", "reap_namespace")

_log = logging.getLogger(__name__)
_PAGE = "500"
_SLACK = 5.0  # seconds, for the second that a clock is read to and for what is under way
_AGE_SLACK = 120.0  # behind the deadlines of the warden, the pod and the Job
_KEEP_SECONDS = 600.0  # a lease that ran out so long ago is nobody's


async def reap_namespace(api: Api, namespace: str) -> int:
    """Remove what dead owners left and return how many sandboxes that was.

    Raises:
        RefusedError: The server does not let us look.
        BackendUnreachableError: It does not answer.
    """
    store = await anyio.to_thread.run_sync(inventory.store_id)
    # Jobs before leases and owners: what is made in between is not on the list.
    jobs = await _list(api, jobs_path(namespace), f"{LABEL}sandbox")
    leases = await _list(api, leases_path(namespace), f"{LABEL}owner")
    live = await anyio.to_thread.run_sync(_live)
    ends = {str(item["metadata"]["name"]): lease_end(item) for item in leases}
    count = 0
    for job in jobs:
        if is_left_over(job, store, live, ends, api.now()):
            count += await _removed(api, namespace, str(job["metadata"]["name"]))
    for name, end in ends.items():
        if end + _KEEP_SECONDS < api.now():
            await _forget(api, namespace, name)
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
