"""One command of a portable sandbox: a child of this process, read by the host's event loop."""

from __future__ import annotations

import asyncio
import os
import signal as signals
import sys
from collections import deque
from collections.abc import Coroutine
from typing import Any, cast

from ..errors import SandboxError
from ..models import Chunk, Exit, ExitReason, Stream
from ..process import Launch, Process
from ._portable_parts import Stdin, group_alive

__all__ = ("PortableProcess",)

_WINDOW = 256 * 1024
"""Bytes of output that wait for their reader before the program has to wait too."""

_DRAIN_QUIET = 0.02
"""Seconds without output after which an ended command's pipes count as empty."""

_DRAIN_MAX = 1.0
"""Seconds for which an ended command's pipes are read while a left-over goes on writing."""

_KILL_WAIT = 2.0
"""Seconds in which a group must be gone after SIGKILL."""


class PortableProcess(Process):
    """A running command with its process group."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._chunks: deque[Chunk] = deque()
        self._waiting = 0
        self._seen: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._open: set[Stream] = {"stdout", "stderr"}
        self._all_read = asyncio.Event()
        self._changed = asyncio.Event()
        self._done = asyncio.Event()
        self._dropping = False
        self._paused = False
        self._timed_out = False
        self._returncode: int | None = None
        self._message = ""
        self._lost: SandboxError | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: Stdin | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._killing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._group_gone = False

    # Process.

    async def receive(self) -> Chunk | None:
        while not self._chunks:
            self._check_lost()
            if self._done.is_set():
                return None
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self._waiting -= len(chunk.data)
        self._set_paused(self._waiting > _WINDOW)
        return chunk

    async def wait(self) -> Exit:
        if not self._done.is_set():
            self._dropping = True
            self._chunks.clear()
            self._waiting = 0
            self._set_paused(False)
            await self._done.wait()
        self._check_lost()
        code = self._returncode or 0
        reason = ExitReason.EXITED
        if self._timed_out:
            code, reason = 124, ExitReason.TIMED_OUT
        elif code < 0:
            code, reason = 128 - code, ExitReason.SIGNALED
        return Exit(code, reason, self._seen["stdout"], self._seen["stderr"], message=self._message)

    async def kill(self, signal: int | None = None) -> None:
        if signal is not None:
            self._signal(signal)
        elif not self._gone():
            self._begin_kill()
            assert self._killing is not None
            await asyncio.shield(self._killing)

    async def write_stdin(self, data: bytes) -> None:
        if self._stdin is not None:
            await self._stdin.write(data)

    async def close_stdin(self) -> None:
        if self._stdin is not None:
            self._stdin.close()

    # The sandbox.

    @property
    def wants_stdin(self) -> bool:
        """Whether there is anything for it to read."""
        return bool(self._launch.stdin) or self._launch.stdin_open

    @property
    def over(self) -> bool:
        """Whether nothing of it is known to be left: no process, no open pipe."""
        return self._done.is_set() and self._gone() and not self._open

    async def aclose(self, error: SandboxError) -> None:
        """End the command with all that is left of its group, and let go of its pipes.

        Args:
            error: What whoever still waits for the command is told.
        """
        if not self._done.is_set():
            self._lost = error
            self._changed.set()
        await self.kill()
        if self._clock:
            self._clock.cancel()
        if self._transport:
            self._transport.close()
        if self._stdin:
            self._stdin.close()
        await self._done.wait()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    # What the protocol reports.

    def attach(self, transport: asyncio.SubprocessTransport) -> None:
        self._transport = transport
        self.pid = transport.get_pid()
        if self._launch.timeout is not None and self._returncode is None:
            loop = asyncio.get_running_loop()
            self._clock = loop.call_later(self._launch.timeout, self._expire)

    def feed(self, stdin: Stdin) -> None:
        """Send the first bytes, and end of file if there are no others."""
        self._stdin = stdin
        stdin.write_first(self._launch.stdin)
        if not self._launch.stdin_open:
            stdin.close()

    def data(self, stream: Stream, data: bytes) -> None:
        handed = self._seen[stream]
        self._seen[stream] += len(data)
        cap = self._launch.output_bytes
        if cap is not None:
            data = data[: max(0, cap - handed)]
        if data and not self._dropping and not self._done.is_set():
            self._chunks.append(Chunk(stream, data))
            self._waiting += len(data)
            self._changed.set()
            self._set_paused(self._waiting > _WINDOW)

    def pipe_closed(self, stream: Stream) -> None:
        self._open.discard(stream)
        if not self._open:
            self._all_read.set()
            if self._done.is_set() and self._transport:
                self._transport.close()

    def exited(self, returncode: int) -> None:
        self._returncode = returncode
        if self._clock:
            self._clock.cancel()
        self._gone()  # asked at once: while a member lives, nobody else can get the group's number
        self._run(self._finish())

    def failed(self, code: int, message: str) -> None:
        """Say that the program could not be started; a result, not an error."""
        self._returncode = code
        self._message = message
        self._group_gone = True
        self._open.clear()
        self._done.set()

    # The rest.

    async def _finish(self) -> None:
        if self._killing or self._launch.command.leftovers == "kill":
            await self.kill()
        deadline = asyncio.get_running_loop().time() + _DRAIN_MAX
        while self._open:
            before = sum(self._seen.values())
            try:
                await asyncio.wait_for(self._all_read.wait(), _DRAIN_QUIET)
            except TimeoutError:
                if self._paused:  # there is more, and the reader takes its time
                    deadline += _DRAIN_QUIET
                    continue
                busy = sum(self._seen.values()) > before
                if not busy or asyncio.get_running_loop().time() > deadline:
                    break
        if self._stdin:
            self._stdin.close()
        self._done.set()
        self._changed.set()
        self._set_paused(False)
        if not self._open and self._transport:
            self._transport.close()

    def _check_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _set_paused(self, paused: bool) -> None:
        if paused == self._paused or self._transport is None:
            return
        self._paused = paused
        for number, stream in ((1, "stdout"), (2, "stderr")):
            pipe = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(number))
            if stream in self._open:
                (pipe.pause_reading if paused else pipe.resume_reading)()

    def _expire(self) -> None:
        self._timed_out = True
        self._begin_kill()

    def _begin_kill(self) -> None:
        if self._killing is None:
            self._killing = asyncio.get_running_loop().create_task(self._kill_group())

    async def _kill_group(self) -> None:
        self._signal(signals.SIGTERM)
        if not await self._gone_within(self._launch.kill_grace):
            self._signal(getattr(signals, "SIGKILL", signals.SIGTERM))
            await self._gone_within(_KILL_WAIT)

    async def _gone_within(self, seconds: float) -> bool:
        deadline = asyncio.get_running_loop().time() + seconds
        pause = 0.001
        while not self._gone():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True

    def _gone(self) -> bool:
        """Whether the group is empty; once it was, its number may be a stranger's."""
        if not self._group_gone and self.pid is not None:
            if sys.platform == "win32":
                self._group_gone = self._returncode is not None
            elif self._returncode is not None:
                self._group_gone = not group_alive(self.pid)
        return self._group_gone

    def _signal(self, signal: int) -> None:
        if self._gone() or self._transport is None or self.pid is None:
            return
        try:
            if sys.platform == "win32":
                self._transport.send_signal(signal)
            else:
                os.killpg(self.pid, signal)
        except ProcessLookupError:
            return

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
