"""A command in a sandbox with a warden."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable

from ..backend import Sandbox, command_cwd
from ..errors import CommandError, SandboxLostError
from ..execution import EXIT_TIMED_OUT
from ..models import Chunk, Command, Exit, ExitReason, Stream, TerminalSize, Usage
from ..process import HOST_SLACK, DeadlineError, Launch, Process
from .connection import Channel, Connection
from .failures import no_process, raise_file_error, terminal_error
from .frames import (
    ExitFrame,
    Feature,
    FrameType,
    Outcome,
    Stage,
    credit_frame,
    frame,
    kill_frame,
    limit_frame,
    resize_frame,
)

__all__ = ("WardenProcess", "too_long")

_SIGKILL = 9
_OUT_OF_MEMORY = "out of memory"
_LAST_SIGNAL = 64


class _Credit:
    """How much more of each stream the warden may send, as output is consumed."""

    def __init__(self, window: int, cap: int | None) -> None:
        self._window = window
        self._cap = cap
        self._taken = {"stdout": 0, "stderr": 0}
        self._granted = {"stdout": window, "stderr": window}

    def due(self, stream: Stream, taken: int) -> int:
        """Return what to grant now that so many more bytes were taken: half of the window or more.

        A program with less of its window left than that would have to wait for us.
        """
        self._taken[stream] += taken
        if self._taken[stream] * 2 < self._window:
            return 0
        due, self._taken[stream] = self._taken[stream], 0
        if self._cap is not None:  # a warden that sends more than that is lying
            due = min(due, self._cap - self._granted[stream])
        self._granted[stream] += due
        return due


class WardenProcess(Process):
    """A command in a sandbox with a warden.

    Args:
        sandbox: Where it runs.
        connection: To its warden.
        channel: What arrives for it.
        launch: What was asked for.
        window: Bytes of each stream for which there was credit from the start.
        oom_kills: Reads the counter of processes that the memory limit has killed, or None where
            the warden's own count has to do.
        oom_before: What that counter said before it began.
    """

    _killed = False
    _exit: Exit | None = None

    def __init__(
        self,
        sandbox: Sandbox,
        connection: Connection,
        channel: Channel,
        launch: Launch,
        window: int,
        oom_kills: Callable[[], int] | None,
        oom_before: int,
    ) -> None:
        self._sandbox = sandbox
        self._connection = connection
        self._channel = channel
        self._launch = launch
        cap = launch.output_bytes
        # A window as large as the cap is credit for all of it from the start.
        self._credit = None if cap is not None and cap <= window else _Credit(window, cap)
        self._stdin_closed = not launch.stdin_open
        self._oom_kills = oom_kills
        self._oom_before = oom_before

    @property
    def ended(self) -> bool:
        """Whether its end is known."""
        return self._channel.end is not None or self._exit is not None

    @property
    def pid(self) -> int | None:  # type: ignore[override]  # known only once it has started
        return self._channel.pid

    async def receive(self) -> Chunk | None:
        channel = self._channel
        if not channel.chunks:
            if channel.end is None:
                try:
                    await self._connection.wait(channel, channel.has_news)
                except SandboxLostError as error:
                    self._learn_of_loss(error)
            if not channel.chunks:
                return None
        chunk = channel.chunks.popleft()
        if self._credit is not None and channel.end is None:
            if due := self._credit.due(chunk.stream, len(chunk.data)):
                channel.credit[chunk.stream] += due
                out, err = (due, 0) if chunk.stream == "stdout" else (0, due)
                await self._connection.send(credit_frame(channel.id, out, err))
        return chunk

    def _learn_of_loss(self, error: SandboxLostError) -> None:
        """Take the loss of the sandbox as the command's own end where it is, or raise."""
        if self._connection.silent and self._channel.deadline <= time.monotonic():
            raise DeadlineError from None
        if not self._died_of_memory(error):
            raise error
        self._exit = Exit(128 + _SIGKILL, ExitReason.OUT_OF_MEMORY)

    def _died_of_memory(self, error: SandboxLostError) -> bool:
        """Whether the memory limit has ended all of the sandbox at once, this command with it.

        That is how the command ended, as whoever runs the sandbox says; that the sandbox is lost
        is told to the next call.
        """
        counter = self._oom_kills
        counted = counter is None or counter() > self._oom_before
        return error.cause == _OUT_OF_MEMORY and counted and not self._killed

    async def wait(self) -> Exit:
        channel = self._channel
        while channel.chunks or not self.ended:
            await self.receive()
        if self._exit is None:
            assert channel.end is not None
            self._exit = await self._understand(channel.end)
        return self._exit

    async def kill(self, signal: int | None = None) -> None:
        if signal is not None and not 1 <= signal <= _LAST_SIGNAL:
            raise CommandError(f"there is no signal {signal}")
        if self.ended:
            return
        self._killed = self._killed or signal in (None, _SIGKILL)
        await self._connection.send(kill_frame(self._channel.id, signal))

    async def write_stdin(self, data: bytes) -> None:
        if not self._stdin_closed and not self.ended:
            await self._connection.send_stdin(self._channel, data)

    async def close_stdin(self) -> None:
        if not self._stdin_closed and not self.ended:
            self._stdin_closed = True
            await self._connection.send(frame(FrameType.STDIN_END, self._channel.id))

    async def _is_waiting(self) -> bool:
        hello = self._connection.hello
        if hello is None or Feature.LIMIT not in hello.features:  # an older warden
            await super()._is_waiting()
        if not self._connection.look():
            await self._connection.ping()
        return not self.ended and not self._stdin_closed

    async def _hand_over(self, stdin: bytes, seconds: float, more: bool) -> None:
        connection, channel = self._connection, self._channel
        if self._sandbox.keeps_deadlines:
            connection.watch(channel, seconds + self._launch.kill_grace + HOST_SLACK)
        connection.queue(limit_frame(channel.id, seconds))
        if not more:
            self._stdin_closed = True
        channel.stdin_free -= len(stdin)
        given = frame(FrameType.STDIN, channel.id, stdin) if stdin else b""
        end = b"" if more else frame(FrameType.STDIN_END, channel.id)
        await connection.send(given + end)

    async def resize(self, rows: int, columns: int) -> None:
        if self._launch.command.terminal is None:
            await super().resize(rows, columns)
        size = TerminalSize(rows, columns)
        if not self.ended:
            await self._connection.send(resize_frame(self._channel.id, size.rows, size.columns))

    async def _understand(self, end: ExitFrame) -> Exit:
        usage = Usage(end.cpu_us / 1e6, end.max_rss_kb * 1024)
        totals = end.stdout_total, end.stderr_total
        if end.outcome is Outcome.EXITED and not (end.kill_incomplete or end.timed_out):
            return Exit(end.value, ExitReason.EXITED, *totals, usage)
        if end.kill_incomplete:
            await self._sandbox._destroy("a command's processes could not all be killed")
        if end.outcome is Outcome.NOT_STARTED:
            return self._not_started(end, totals)
        if end.timed_out:
            return Exit(EXIT_TIMED_OUT, ExitReason.TIMED_OUT, *totals, usage)
        if end.outcome is Outcome.UNKNOWN:
            await self._sandbox._destroy("how a command ended could not be told")
            self._connection.check()
        if end.outcome is Outcome.EXITED:  # and not all of its tree could be killed
            return Exit(end.value, ExitReason.EXITED, *totals, usage)
        reason = ExitReason.SIGNALED
        ours = self._killed or end.value != _SIGKILL
        if not ours and self._memory_killed(end):
            reason = ExitReason.OUT_OF_MEMORY
        return Exit(128 + end.value, reason, *totals, usage)

    def _memory_killed(self, end: ExitFrame) -> bool:
        """Whether a memory limit has killed something since it began, as the nearest count says."""
        counter = self._oom_kills
        if counter is None:
            return bool(end.oom_kills)
        return counter() > self._oom_before

    def _not_started(self, end: ExitFrame, totals: tuple[int, int]) -> Exit:
        command = self._launch.command
        if end.stage is Stage.CWD:
            raise_file_error(
                end.value, command_cwd(command, self._sandbox.workspace), self._sandbox.backend
            )
        if end.stage is Stage.TERMINAL:
            raise terminal_error(end.value, self._sandbox.backend)
        if end.stage is not Stage.EXEC:
            raise no_process("the command", end.value, self._sandbox.backend)
        name = os.fsdecode(command.argv_bytes[0])
        if end.value == errno.E2BIG:
            raise too_long(command)
        if end.value in (errno.ENOENT, errno.ENOTDIR):
            return Exit(
                127, ExitReason.EXITED, *totals, message=f"{_shown(name)}: command not found\n"
            )
        text = f"{_shown(name)}: cannot be executed: {os.strerror(end.value)}\n"
        return Exit(126, ExitReason.EXITED, *totals, message=text)


def too_long(command: Command) -> CommandError:
    """Return the error for a command that is more than a frame, or the kernel, takes."""
    name = os.fsdecode(command.argv_bytes[0])
    return CommandError(f"{name!r}: the arguments and variables are too long together")


def _shown(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
