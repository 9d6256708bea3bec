"""The lease of an owner: an object in the cluster that says how long its sandboxes are wanted.

It is renewed from a thread with an event loop and a connection of its own, since the program's loop
may be busy for longer than a lease lives. Times are those of the server's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import threading
from datetime import UTC, datetime

import anyio
import anyio.to_thread

from .. import inventory
from ..config import KubernetesConfig
from ..errors import BackendUnavailableError, SandboxError
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_objects import lease_body

__all__ = ("LEASE_SECONDS", "OwnerLease", "leases_path")

_log = logging.getLogger(__name__)

LEASE_SECONDS = 30
"""How long a lease lives without being renewed."""

_RENEW_SECONDS = 10.0
_RETRY_SECONDS = 2.0
_READY_SECONDS = 10.0
_STOP_SECONDS = 5.0
_NOT_FOUND = 404


def leases_path(namespace: str, name: str = "") -> str:
    """Return the path of a namespace's leases, or of one."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return path + (f"/{name}" if name else "")


def api_time(seconds: float) -> str:
    """Return a moment as the API writes it, with microseconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class OwnerLease:
    """One owner's.

    Args:
        api: The cluster's, for what the program's own loop does.
        config: For a connection of the thread's own.
        store: The inventory of this machine.

    Attributes:
        name: Its name, which all that the owner makes bears as a label.
    """

    def __init__(self, api: Api, config: KubernetesConfig, store: str) -> None:
        self.name = f"ringfence-{secrets.token_hex(8)}"
        self._api = api
        self._config = config
        self._store = store
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()  # of the thread's loop
        self._taken = False

    async def take(self) -> None:
        """Make it, and renew it from now on.

        Raises:
            BackendUnavailableError: It can't be made.
        """
        try:
            await self._make(self._api)
        except RefusedError as error:
            raise BackendUnavailableError(
                f"the owner's lease can't be made: {error}", backend="kubernetes"
            ) from error
        self._taken = True
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._renew()), name="ringfence-kube-lease", daemon=True
        )
        self._thread.start()
        await anyio.to_thread.run_sync(self._ready.wait, _READY_SECONDS)

    async def _make(self, api: Api) -> None:
        holder = f"{os.getpid()}@{socket.gethostname()}"
        now = api_time(api.now())
        slot = inventory.owner().slot
        body = lease_body(self.name, self._store, slot, holder, LEASE_SECONDS, now)
        await api.call("POST", leases_path(self._config.namespace), body)

    async def _renew(self) -> None:
        self._loop = asyncio.get_running_loop()
        api = Api(self._config)
        try:
            while not self._stop.is_set():
                went_well = await self._renew_once(api)
                self._ready.set()
                with anyio.move_on_after(_RENEW_SECONDS if went_well else _RETRY_SECONDS):
                    await self._stop.wait()
        finally:
            self._loop = None
            await api.aclose()

    async def _renew_once(self, api: Api) -> bool:
        """Renew it, and return whether that went well."""
        path = leases_path(self._config.namespace, self.name)
        try:
            if not api.where:
                await api.open()
                await api.call("GET", "/version")  # which tells the time
            now = api_time(api.now())
            try:
                await api.call("PATCH", path, {"spec": {"renewTime": now}}, patience=0)
            except RefusedError as error:
                if error.status != _NOT_FOUND or self._stop.is_set():
                    raise
                await self._make(api)  # another has taken us for dead
        except (SandboxError, RefusedError) as error:
            _log.warning("the lease %s can't be renewed now: %s", self.name, error)
            return False
        return True

    async def release(self) -> None:
        """Give it up: nothing of the owner's is left, or is for others to remove."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if (loop := self._loop) is not None:
                with contextlib.suppress(RuntimeError):  # it has just ended
                    loop.call_soon_threadsafe(self._stop.set)
            await anyio.to_thread.run_sync(thread.join, _STOP_SECONDS)
        if not self._taken:
            return
        self._taken = False
        try:
            path = leases_path(self._config.namespace, self.name)
            await self._api.call("DELETE", path, patience=0)
        except (SandboxError, RefusedError) as error:
            _log.warning("the lease %s stays until it has run out: %s", self.name, error)
