"""Two watches for all pods of a backend: what they do, and why the cluster can't make them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import BackendUnreachableError
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_body import LABEL
from ._kube_job import Job

__all__ = ("Watch",)

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0
_Take = Callable[[str, Mapping[str, Any]], None]


class Watch:
    """Tells Jobs what happens to them and their pods.

    Each stream begins with a list, goes on from the version of that, and begins anew where it
    breaks or where the server has forgotten that version. What happened in between is found by
    the next list.

    Args:
        api: The cluster's.
        namespace: Where the pods are.
        owner: The name of their owner.
        jobs: The Jobs by name; those that are not in it are somebody else's.
    """

    def __init__(self, api: Api, namespace: str, owner: str, jobs: Mapping[str, Job]) -> None:
        self._api = api
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._events = f"/api/v1/namespaces/{namespace}/events"
        self._selector = {"labelSelector": f"{LABEL}owner={owner}"}
        self._jobs = jobs
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        failed = {"fieldSelector": "involvedObject.kind=Job,reason=FailedCreate"}
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow(self._pods, self._selector, self._take_pod, whole=True)),
            loop.create_task(self._follow(self._events, failed, self._take_event, whole=False)),
        ]

    async def _follow(
        self, path: str, query: Mapping[str, str], take: _Take, *, whole: bool
    ) -> None:
        """Follow a collection for ever.

        Args:
            path: Where it is.
            query: What of it.
            take: Is told what has happened to an object.
            whole: Whether what is missing from a list is gone.
        """
        delay = _FIRST_DELAY
        version = ""
        while True:
            began = time.monotonic()
            try:
                if not version:
                    version = await self._list(path, query, take, whole=whole)
                asked = {**query, "resourceVersion": version, "allowWatchBookmarks": "true"}
                async for event in self._api.watch(path, asked):
                    found = event.get("object") or {}
                    version = str((found.get("metadata") or {}).get("resourceVersion") or version)
                    if event.get("type") != "BOOKMARK":
                        take(str(event.get("type")), found)
            except RefusedError:  # 410, or whatever a list will tell as well
                version = ""
            except BackendUnreachableError:
                version = ""  # it may come back as another
            if time.monotonic() - began > _LONGEST_DELAY:
                delay = _FIRST_DELAY
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 2, _LONGEST_DELAY)

    async def _list(self, path: str, query: Mapping[str, str], take: _Take, *, whole: bool) -> str:
        known = set(self._jobs)  # what is made from now on need not be on the list
        listing = await self._api.call("GET", path, query=query)
        items = listing.get("items") or ()
        for item in items:
            take("ADDED", item)
        if whole:
            there = {_sandbox(item) for item in items}
            for name in known - there:
                if (job := self._jobs.get(name)) is not None:
                    job.missing()
        return str((listing.get("metadata") or {}).get("resourceVersion") or "")

    def _take_pod(self, kind: str, pod: Mapping[str, Any]) -> None:
        job = self._jobs.get(_sandbox(pod))
        if job is not None:
            job.take_pod(pod, deleted=kind == "DELETED")

    def _take_event(self, kind: str, event: Mapping[str, Any]) -> None:
        job = self._jobs.get(str((event.get("involvedObject") or {}).get("name") or ""))
        if job is not None and kind != "DELETED":
            job.take_event(event)

    async def aclose(self) -> None:
        """Stop. Safe to call again."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _sandbox(item: Mapping[str, Any]) -> str:
    labels = (item.get("metadata") or {}).get("labels") or {}
    return str(labels.get(f"{LABEL}sandbox") or "")
