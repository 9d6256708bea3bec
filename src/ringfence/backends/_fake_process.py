"""The pretended programs of the fake backend."""

from __future__ import annotations

import signal as signals
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import anyio
import anyio.lowlevel

from ..errors import SandboxError, SandboxLostError
from ..execution import EXIT_TIMED_OUT
from ..models import Chunk, Exit, ExitReason, Stream, Usage
from ..process import Launch, Process

__all__ = ("FakeProcess", "Home", "Script")

_FATAL = (signals.SIGTERM, signals.SIGKILL, signals.SIGINT)
"""The signals that end a pretended program; any other is only noted."""


@dataclass(frozen=True)
class Script:
    """What a pretended program does.

    Attributes:
        steps: In order: bytes for stdout, a `Chunk` for either stream, or seconds to wait.
        exit_code: Its exit code after the last step.
        reason: Why it ended, as its backend would say.
        usage: What it used.
        message: The line for stderr of a program that could not be started.
        echo: Whether it copies its stdin to stdout before the first step.
        hangs: Whether it goes on after the last step until it is killed.
        unkillable: Whether neither its last step, a kill nor its deadline ends it: only the end of
            its sandbox does.
        loses: How its sandbox dies after the last step, or None if it does not.
        error: What starting it raises instead.
    """

    steps: Iterable[bytes | Chunk | float] = ()
    exit_code: int = 0
    reason: ExitReason = ExitReason.EXITED
    usage: Usage = field(default_factory=Usage)
    message: str = ""
    echo: bool = False
    hangs: bool = False
    unkillable: bool = False
    loses: str | None = None
    error: SandboxError | None = None


class Home(Protocol):
    """What a pretended program needs to know of its sandbox."""

    @property
    def is_live(self) -> bool:
        """Whether it is neither closed nor dead."""

    def lost_error(self) -> SandboxLostError | None:
        """Return the error of a dead sandbox, or None while it lives."""

    def lose(self, cause: str) -> None:
        """Let the sandbox die."""

    def record(self, verb: str, detail: object) -> None:
        """Note a call."""


class FakeProcess(Process):
    """A pretended program.

    Attributes:
        launch: What it was started with.
        stdin: All that it was given to read.
        stdin_closed: Whether it has seen end of file.
    """

    def __init__(self, sandbox: Home, launch: Launch, script: Script, pid: int) -> None:
        self.pid = pid
        self.launch = launch
        self.stdin = bytearray(launch.stdin)
        self.stdin_closed = not launch.stdin_open
        self._sandbox = sandbox
        self._script = script
        self._echo = script.echo
        self._steps = deque(script.steps)
        self._due = anyio.current_time()
        self._deadline = float("inf")
        if launch.timeout is not None and not script.unkillable:
            self._deadline = self._due + launch.timeout
        self._seen: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._end: Exit | None = None
        self._pause: anyio.CancelScope | None = None
        self._turn = anyio.Lock()

    @property
    def is_live(self) -> bool:
        """Whether it has not ended, as far as anybody has looked."""
        return self._end is None and self._sandbox.is_live

    def wake(self) -> None:
        """Let whoever waits for it look again."""
        if self._pause:
            self._pause.cancel()

    async def receive(self) -> Chunk | None:
        async with self._turn:
            if self._echo and not await self._ended_by(float("inf"), or_stdin_closed=True):
                self._echo = False
                self._steps.appendleft(bytes(self.stdin))
            while not await self._ended_by(self._due):
                if not self._steps:
                    self._finish()
                    continue
                step = self._steps.popleft()
                if isinstance(step, (int, float)):
                    self._due += step
                elif chunk := self._cut(step):
                    return chunk
            return None

    async def wait(self) -> Exit:
        while await self.receive() is not None:
            pass
        assert self._end is not None
        return self._end

    async def kill(self, signal: int | None = None) -> None:
        self._sandbox.record("kill", signal)
        await anyio.lowlevel.checkpoint()
        number = signals.SIGTERM if signal is None else signal
        if self.is_live and not self._script.unkillable and number in _FATAL:
            self._end = self._exit(128 + number, ExitReason.SIGNALED)
            self.wake()

    async def write_stdin(self, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self.is_live and not self.stdin_closed:
            self.stdin += data

    async def close_stdin(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.stdin_closed = True
        self.wake()

    async def _ended_by(self, when: float, *, or_stdin_closed: bool = False) -> bool:
        """Wait until then, and say whether it has ended before."""
        await anyio.lowlevel.checkpoint()
        until = min(when, self._deadline)
        while self.is_live and anyio.current_time() < until:
            if or_stdin_closed and self.stdin_closed:
                break
            with anyio.CancelScope(deadline=until) as self._pause:
                await anyio.sleep_forever()
        if self._end is None and (error := self._sandbox.lost_error()):
            raise error
        if self._end is None and anyio.current_time() >= self._deadline:
            self._end = self._exit(EXIT_TIMED_OUT, ExitReason.TIMED_OUT)
        return self._end is not None

    def _cut(self, step: bytes | Chunk) -> Chunk | None:
        """Count a piece of output and return what of it is within the cap."""
        chunk = step if isinstance(step, Chunk) else Chunk("stdout", step)
        handed = self._seen[chunk.stream]
        self._seen[chunk.stream] += len(chunk.data)
        cap = self.launch.output_bytes
        data = chunk.data if cap is None else chunk.data[: max(0, cap - handed)]
        return Chunk(chunk.stream, data) if data else None

    def _finish(self) -> None:
        """Do what the script says after the last step."""
        script = self._script
        if script.loses is not None:
            self._sandbox.lose(script.loses)
        elif script.hangs or script.unkillable:
            self._due = float("inf")
        else:
            self._end = self._exit(script.exit_code, script.reason)

    def _exit(self, code: int, reason: ExitReason) -> Exit:
        seen, script = self._seen, self._script
        return Exit(code, reason, seen["stdout"], seen["stderr"], script.usage, script.message)
