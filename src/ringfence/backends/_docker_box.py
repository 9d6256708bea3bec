"""One container, from before it is created until nothing of it is left.

The engine removes it by itself when it ends, so that what a dead owner leaves does not stay. Here
it is removed by force where that does not happen, or where the engine was told not to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar

import anyio

from .. import inventory
from ..errors import (
    BackendUnreachableError,
    CreateError,
    CreateTimeoutError,
    ProtocolError,
    SandboxError,
    SandboxLostError,
    StreamBrokenError,
)
from ..warden.connection import Connection
from ..warden.frames import TOKEN_SIZE, lifetime_frame, token_frame
from ..warden.stream import ByteStream
from ._docker_attach import ContainerStream
from ._docker_body import WARDEN
from ._docker_engine import Engine, RefusedError
from ._docker_fate import UNREACHABLE, Fate
from ._docker_refusals import creation_error, remove_container, says_taken
from ._docker_socket import WardenSocket, taken_stream

__all__ = ("Box",)

_log = logging.getLogger(__name__)

_NAME = "container"
_DEATH_SECONDS = 2.0  # for a warden that was told to end
_CAUSE_SECONDS = 1.0  # from the end of a stream until the engine has told why
_GONE_SECONDS = 5.0  # for the engine to remove what has ended
_REMOVE_SECONDS = 20.0
_RESUME_SECONDS = 10.0
_AWAY_SECONDS = 0.2  # between two looks at an engine that is away


class Box:
    """One container.

    Args:
        engine: The engine.
        name: The container's name, which is the sandbox's id.
        put_away: Frees what lies beside the container, when that is gone.
        patience: Seconds that its warden waits for another stream when its own has broken.

    Attributes:
        causes: What the exit codes of its PID 1 mean.
        name: The container's name.
        fate: What is heard of it.
        started: Whether the engine has been asked to start it.
    """

    causes: ClassVar[Mapping[int, str]] = {}

    def __init__(
        self,
        engine: Engine,
        name: str,
        put_away: Callable[[], Awaitable[None]],
        *,
        patience: float = 0.0,
    ) -> None:
        self.name = name
        self._engine = engine
        self._put_away = put_away
        self._stream: ByteStream | None = None
        self._connection: Connection | None = None
        self.fate = Fate(engine, name, self._tell, self.causes)
        self._is_theirs = False
        self._goes_by_itself = True
        self.started = False
        self._closing: asyncio.Task[None] | None = None
        self._patience = patience
        self._token = secrets.token_bytes(TOKEN_SIZE) if patience else b""
        self._broken_at = 0.0

    async def make(
        self, body: dict[str, Any], timeout: float, socket: WardenSocket | None = None
    ) -> Connection:
        """Create and start the container and return the connection to its warden.

        Args:
            body: The request that creates it.
            timeout: Seconds for all of it.
            socket: Where its warden is to call, if it can.

        Raises:
            SandboxError: It could not be made. What there is of it is for `remove` to take away.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._make(body, timeout, socket)
        except TimeoutError:
            raise CreateTimeoutError(
                f"the sandbox was not ready within {timeout:g} s", backend=_NAME
            ) from None

    async def _make(
        self, body: dict[str, Any], timeout: float, socket: WardenSocket | None
    ) -> Connection:
        self._goes_by_itself = body["HostConfig"]["AutoRemove"]
        try:
            create = self._engine.docker.containers.create(body, name=self.name)
            container = await self._engine.call("a container", create, timeout)
            self._stream = attached = await self._engine.attach(self.name, self._on_end, timeout)
            self.started = True
            await self._engine.call("a start", container.start(), timeout)
        except RefusedError as error:
            self._is_theirs = says_taken(error)
            raise creation_error(error, self.name) from error
        connection = await self._greet(attached, socket)
        if self._token:
            await connection.send(token_frame(self._token))
        return connection

    async def _greet(self, attached: ContainerStream, socket: WardenSocket | None) -> Connection:
        """Return the connection to a warden that has said hello."""
        stream: ByteStream = attached
        if socket is not None:
            stream = self._stream = await taken_stream(socket, attached, self._on_end)
        self._connection = connection = Connection(stream, self._lost)
        try:
            await connection.greet()
        except SandboxLostError as error:
            with anyio.move_on_after(_CAUSE_SECONDS), contextlib.suppress(ProtocolError):
                while await attached.receive():
                    pass  # to its end: why it could not start is on its stderr
            raise CreateError(
                f"the sandbox could not be started: {attached.words or error.message}",
                backend=_NAME,
            ) from None
        finally:
            if stream is not attached:
                attached.close()
        return connection

    async def resume(self) -> Connection:
        """Return a new connection to the warden, after the stream has broken.

        An engine that is away and leaves its containers running is waited for, as long as the
        warden waits too.

        Raises:
            SandboxLostError: It can't be reached any more.
        """
        assert self._connection is not None
        before = self._connection.hello
        connection = await self._reach_again()
        hello = connection.hello
        if before is None or hello is None or hello.instance != before.instance:
            connection.close()
            raise self._gone_for_good("another warden answered in its place")
        return connection

    async def _reach_again(self) -> Connection:
        last = self._broken_at + self._patience
        while True:
            try:
                async with asyncio.timeout(_RESUME_SECONDS):
                    connection = await self._connect_anew()
                    await connection.greet()
                    return connection
            except TimeoutError:
                raise self._gone_for_good("its warden does not take up a new stream") from None
            except RefusedError as error:
                raise self._gone_for_good(f"it can't be reached: {error}") from error
            except BackendUnreachableError as error:
                waits = self._engine.leaves_containers and self._closing is None
                if not waits or time.monotonic() > last:
                    raise self._gone_for_good(f"it can't be reached: {error}") from error
            await asyncio.sleep(_AWAY_SECONDS)

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
        return self._lost(SandboxLostError(why, cause=self.fate.cause or "unreachable"))

    # What is heard of it.

    def _tell(self, error: SandboxLostError) -> None:
        """Tell those who wait for something in it that it is lost."""
        if self._closing is None and self._connection is not None:
            self._connection.lose(error)

    async def _on_end(self) -> None:
        """The stream has ended: find out why before its reader is told."""
        if not self.started or self._connection is None or self._connection.lost is not None:
            return
        if await self.fate.heard_within(_CAUSE_SECONDS):
            return
        state = await self.fate.state()
        if self._can_be_resumed(state):
            self._broken_at = time.monotonic()
            broken = StreamBrokenError(
                f"the stream to sandbox {self.name} broke, and its running commands were killed",
                backend=_NAME,
                hint="the sandbox and its files live on: call again",
            )
            self._connection.break_off(broken)
        elif state == UNREACHABLE:
            self.fate.cause = "the engine is gone"
        elif state in ("running", "paused"):
            self.fate.cause = "its stream broke"
        else:
            self.fate.cause = "removed"

    def _can_be_resumed(self, state: str) -> bool:
        """Whether a container whose stream has ended lives on, and its warden with it."""
        lives = state == "running" or (state == UNREACHABLE and self._engine.leaves_containers)
        return lives and bool(self._token) and self._closing is None

    def _lost(self, error: SandboxLostError) -> SandboxLostError:
        """Have a sandbox removed that has ended or can't be trusted, and say why it is lost."""
        if error.cause == "died" and self.fate.cause:
            error.cause = self.fate.cause
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
                    await self.fate.dead.wait()
            finally:  # also if whoever waits for it has no more time
                self._connection.close()
        elif self._connection is not None:
            self._connection.close()
        elif self._stream is not None:
            self._stream.close()
        if self.fate.dead.is_set():
            self._engine.tasks.spawn(self.remove())
        else:
            await self.remove()

    def _is_connected(self) -> bool:
        connection = self._connection
        return connection is not None and connection.lost is None and not self.fate.dead.is_set()

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
        if self.fate.dead.is_set() and self._goes_by_itself:
            with anyio.move_on_after(_GONE_SECONDS):
                await self.fate.gone.wait()
                return
        if self.fate.is_paused:  # an engine may try for long to kill what can't take a signal
            with contextlib.suppress(RefusedError):
                await self._engine.call("a removal", self._engine.container(self.name).unpause())
        await remove_container(self._engine, self.name)
