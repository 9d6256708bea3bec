"""A sandbox over a connection to a warden."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import anyio

from ..backend import command_cwd
from ..errors import SandboxClosedError, SandboxLostError, StreamBrokenError, UnsupportedError
from ..models import Capabilities, Command, Limits, SandboxSpec
from ..process import HOST_SLACK, Launch, Process
from .connection import Connection
from .files import WardenFiles
from .frames import (
    MAX_START,
    MAX_STRINGS,
    STDIN_WINDOW,
    Feature,
    StartFlag,
    lifetime_frame,
    start_frame,
)
from .process import WardenProcess, too_long

__all__ = ("Host", "WardenSandbox")

_KILL_LEFTOVERS = int(StartFlag.KILL_LEFTOVERS)
_STDIN = int(StartFlag.STDIN)
_STDIN_COMPLETE = int(StartFlag.STDIN_COMPLETE)
_TERMINAL = int(StartFlag.TERMINAL)
_TERM = b"xterm-256color"
_WINDOW = 1 << 20


@dataclass(frozen=True)
class Host:
    """What a sandbox needs from whoever started its warden.

    Attributes:
        close: Ends the sandbox and frees all that it holds; called once.
        oom_kills: Reads the counter of processes that the memory limit has killed, or None
            where the warden's own count has to do.
        env: The variables that every command gets.
        resume: Returns a new connection to the warden after the stream has broken, or raises a
            `SandboxLostError`; or None where a broken stream is the end.
        dismiss: Ends it in the background, in the place of `close`, where nothing of what ran in
            it is left; or None.
    """

    close: Callable[[], Awaitable[None]]
    oom_kills: Callable[[], int] | None
    env: Mapping[bytes, bytes]
    dismiss: Callable[[], None] | None = None
    resume: Callable[[], Awaitable[Connection]] | None = None


class WardenSandbox(WardenFiles):
    """A sandbox whose commands and files are a warden's.

    Args:
        connection: To the warden, greeted already.
        host: What is left to do outside of it.
    """

    def __init__(
        self,
        connection: Connection,
        host: Host,
        *,
        backend: str,
        sandbox_id: str,
        spec: SandboxSpec,
        limits: Limits,
        capabilities: Capabilities,
        workspace: str = "/workspace",
    ) -> None:
        self.backend = backend
        self.id = sandbox_id
        self.spec = spec
        self.limits = limits
        self.capabilities = capabilities
        self.workspace = workspace
        self.connection = connection
        self.host = host
        self._closed = False
        self._closing: anyio.Event | None = None
        self._resuming: anyio.Lock | None = None
        self._env = [name + b"=" + value for name, value in host.env.items()]
        self.keeps_deadlines = connection.keeps_deadlines

    def set_lifetime(self, seconds: float) -> None:
        """Let the sandbox end itself that many seconds after the start of its next command."""
        self.connection.queue(lifetime_frame(seconds))

    async def _connected(self) -> Connection:
        """Return the connection, taken up again if its stream has broken."""
        self._check_open()
        if self.connection.lost is None or self.host.resume is None:
            return self.connection
        self._resuming = self._resuming or anyio.Lock()
        async with self._resuming:
            if isinstance(self.connection.lost, StreamBrokenError):
                self.connection = await self.host.resume()
        return self.connection

    async def _start(self, launch: Launch) -> Process:
        connection = self.connection
        if self._closed or connection.lost is not None:
            connection = await self._connected()
        command = launch.command
        flags = _KILL_LEFTOVERS if command.leftovers == "kill" else 0
        if launch.stdin_open:
            flags |= _STDIN
        elif launch.stdin:
            flags |= _STDIN | _STDIN_COMPLETE
        window = _WINDOW if launch.output_bytes is None else min(launch.output_bytes, _WINDOW)
        terminal = command.terminal
        if terminal is not None:
            _check_terminals(connection, self.backend)
            flags |= _TERMINAL
        oom_kills = self.host.oom_kills
        oom_before = oom_kills() if oom_kills else 0
        channel = connection.open_channel(window, STDIN_WINDOW - len(launch.stdin))
        start = start_frame(
            channel.id,
            command.argv_bytes,
            env=self._environment(command),
            cwd=command_cwd(command, self.workspace),
            fallback=os.fsencode(command.fallback or ""),
            flags=flags,
            numbers=(terminal.rows, terminal.columns) if terminal else (0, 0),
            timeout=launch.timeout,
            grace=launch.kill_grace,
            window=window,
            cap=launch.output_bytes,
            stdin=launch.stdin,
        )
        strings = max(len(command.argv), len(command.env) + len(self._env))
        if len(start) > MAX_START or strings > MAX_STRINGS:
            connection.forget(channel)
            raise too_long(command)
        sent_now = connection.send_now(start)
        # What else there is to do can be done while the command begins.
        process = WardenProcess(self, connection, channel, launch, window, oom_kills, oom_before)
        if launch.timeout is not None and self.keeps_deadlines:
            connection.watch(channel, launch.timeout + launch.kill_grace + HOST_SLACK)
        if sent_now:
            return process
        try:
            await connection.send_rest()
        except BaseException:  # cancelled: it may be half on its way, and must not run on
            with anyio.CancelScope(shield=True, deadline=anyio.current_time() + HOST_SLACK):
                await process.kill()
            raise
        return process

    def _environment(self, command: Command) -> list[bytes]:
        if not command.env_bytes and command.terminal is None:
            return self._env
        own = dict(command.env_bytes)
        if command.terminal is not None:
            own = {b"TERM": _TERM, **own}
        return [name + b"=" + value for name, value in {**self.host.env, **own}.items()]

    async def _ping(self) -> None:
        await (await self._connected()).ping()

    async def _destroy(self, cause: str) -> None:
        self.connection.lose(SandboxLostError(f"it was destroyed: {cause}", cause=cause))
        await self._close_host()

    async def aclose(self) -> None:
        """End the sandbox; when this returns, nothing of it runs."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._close_host()

    async def dismiss(self) -> None:
        """End the sandbox, in which nothing runs any more; its host may do that later."""
        if self.host.dismiss is None or self._closing is not None:
            await self.aclose()
            return
        self._closed = True
        self._closing = anyio.Event()
        self._closing.set()
        self.host.dismiss()

    async def _close_host(self) -> None:
        if self._closing is not None:
            await self._closing.wait()
            return
        self._closing = anyio.Event()
        try:
            await self.host.close()
        finally:
            self._closing.set()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosedError(f"sandbox {self.id} is closed", backend=self.backend)


def _check_terminals(connection: Connection, backend: str) -> None:
    """Refuse a terminal where the warden, an older one, would give the command pipes."""
    if connection.hello is None or Feature.TERMINAL not in connection.hello.features:
        raise UnsupportedError("the warden of this sandbox knows no terminals", backend=backend)
