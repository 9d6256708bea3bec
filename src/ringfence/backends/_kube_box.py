"""A Job whose pod runs a warden, and the way to that."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable

import anyio

from ..config import KubernetesConfig
from ..errors import (
    BackendUnavailableError,
    BackendUnreachableError,
    CreateError,
    ProtocolError,
    SandboxLostError,
    StreamBrokenError,
)
from ..warden.connection import Connection
from ..warden.frames import TOKEN_SIZE, Feature, lifetime_frame
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_body import CONTAINER, WARDEN
from ._kube_failures import End
from ._kube_job import Job
from ._kube_stream import ExecStream

__all__ = ("Box",)

_NAME = "kubernetes"
_EARLY_SECONDS = 0.1  # between attempts to reach a warden of which the kubelet has not told yet
_LATE_SECONDS = 0.5
_DEATH_SECONDS = 2.0  # for a warden that was told to end
_CAUSE_SECONDS = 5.0  # from the end of a process until the kubelet has told why
_BROKEN_SECONDS = 0.5  # the same, where the stream ended without a word
_LINGER_SECONDS = 8.0  # for a pod that is deleted to end
_RESUME_SECONDS = 20.0
_UNAUTHORIZED, _FORBIDDEN = 401, 403


class Box(Job):
    """One sandbox with a warden.

    Args:
        api: The cluster's.
        name: The sandbox's id.
        config: The backend's settings.
        put_away: Called when nothing of it is left.
        resumable: Whether a broken stream is taken up again.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        config: KubernetesConfig,
        put_away: Callable[[], None],
        *,
        resumable: bool,
    ) -> None:
        super().__init__(api, name, config, put_away)
        self._resumable = resumable
        self._token = secrets.token_bytes(TOKEN_SIZE)
        self._stream: ExecStream | None = None
        self._connection: Connection | None = None
        self._instance = b""
        self._is_up = False

    @property
    def connection(self) -> Connection:
        """The connection to its warden, once it is up."""
        assert self._connection is not None
        return self._connection

    # Its beginning.

    def check_protection(self, uid: int) -> None:
        """Refuse a sandbox without the protection that it must have.

        Args:
            uid: What its programs are to run as.

        Raises:
            CreateError: It has not.
        """
        hello = self.connection.hello
        wanted = Feature.INIT | Feature.SECCOMP | Feature.NO_NEW_PRIVS
        if hello is None or hello.features & wanted != wanted or hello.uid != uid:
            raise CreateError("the sandbox came up without its protection", backend=_NAME)

    async def _until_up(self) -> None:
        """Reach the warden. That it answers is what tells that it is up, and sooner than the API.

        The kubelet looks at its containers once a second; a process in one can be had before.
        """
        unfit: float | None = None
        while True:
            unfit = self.check_start(unfit)
            if self.is_scheduled and await self._reach():
                return
            pause = _LATE_SECONDS if not self.is_scheduled or self.is_running else _EARLY_SECONDS
            await self.wait_for_change(pause)

    async def _reach(self) -> bool:
        """Try to reach the warden for the first time."""
        try:
            await self._connect()
            self._instance = (await self.connection.greet()).instance
        except RefusedError as error:
            if error.status in (_UNAUTHORIZED, _FORBIDDEN):
                raise BackendUnavailableError(
                    f"'create' or 'get' on pods/exec is not permitted: {error}",
                    backend=_NAME,
                    hint="docs/kubernetes.md has the role that is needed",
                ) from error
            return False
        except ProtocolError as error:
            raise CreateError(f"no warden answers in the pod: {error}", backend=_NAME) from error
        except (SandboxLostError, BackendUnreachableError):
            return False
        self._is_up = True
        return True

    async def _connect(self) -> None:
        """Have a process run inside that hands its own streams to the warden."""
        self._stream = stream = await self._api.exec(
            self.namespace, self.pod_name, CONTAINER, [WARDEN, "connect"], self._on_end
        )
        self._connection = connection = Connection(stream, self._lost)
        connection.queue(self._token)
        await connection.send(b"")

    async def resume(self) -> Connection:
        """Return a new connection to the warden, after the stream has broken.

        Raises:
            SandboxLostError: It can't be reached any more.
        """
        error: Exception | None = None
        with anyio.move_on_after(_RESUME_SECONDS):
            while self.end is None:
                try:
                    self._is_up = False
                    await self._connect()
                    hello = await self.connection.greet()
                except (RefusedError, BackendUnreachableError, SandboxLostError) as caught:
                    error = caught
                else:
                    self._is_up = True
                    if hello.instance == self._instance:
                        return self.connection
                    self.connection.close()
                    raise self._give_up("another warden answered in its place")
                await self.look()
                await self.wait_for_change(_LATE_SECONDS)
        why = self.end.text if self.end else f"its warden does not take up a new stream ({error})"
        raise self._give_up(why)

    def _give_up(self, why: str) -> SandboxLostError:
        cause = self.end.cause if self.end else "unreachable"
        return self._end_lost(SandboxLostError(why, cause=cause))

    # What is heard of it.

    def died(self, end: End) -> None:
        fresh = self.end is None
        super().died(end)
        if fresh and self._is_up and self._closing is None and self._connection is not None:
            self._connection.lose(SandboxLostError(f"its pod is gone: {end.text}", cause=end.cause))

    async def _on_end(self) -> None:
        """The stream has ended: find out why before its reader is told."""
        stream, connection = self._stream, self._connection
        if not self._is_up or stream is None or connection is None or connection.lost is not None:
            return
        if self._closing is not None:
            return
        with anyio.move_on_after(_CAUSE_SECONDS if stream.status else _BROKEN_SECONDS):
            await self._dead.wait()
        if self.end is None and await self.look() in ("running", "unreachable"):
            if self._resumable:
                connection.break_off(
                    StreamBrokenError(
                        f"the stream to sandbox {self.name} broke, and its running commands were "
                        "killed",
                        backend=_NAME,
                        hint="the sandbox and its files live on: call again",
                    )
                )
            else:
                self.died(End("its stream broke", stream.why))

    def _lost(self, error: SandboxLostError) -> SandboxLostError:
        """Say why a sandbox is lost that has ended or can't be trusted, and have it removed."""
        if not self._is_up:
            return error  # it was only an attempt to reach it
        return self._end_lost(error)

    def _end_lost(self, error: SandboxLostError) -> SandboxLostError:
        if error.cause == "died" and self.end is not None:
            error.cause = self.end.cause
        error.message = f"sandbox {self.name} is lost: {error.message}"
        error.args = (error.message,)
        error.backend = _NAME
        if self._closing is None:
            self._tell_last()
        self._closing = self._end(kill=True)
        return error

    # Its end.

    async def _tell_to_end(self) -> bool:
        """Tell the warden to end, and return whether it did."""
        if self.end is not None or not self._is_up:
            return self.end is not None
        if isinstance(self.connection.lost, StreamBrokenError):
            await self._connect_to_end()
        if self.connection.lost is not None or self._stream is None:
            return False
        self.connection.send_last(lifetime_frame(0.001))
        return await self._stream.until_end(_DEATH_SECONDS)

    async def _connect_to_end(self) -> None:
        """Take a broken stream up once more: without it the cluster ends the pod, and later."""
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                await self._connect()
                await self.connection.greet()
        except (RefusedError, BackendUnreachableError, SandboxLostError, TimeoutError):
            return

    def _tell_last(self) -> None:
        """Tell the warden to end, before the stream is closed, and let that wait for its end.

        An honest warden ends everything at once; another is ended by the cluster.
        """
        if self._is_up and self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.send_now(lifetime_frame(0.001))
            self._stream.linger(_LINGER_SECONDS)

    async def _until_silent(self) -> None:
        if not self._is_up or self._stream is None:
            return  # nothing was ever started in it
        if isinstance(self.connection.lost, StreamBrokenError):
            await self._gone.wait()  # its end says nothing
        await self._stream.until_ended()

    def _hang_up(self) -> None:
        self._tell_last()
        if self._connection is not None:
            self._connection.close()
        elif self._stream is not None:
            self._stream.close()
