"""The host's side of one running program: its streams, its clock, its chance, and its end.

The program's thread calls in here from its host functions; the event loop's side gives stdin,
takes output and stops it. What is shared is held under one lock, and whatever waits in it can be
woken by a stop, so that no host call outlasts a deadline.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..models import Chunk, Stream
from ..process import Launch

__all__ = ("ASK", "Guest", "Stopped", "Traits", "Turns")

_WINDOW = 256 * 1024
"""Bytes of output that wait for their reader before the program has to wait too."""

_STDIN_WINDOW = 1024 * 1024
_MAX_READ = 64 * 1024
_FIXED_EPOCH_NS = 946_684_800 * 10**9  # 2000-01-01, in UTC
_TICK_NS = 1000
"""How far a fixed clock moves at each look, so that a loop that waits for it ends."""

_SEED = 20000101


ASK = 0xF0000
"""A read of stdin of so many bytes, and more by the status of the turn before, asks for a turn."""


class Stopped(Exception):  # noqa: N818 - it is no error of anybody
    """The program has to end now."""


@dataclass(frozen=True)
class Traits:
    """What a program is shown of the machine.

    Attributes:
        real_clock: Whether it sees the time, and not a clock that is the same in each run.
        real_random: Whether its random bytes differ from run to run.
    """

    real_clock: bool = False
    real_random: bool = False


@dataclass
class Turns:
    """The work of an interpreter that is started before there is any.

    Attributes:
        ended: Called by its thread with the status of each turn, and with None before the first.
        job: Its next work.
        is_running: Whether it has got work.
        cpu_began: The CPU seconds of its thread when it got that.
    """

    ended: Callable[[int | None], None]
    job: bytes | None = None
    is_running: bool = False
    cpu_began: float = 0.0


@dataclass
class Guest:
    """One program that runs.

    Attributes:
        launch: What was asked for.
        traits: What it is shown of the machine.
        changed: Called, from any thread, when there is output or room for stdin.
        stopped: Why it has to end; empty while it need not.
        exit_code: What it ended itself with, if it did.
        fault: An error of our own in one of its host functions.
    """

    launch: Launch
    traits: Traits
    changed: Callable[[], None]
    stopped: str = ""
    exit_code: int | None = None
    fault: Exception | None = None
    began_ns: int = field(default_factory=time.monotonic_ns)
    turns: Turns | None = None

    def __post_init__(self) -> None:
        self._wake = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._waiting = 0
        self._dropping = False
        self.seen: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._stdin = bytearray(self.launch.stdin)
        self._stdin_open = self.launch.stdin_open
        self._job = bytearray()
        self._virtual_ns = 0
        self._random: random.Random | None = None

    # The program's thread.

    def check(self) -> None:
        """Raise `Stopped` if the program has to end."""
        if self.stopped:
            raise Stopped

    def room(self, stream: Stream) -> int:
        """Return how many more bytes of a stream anybody will see."""
        cap = self.launch.output_bytes
        if self._dropping:
            return 0
        return 1 << 30 if cap is None else max(0, cap - self.seen[stream])

    def emit(self, stream: Stream, data: bytes, size: int) -> None:
        """Hand out output, waiting while too much of it has not been taken.

        Args:
            stream: Which one.
            data: What is kept of it.
            size: How much there was.
        """
        self.check()
        self.seen[stream] += size
        if not data:
            return
        with self._wake:
            self._chunks.append(Chunk(stream, data))
            self._waiting += len(data)
            self.changed()
            while self._waiting > _WINDOW and not self.stopped and not self._dropping:
                self._wake.wait()
        self.check()

    def read(self, size: int) -> bytes:
        """Return some of stdin, waiting for it; empty at its end."""
        if self.turns is not None:
            if size >= ASK:
                job = self.next_turn(size - ASK)
                self._job = bytearray(job)
                return len(job).to_bytes(4, "little")
            if self._job:
                part = bytes(self._job[:size])
                del self._job[:size]
                return part
        size = min(size, _MAX_READ)
        with self._wake:
            while not self._stdin and self._stdin_open and not self.stopped:
                self._wake.wait()
            self.check()
            data = bytes(self._stdin[:size])
            del self._stdin[:size]
            self.changed()
            return data

    def sleep(self, nanoseconds: int | None, *, for_stdin: bool) -> bool:
        """Wait, at most for so long; returns whether stdin ended the wait."""
        end = None if nanoseconds is None else time.monotonic() + nanoseconds / 1e9
        with self._wake:
            while not self.stopped and not (for_stdin and self._has_stdin()):
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    break
                limit = threading.TIMEOUT_MAX
                self._wake.wait(limit if left is None else min(left, limit))
        self.check()
        if for_stdin and self._has_stdin():
            return True
        self._virtual_ns += nanoseconds or 0
        return False

    def _has_stdin(self) -> bool:
        return bool(self._stdin) or not self._stdin_open

    def now_ns(self, realtime: bool) -> int:
        """Return the program's time: since 1970, or since it began."""
        if self.traits.real_clock:
            return time.time_ns() if realtime else time.monotonic_ns() - self.began_ns
        self._virtual_ns += _TICK_NS
        return self._virtual_ns + (_FIXED_EPOCH_NS if realtime else 0)

    def random_bytes(self, size: int) -> bytes:
        """Return the next bytes of a program whose chance is fixed."""
        if self._random is None:
            self._random = random.Random(_SEED)  # noqa: S311 - it shall be no secret
        return self._random.randbytes(size)

    def next_turn(self, status: int) -> bytes:
        """Say how the last turn of an interpreter ended, and wait for the next one's work."""
        assert self.turns is not None
        turns = self.turns
        turns.ended(status if turns.is_running else None)
        with self._wake:
            while turns.job is None and not self.stopped:
                self._wake.wait()
            self.check()
            job, turns.job = turns.job, None
            turns.is_running = True
            turns.cpu_began = time.thread_time()
            assert job is not None
            return job

    # The other side.

    def begin_turn(self, launch: Launch, changed: Callable[[], None], job: bytes) -> None:
        """Give an interpreter that waits, or soon will, its next work."""
        assert self.turns is not None
        with self._wake:
            self.launch = launch
            self.changed = changed
            self.seen = {"stdout": 0, "stderr": 0}
            self._dropping = False
            self._stdin = bytearray(launch.stdin)
            self._stdin_open = launch.stdin_open
            self.turns.job = job
            self._wake.notify_all()

    @property
    def has_output(self) -> bool:
        """Whether there is output to take."""
        return bool(self._chunks)

    @property
    def has_stdin_room(self) -> bool:
        """Whether more of stdin can be given."""
        return len(self._stdin) < _STDIN_WINDOW

    def take(self) -> Chunk | None:
        """Return the next output, if there is any."""
        if not self._chunks:
            return None
        with self._wake:
            chunk = self._chunks.popleft()
            was_full = self._waiting > _WINDOW
            self._waiting -= len(chunk.data)
            if was_full and self._waiting <= _WINDOW:
                self._wake.notify_all()
            return chunk

    def drop_output(self) -> None:
        """Count what the program writes from now on, and keep none of it."""
        with self._wake:
            self._dropping = True
            self._chunks.clear()
            self._waiting = 0
            self._wake.notify_all()

    def stop(self, reason: str) -> bool:
        """Let the program end; returns whether this was the first to say so."""
        with self._wake:
            if self.stopped:
                return False
            self.stopped = reason
            self._wake.notify_all()
            return True

    def feed(self, data: bytes) -> int:
        """Add to stdin as much as there is room for; returns how much that was."""
        with self._wake:
            part = data[: max(0, _STDIN_WINDOW - len(self._stdin))]
            self._stdin += part
            self._wake.notify_all()
            return len(part)

    def end_stdin(self) -> None:
        """Let the program read end of file after what has been given."""
        with self._wake:
            self._stdin_open = False
            self._wake.notify_all()
