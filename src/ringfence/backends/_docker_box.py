"""One container, from before it is created until nothing of it is left.

The engine removes it by itself when it ends, so that what a dead owner leaves does not stay. Here
it is removed by force only where that does not happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from .. import inventory
from ..errors import (
    BackendUnreachableError,
    CreateError,
    CreateTimeoutError,
    SandboxError,
    SandboxLostError,
    StreamBrokenError,
)
from ..warden.connection import Connection
from ..warden.frames import TOKEN_SIZE, lifetime_frame, token_frame
from ._docker_attach import ContainerStream
from ._docker_body import WARDEN
from ._docker_engine import Engine, RefusedError
from ._docker_refusals import creation_error, remove_container, says_taken

__all__ = ("Box",)

_log = logging.getLogger(__name__)

_NAME = "container"
_DEATH_SECONDS = 2.0  # for a warden that was told to end
_CAUSE_SECONDS = 1.0  # from the end of a stream until the engine has told why
_GONE_SECONDS = 5.0  # for the engine to remove what has ended
_REMOVE_SECONDS = 20.0
_PAUSE_SECONDS = 2.0
_RESUME_SECONDS = 10.0
_KILLED = 137


class Box:
    """One container.

    Args:
        engine: The engine.
        name: The container's name, which is the sandbox's id.
        put_away: Frees what lies beside the container, when that is gone.
        resumable: Whether a broken stream is taken up again.

    Attributes:
        name: The container's name.
        started: Whether the engine has been asked to start it.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        put_away: Callable[[], Awaitable[None]],
        *,
        resumable: bool = False,
    ) -> None:
        self.name = name
        self._engine = engine
        self._put_away = put_away
        self._stream: ContainerStream | None = None
        self._connection: Connection | None = None
        self._dead = asyncio.Event()
        self._gone = asyncio.Event()
        self._cause = ""
        self._out_of_memory = False
        self._is_theirs = False
        self._is_paused = False
        self.started = False
        self._closing: asyncio.Task[None] | None = None
        self._token = secrets.token_bytes(TOKEN_SIZE) if resumable else b""

    async def make(self, body: dict[str, Any], timeout: float) -> Connection:
        """Create and start the container and return the connection to its warden.

        Raises:
            SandboxError: It could not be made. What there is of it is for `remove` to take away.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._make(body, timeout)
        except TimeoutError:
            raise CreateTimeoutError(
                f"the sandbox was not ready within {timeout:g} s", backend=_NAME
            ) from None

    async def _make(self, body: dict[str, Any], timeout: float) -> Connection:
        try:
            create = self._engine.docker.containers.create(body, name=self.name)
            container = await self._engine.call("a container", create, timeout)
            self._stream = await self._engine.attach(self.name, self._on_end, timeout)
            self._connection = connection = Connection(self._stream, self._lost)
            self.started = True
            await self._engine.call("a start", container.start(), timeout)
        except RefusedError as error:
            self._is_theirs = says_taken(error)
            raise creation_error(error, self.name) from error
        try:
            await connection.greet()
        except SandboxLostError as error:
            words = self._stream.words
            raise CreateError(
                f"the sandbox could not be started: {words or error.message}", backend=_NAME
            ) from None
        if self._token:
            await connection.send(token_frame(self._token))
        return connection

    async def resume(self) -> Connection:
        """Return a new connection to the warden, after the stream has broken.

        Raises:
            SandboxLostError: It can't be reached any more.
        """
        assert self._connection is not None
        before = self._connection.hello
        try:
            async with asyncio.timeout(_RESUME_SECONDS):
                connection = await self._connect_anew()
                hello = await connection.greet()
        except TimeoutError:
            raise self._gone_for_good("its warden does not take up a new stream") from None
        except (RefusedError, BackendUnreachableError) as error:
            raise self._gone_for_good(f"it can't be reached: {error}") from error
        if before is None or hello.instance != before.instance:
            connection.close()
            raise self._gone_for_good("another warden answered in its place")
        return connection

    async def _connect_anew(self) -> Connection:
        """Have a process run inside that hands its own streams to the warden."""
        container = self._engine.container(self.name)
        create = container.exec([WARDEN, "connect"], stdin=True)
        process = await self._engine.call("a process", create)
        stream = await self._engine.start_exec(process.id, self._on_end)
        self._stream = stream
        self._connection = connection = Connection(stream, self._lost)
        connection.queue(self._token)
        await connection.send(b"")
        return connection

    def _gone_for_good(self, why: str) -> SandboxLostError:
        return self._lost(SandboxLostError(why, cause=self._cause or "unreachable"))

    # What is heard of it.

    def take_event(self, event: dict[str, Any]) -> None:
        """Take what the engine says has happened to it."""
        action = event.get("Action", event.get("status"))
        if action == "oom":
            self._out_of_memory = True
        elif action == "die":
            code = str(event.get("Actor", {}).get("Attributes", {}).get("exitCode", ""))
            self.died("killed" if code == str(_KILLED) else f"ended (exit code {code})")
        elif action == "destroy":
            self.died("removed")
            self._gone.set()
        elif action == "pause":
            self._engine.tasks.spawn(self._look_after_pause())

    def died(self, cause: str) -> None:
        """Note that it has ended, and tell everybody who waits for it."""
        if self._dead.is_set():
            return
        if self._out_of_memory and cause == "killed":
            cause = "out of memory"
        self._cause = cause
        self._dead.set()
        if self._closing is None:
            self._tell(SandboxLostError(f"its container is gone: {cause}", cause=cause))

    def _tell(self, error: SandboxLostError) -> None:
        """Tell those who wait for something in it that it is lost."""
        if self._connection is not None:
            self._connection.lose(error)

    async def _look_after_pause(self) -> None:
        """A short pause does no harm; one that lasts is a loss."""
        await asyncio.sleep(_PAUSE_SECONDS)
        if await self._state() == "paused":
            self._is_paused = True
            self._tell(SandboxLostError("its container was paused", cause="paused"))

    async def _state(self) -> str:
        """Return what the engine says of its state; empty if there is none."""
        try:
            found = await self._engine.call("a state", self._engine.container(self.name).show())
        except RefusedError:
            return ""
        except BackendUnreachableError:
            return "unreachable"
        return str(found.get("State", {}).get("Status", ""))

    async def _on_end(self) -> None:
        """The stream has ended: find out why before its reader is told."""
        if not self.started or self._connection is None or self._connection.lost is not None:
            return
        with anyio.move_on_after(_CAUSE_SECONDS):
            await self._dead.wait()
            return
        state = await self._state()
        if state == "unreachable":
            self._cause = "the engine is gone"
        elif state == "running" and self._token and self._closing is None:
            broken = StreamBrokenError(
                f"the stream to sandbox {self.name} broke, and its running commands were killed",
                backend=_NAME,
                hint="the sandbox and its files live on: call again",
            )
            self._connection.break_off(broken)
        elif state in ("running", "paused"):
            self._cause = "its stream broke"
        else:
            self._cause = "removed"

    def _lost(self, error: SandboxLostError) -> SandboxLostError:
        """Have a sandbox removed that has ended or can't be trusted, and say why it is lost."""
        if error.cause == "died" and self._cause:
            error.cause = self._cause
        error.message = f"sandbox {self.name} is lost: {error.message}"
        error.args = (error.message,)
        error.backend = _NAME
        self._closing = self._end(kill=True)
        return error

    # Its end.

    async def aclose(self) -> None:
        """End it; when this returns, nothing that ran inside lives.

        What is left of it then is removed in the background.
        """
        await asyncio.shield(self._end(kill=False))

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """End it because nobody has it any more; says so if nobody has closed it."""
        if self._closing is not None:
            return
        warnings.warn(f"sandbox {self.name} was never closed", ResourceWarning, stacklevel=2)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.end)

    def _end(self, *, kill: bool) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = self._engine.tasks.task(self._close(kill))
        return self._closing

    async def _close(self, kill: bool) -> None:
        if not kill and self._is_connected() and self._connection is not None:
            self._connection.send_last(lifetime_frame(0.001))
            try:
                with anyio.move_on_after(_DEATH_SECONDS):
                    await self._dead.wait()
            finally:  # also if whoever waits for it has no more time
                self._connection.close()
        elif self._connection is not None:
            self._connection.close()
        elif self._stream is not None:
            self._stream.close()
        if self._dead.is_set():
            self._engine.tasks.spawn(self.remove())
        else:
            await self.remove()

    def _is_connected(self) -> bool:
        connection = self._connection
        return connection is not None and connection.lost is None and not self._dead.is_set()

    def end(self) -> None:
        """End it in the background."""
        self._closing = self._end(kill=False)

    async def discard(self) -> None:
        """Remove it by force, whatever state it is in."""
        await asyncio.shield(self._end(kill=True))

    async def remove(self) -> None:
        """Remove the container and what lies beside it. Bounded, and safe to call again."""
        try:
            async with asyncio.timeout(_REMOVE_SECONDS):
                await self._remove_container()
                await self._put_away()
        except (SandboxError, RefusedError, TimeoutError) as error:
            # Nobody owns it from now on, so the next reaper takes it.
            _log.warning("container %s can't be removed now: %s", self.name, error)
        finally:
            inventory.owner().discard(self.name)

    async def _remove_container(self) -> None:
        if self._is_theirs:
            return
        if self._dead.is_set():
            with anyio.move_on_after(_GONE_SECONDS):
                await self._gone.wait()
                return
        if self._is_paused:  # an engine may try for long to kill what can't take a signal
            with contextlib.suppress(RefusedError):
                await self._engine.call("a removal", self._engine.container(self.name).unpause())
        await remove_container(self._engine, self.name)
