"""One Job and its pod, from before it is created until nothing of it is left."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from .. import inventory
from ..config import KubernetesConfig
from ..errors import CreateError, CreateTimeoutError, SandboxError
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_body import CONTAINER
from ._kube_failures import creation_error
from ._kube_pod import Pod, jobs_path

__all__ = ("Job", "delete_job")

_log = logging.getLogger(__name__)

_NAME = "kubernetes"
_CONFLICT, _NOT_FOUND = 409, 404
_REMOVE_SECONDS = 20.0
_GONE_SECONDS = 10.0  # for the cluster to end a pod that was deleted


async def delete_job(api: Api, namespace: str, name: str) -> bool:
    """Delete a Job with its pods; return whether this call did it.

    One that is not there has been taken away by the cluster or by another.

    Raises:
        RefusedError: The server does not do it.
        BackendUnreachableError: It does not answer.
    """
    try:
        body = {"propagationPolicy": "Background"}
        await api.call("DELETE", jobs_path(namespace, name), body)
    except RefusedError as error:
        if error.status == _NOT_FOUND:
            return False
        raise
    return True


class Job(Pod):
    """One Job.

    Args:
        api: The cluster's.
        name: Its name, which is the sandbox's id.
        config: The backend's settings.
        put_away: Called when nothing of it is left.
    """

    def __init__(
        self, api: Api, name: str, config: KubernetesConfig, put_away: Callable[[], None]
    ) -> None:
        super().__init__(api, name, config)
        self._put_away = put_away
        self._asking: asyncio.Future[Any] | None = None
        self._closing: asyncio.Task[None] | None = None

    # Its beginning.

    async def make(self, body: dict[str, Any], timeout: float) -> None:
        """Create the Job and wait until it is up.

        Raises:
            SandboxError: It could not be made. What there is of it is for `remove` to take away.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._create(body, timeout)
                await self._until_up()
        except TimeoutError:
            raise CreateTimeoutError(
                f"the sandbox was not ready within {timeout:g} s: {self._state()}",
                backend=_NAME,
                hint="a large image takes its time: start_timeout is how long it may",
            ) from None

    async def _create(self, body: dict[str, Any], timeout: float) -> None:
        # What has reached the server can't be taken back, so `remove` waits for its answer.
        call = self._api.call("POST", jobs_path(self.namespace), body, seconds=timeout)
        self._asking = asyncio.ensure_future(call)
        try:
            made = await asyncio.shield(self._asking)
        except RefusedError as error:
            if error.status != _CONFLICT:
                raise creation_error(error, self.namespace) from error
            # Its name is random: an earlier attempt, of which we heard no answer, has made it.
            made = {}
        _check_kept(made)

    async def _until_up(self) -> None:
        """Return when it can be used."""
        raise NotImplementedError

    # Its end.

    async def aclose(self) -> None:
        """End it; when this returns, nothing that ran inside lives.

        What is left of it in the cluster then is on its way out.
        """
        await asyncio.shield(self._end(kill=False))

    async def discard(self) -> None:
        """Remove it by force, whatever state it is in."""
        await asyncio.shield(self._end(kill=True))

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """End it because nobody has it any more; says so if nobody has closed it."""
        if self._closing is not None:
            return
        warnings.warn(f"sandbox {self.name} was never closed", ResourceWarning, stacklevel=2)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.end_in_background)

    def end_by_force(self) -> None:
        """Remove it by force without waiting for that."""
        self._closing = self._end(kill=True)

    def log(self) -> AsyncIterator[bytes]:
        """Return what its container says, while it runs and to the end."""
        return self._api.log(self.namespace, self.pod_name, CONTAINER)

    def end_in_background(self) -> None:
        """End it without waiting for that."""
        self._closing = self._end(kill=False)

    def _end(self, *, kill: bool) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = self._api.tasks.task(self._close(kill))
        return self._closing

    async def _close(self, kill: bool) -> None:
        try:
            ended = not kill and await self._tell_to_end()
            self._hang_up()
            await self.remove()
            if not ended:
                await self.until_gone()
        finally:
            self._put_away()

    async def _tell_to_end(self) -> bool:
        """Tell what runs inside to end, and return whether it did."""
        return self.end is not None and self.end.code is not None

    def _hang_up(self) -> None:
        """Close what leads into it."""

    async def until_gone(self) -> None:
        """Return when nothing runs in its pod any more, or after a bounded time.

        The API tells that late, so what leads into the pod is waited for too.
        """
        if self.end is not None and self.end.code is not None:
            return
        silent = asyncio.ensure_future(self._until_silent())
        gone = asyncio.ensure_future(self._gone.wait())
        await asyncio.wait(
            (silent, gone), timeout=_GONE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        silent.cancel()
        gone.cancel()

    async def _until_silent(self) -> None:
        """Return when what leads into its pod has ended, or where nothing runs there yet."""

    async def remove(self) -> None:
        """Remove the Job and its pod. Bounded, and safe to call again."""
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                if self._asking is not None:
                    await asyncio.wait((self._asking,))
                    if not self._asking.cancelled():
                        self._asking.exception()  # which is known, or nobody's any more
                    await delete_job(self._api, self.namespace, self.name)
        except (SandboxError, RefusedError, TimeoutError) as error:
            # Nobody owns it from now on, so the next reaper takes it.
            _log.warning("job %s can't be removed now: %s", self.name, error)
        finally:
            inventory.owner().discard(self.name)


def _check_kept(made: Mapping[str, Any]) -> None:
    """Refuse a server that has dropped a protection: an old one drops what it does not know.

    Raises:
        CreateError: It did.
    """
    if not made:
        return
    pod = made["spec"]["template"]["spec"]
    inside = pod["containers"][0].get("securityContext") or {}
    around = pod.get("securityContext") or {}
    kept = (
        inside.get("seccompProfile")
        and inside.get("readOnlyRootFilesystem")
        and inside.get("allowPrivilegeEscalation") is False
        and around.get("runAsNonRoot")
    )
    if not kept:
        raise CreateError(
            "the cluster does not keep the protection that a sandbox must have",
            backend=_NAME,
            hint="it is too old, or something changes pods as they are made",
        )
