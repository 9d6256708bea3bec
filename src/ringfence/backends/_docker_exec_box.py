"""One container whose commands come by the engine's exec API.

PID 1 is an init that reaps. Each command, and each file operation, is an exec of its own: a warden
that serves this one and holds its deadline, its caps and its tree. It is no PID 1, so a program can
kill it; what it then leaves is adopted by PID 1, and swept by one more exec. Where that can't be
shown to be complete, the container goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import anyio
from aiodocker.execs import Exec

from ..errors import (
    BackendUnreachableError,
    CreateError,
    LimitError,
    ProtocolError,
    SandboxError,
    SandboxLostError,
)
from ..models import Limits
from ..warden.connection import Connection
from ..warden.frames import Feature, Hello
from ._docker_box import Box
from ._docker_engine import Engine, RefusedError, unreachable
from ._docker_exec_body import SWEEP, call_command
from ._docker_exec_call import Call
from ._docker_fate import UNREACHABLE
from ._docker_refusals import creation_error
from ._docker_socket import WardenSocket

__all__ = ("ExecBox",)

_NAME = "container"
_BEGIN_SECONDS = 60.0  # with those that began before it
_BEGUN_AT_ONCE = 8
_SWEEP_SECONDS = 10.0
_END_SECONDS = 1.0  # for the engine to note that an exec has ended
_POLL_SECONDS = 0.02
_KILLED = 137
_GONE = (404, 409)  # no such container; one that does not run
_SHORT_OF_PROCESSES = ("resource temporarily unavailable", "cannot fork", "can't fork", "eagain")


class ExecBox(Box):
    """One container.

    Args:
        engine: The engine.
        name: The container's name, which is the sandbox's id.
        put_away: Frees what lies beside the container, when that is gone.
        user: The numeric `uid:gid` of all that runs in it.
        limits: Every limit filled in.

    Attributes:
        lost: Why it can't be used any more, or None.
    """

    causes: ClassVar[Mapping[int, str]] = {0: "maximum age"}

    def __init__(
        self,
        engine: Engine,
        name: str,
        put_away: Callable[[], Awaitable[None]],
        user: str,
        limits: Limits,
    ) -> None:
        super().__init__(engine, name, put_away)
        self.lost: SandboxLostError | None = None
        self._user = user
        self._command = call_command(limits)
        self._calls: set[Call] = set()
        # The engine has many of them wait for each other, and answers none of them meanwhile.
        self._beginning = asyncio.Semaphore(_BEGUN_AT_ONCE)
        self._ready: Call | None = None

    async def _make(
        self, body: dict[str, Any], timeout: float, socket: WardenSocket | None
    ) -> Connection:
        try:
            create = self._engine.docker.containers.create(body, name=self.name)
            container = await self._engine.call("a container", create, timeout)
            self.started = True
            await self._engine.call("a start", container.start(), timeout)
        except RefusedError as error:
            raise creation_error(error, self.name) from error
        try:
            self._ready = await self.open()  # the first command gets it
        except (SandboxLostError, LimitError) as error:
            raise CreateError(
                f"the sandbox could not be started: {error.message}", backend=_NAME
            ) from error
        return self._ready.connection

    async def open(self) -> Call:
        """Return a warden for one command or one file operation.

        Raises:
            SandboxLostError: The container is gone, or the warden came up without its protection.
            LimitError: The sandbox's processes have used its limit up.
            SandboxError: The engine can't start it for another reason.
            BackendUnreachableError: The engine does not answer.
        """
        self.check()
        call, self._ready = self._ready, None
        if call is not None and call.connection.lost is None:
            return call
        try:
            async with asyncio.timeout(_BEGIN_SECONDS), self._beginning:
                call = await self._begin() or await self._begin()
        except TimeoutError:
            what = f"has not started a command within {_BEGIN_SECONDS:g} s"
            raise unreachable(self._engine.endpoint, what) from None
        if call is None:
            cause = "out of memory" if self.fate.out_of_memory else "killed from inside"
            raise self.lose(SandboxLostError("what starts in it is killed at once", cause=cause))
        self._calls.add(call)
        if self.lost is not None:  # meanwhile
            call.close()
        self.check()
        self._check_protection(call.connection.hello)
        return call

    async def _begin(self) -> Call | None:
        """Return a warden that has said hello, or None if it was killed before it could."""
        process = None
        try:
            process = await self._create_exec(self._command)
            call = Call(process, look_after=self.look_after, lose=self.lose, forget=self.forget)
            await call.open(self._engine)
        except RefusedError as error:
            if process is None or await self._exit_code(process) != _KILLED:
                raise await self._not_started(error) from None
            if (state := await self.fate.state()) != "running":
                raise self.lose(await self._why_gone(state)) from None
            return None
        return call

    def _check_protection(self, hello: Hello | None) -> None:
        wanted = Feature.SECCOMP | Feature.NO_NEW_PRIVS
        uid = int(self._user.partition(":")[0])
        if hello is None or hello.features & wanted != wanted or hello.uid != uid:
            raise self.lose(ProtocolError("a command came up without its protection"))

    async def _create_exec(self, command: tuple[str, ...]) -> Exec:
        container = self._engine.container(self.name)
        create = container.exec(command, stdin=True, user=self._user, workdir="/")
        return await self._engine.call("an exec", create)

    async def _not_started(self, error: RefusedError) -> SandboxError:
        """Return what it means that the engine has not started an exec."""
        state = await self.fate.state()
        if error.status in _GONE or state != "running":
            return self.lose(await self._why_gone(state))
        if any(word in error.message.lower() for word in _SHORT_OF_PROCESSES):
            return LimitError(
                "pids",
                f"no process could be started for the command: {error.message}",
                backend=_NAME,
                hint="the sandbox's processes have used its limit up",
            )
        return SandboxError(f"the engine started no command: {error.message}", backend=_NAME)

    async def _why_gone(self, state: str) -> SandboxLostError:
        """Return why the container does not run, of which the engine tells soon."""
        cause = {UNREACHABLE: "the engine is gone", "paused": "paused"}.get(state, "removed")
        if await self.fate.heard_within(_END_SECONDS):
            cause = self.fate.cause
        return SandboxLostError(f"its container is gone: {cause}", cause=cause)

    async def look_after(self, process: Exec) -> bool:
        """Return whether an exec has ended because its warden was killed, and that harms nobody.

        That is so where the container lives and all that PID 1 has adopted could be killed.
        """
        code, swept = None, False
        with suppress(RefusedError, BackendUnreachableError):
            code = await self._exit_code(process)
            swept = code == _KILLED and await self._sweep()
        if not swept:
            await self.fate.heard_within(_END_SECONDS)  # the whole container may just have ended
            state = await self.fate.state()
            if state != "running":
                self.fate.cause = (await self._why_gone(state)).cause
            else:
                self.fate.cause = "its stream broke" if code is None else "killed from inside"
        return swept

    async def _exit_code(self, process: Exec) -> int | None:
        """Return an exec's exit code, or None if it has not ended within a moment, or is gone."""
        with anyio.move_on_after(_END_SECONDS), suppress(RefusedError, BackendUnreachableError):
            while True:
                found = await self._engine.call("an exec", process.inspect())
                if not found["Running"]:
                    return int(found["ExitCode"])
                await asyncio.sleep(_POLL_SECONDS)
        return None

    async def _sweep(self) -> bool:
        """Kill what killed wardens have left, and return whether nothing of it lives."""
        process = await self._create_exec(SWEEP)
        stream = await self._engine.start_exec(process.id, _nothing)
        try:
            with anyio.move_on_after(_SWEEP_SECONDS):
                while await stream.receive():
                    pass
        finally:
            stream.close()
        return await self._exit_code(process) == 0

    # What is heard of it, and its end.

    def _tell(self, error: SandboxLostError) -> None:
        if self._closing is None:
            self.lose(error)

    def lose(self, error: SandboxLostError) -> SandboxLostError:
        """Give the container up, tell all who wait, and return the error that they get."""
        if self.lost is None:
            self.lost = self._lost(error)
            for call in list(self._calls):
                call.connection.lose(self.lost)
        return self.lost

    def check(self) -> None:
        """Raise the error of a container that is lost."""
        if self.lost is not None:
            raise self.lost.with_traceback(None)

    async def ping(self) -> None:
        """Return if it runs, as the engine says.

        Raises:
            SandboxLostError: It does not.
        """
        self.check()
        state = await self.fate.state()
        if state != "running":
            raise self.lose(await self._why_gone(state))

    def forget(self, call: Call) -> None:
        """Take note that a call is over."""
        self._calls.discard(call)

    async def _close(self, kill: bool) -> None:
        for call in list(self._calls):
            call.close()
        await super()._close(kill)


async def _nothing() -> None:
    return
