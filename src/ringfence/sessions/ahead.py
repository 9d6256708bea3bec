"""A Python that is up before the program comes that it will run.

Theory of operation. `python3 -` starts, and then reads its program from stdin. So one whose stdin
is held open waits there, started as any command is and held to all that holds commands; what comes
to it later it runs as if it had been there at once, for no line of ours is in it. It runs one
program and ends with it, and its time begins with the program.

The first program of a sandbox is started as ever, and when it has ended the first interpreter that
waits; so a sandbox without Python programs pays nothing. Whenever a command has ended, another one
takes the place of the one that waits: what Python looks at when it starts, such as packages that
were just installed, is as the last command has left it. A session has one at a time, and where
none waits, or it has died, the program is started as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import anyio
from anyio.abc import TaskGroup

from ..backend import Sandbox
from ..errors import SandboxError, StreamBrokenError, UnsupportedError
from ..process import HOST_SLACK, Launch, Process

__all__ = ("PythonAhead",)

_ARGV = (b"python3", b"-")


@dataclass(frozen=True)
class _Waiting:
    box: Sandbox
    launch: Launch
    process: Process


class PythonAhead:
    """The interpreter that waits in a session's sandbox.

    Args:
        tasks: Returns where what goes on between calls runs.
    """

    def __init__(self, tasks: Callable[[], TaskGroup]) -> None:
        self._tasks = tasks
        self._wanted: tuple[Sandbox, Launch] | None = None
        self._waiting: _Waiting | None = None
        self._outdated = False
        self._renewing = False
        self._is_able = True

    async def take(self, box: Sandbox, launch: Launch) -> Process | None:
        """Hand a program to the interpreter that waits; None if it has to be started as ever.

        Args:
            box: The sandbox.
            launch: What is to be started, whatever it is.

        Raises:
            SandboxLostError: The sandbox is dead.
        """
        command = launch.command
        if command.argv_bytes != _ARGV or command.terminal or launch.timeout is None:
            return None
        held = _held(launch)
        self._wanted = (box, held) if self._is_able else None
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        process, given = waiting.process, False
        try:
            if waiting.box is box and waiting.launch == held and await process._is_waiting():
                await process._hand_over(launch.stdin, launch.timeout, launch.stdin_open)
                given = True
        except StreamBrokenError:  # the sandbox has a new one, and what ran over this one is gone
            return None
        finally:
            if not given:
                await _end(process)
        return process if given else None

    def command_ended(self) -> None:
        """Have another one take the place of the one that waits, after a command has ended."""
        if self._wanted is None:
            return
        self._outdated = True
        if not self._renewing:
            self._renewing = True
            self._tasks().start_soon(self._renew)

    def forget(self) -> None:
        """The sandbox is gone, and whatever waited in it."""
        self._wanted = self._waiting = None

    async def _renew(self) -> None:
        try:
            while self._outdated and self._wanted is not None:
                self._outdated = False
                old, self._waiting = self._waiting, None
                if old is not None:
                    await _end(old.process)
                if self._wanted is not None:
                    self._waiting = await _begun(*self._wanted)
        except UnsupportedError:
            self._is_able, self._wanted = False, None
        except SandboxError:
            return  # who needs the sandbox is told; the next program is started as ever
        finally:
            self._renewing = False


def _held(launch: Launch) -> Launch:
    """Return how an interpreter is started that can be handed what this launch would run."""
    command = replace(launch.command, stdin=None, timeout=None)
    return replace(launch, command=command, timeout=None, stdin=b"", stdin_open=True)


async def _begun(box: Sandbox, held: Launch) -> _Waiting | None:
    """Start an interpreter; None if it has ended at once, as one that is not there.

    Raises:
        UnsupportedError: The backend has no way to hand a program over.
        SandboxError: It can't be started.
    """
    process = await box._start(held)
    waits = False
    try:
        waits = await process._is_waiting()
    finally:
        if not waits:
            await _end(process)
    return _Waiting(box, held, process) if waits else None


async def _end(process: Process) -> None:
    """End an interpreter that nobody needs, whatever happens to the caller."""
    with anyio.move_on_after(HOST_SLACK, shield=True), suppress(SandboxError):
        await process.kill()
        await process.wait()
