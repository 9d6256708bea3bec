"""Commands of a session that run on while nobody waits for them.

Theory of operation. Each has a task of the manager's own that takes its output as it comes and
keeps the last part. So a caller that is cancelled, or gone, ends nothing; what ends a command is
itself, a kill, its timeout, and the end of its sandbox: by `aclose`, by age, or by a fault. While
one runs, its session is not idle. All of it is bounded: how many run, how much is kept of each,
how many ended ones are remembered and for how long, and how fast output is taken; beyond that the
program waits.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from ..errors import (
    CommandError,
    CommandMissingError,
    LimitError,
    SandboxError,
    SandboxLostError,
)
from ..execution import EXIT_TIMED_OUT
from ..models import Command, Exit, ExitReason, TerminalSize, shell
from ..process import DeadlineError, Process
from .background_command import BackgroundCommand, Entry
from .kept_output import OutputPart

__all__ = ("BackgroundCommand", "BackgroundCommands")

MAX_RUNNING = 16
"""Background commands that one session can have at a time."""

MAX_ENDED = 16
"""Commands that are remembered after their end."""

KEPT_SECONDS = 600.0
"""For how long they are."""

DEFAULT_READ_BYTES = 65_536
DEFAULT_WRITE_TIMEOUT = 10.0

_TURN_BYTES = 1 << 20  # of output that are taken in one turn, which lasts at least:
_TURN_SECONDS = 0.05


class BackgroundCommands:
    """The background commands of one session, as `Session.background`."""

    def __init__(
        self,
        start: Callable[[Command, bool], Awaitable[Process]],
        lost: Callable[[SandboxLostError], None],
        destroy: Callable[[str], Awaitable[None]],
        tasks: Callable[[], TaskGroup],
    ) -> None:
        self._start = start
        self._lost = lost
        self._destroy = destroy
        self._tasks = tasks
        self._entries: dict[str, Entry] = {}
        self._starting = 0
        self._count = 0
        self._closed = False

    @property
    def running(self) -> int:
        """How many run now."""
        return sum(not entry.ended for entry in self._entries.values())

    async def start(self, command: Command | str, *, stdin_open: bool = True) -> BackgroundCommand:
        """Start a command and return at once; it runs on whatever becomes of the caller.

        Args:
            command: A script for `bash -c` (`sh -c` where there is no bash), or a `Command`.
                Without a timeout in it, only the sandbox's maximum age bounds it. With a
                `terminal` it has one.
            stdin_open: Keep its stdin open for `write`, until `close_stdin`.

        Raises:
            LimitError: As many as a session can have run already.
            CommandError: It can't be run, or its stdin is more than 64 KiB or an iterator.
            UnsupportedError: It is to have a terminal, and this backend has none.
            SandboxError: As from `Session.ensure`.
        """
        wanted = shell(command) if isinstance(command, str) else command
        if self.running + self._starting >= MAX_RUNNING:
            raise LimitError(
                "background_commands",
                f"{MAX_RUNNING} background commands run in this session already",
                hint="kill one of them, or wait for its end",
            )
        tasks = self._tasks()
        self._starting += 1
        try:
            process = await self._start(wanted, stdin_open)
        finally:
            self._starting -= 1
        # No await from here on: what has been started is in somebody's hands.
        self._count += 1
        entry = self._entries[f"c{self._count}"] = Entry(f"c{self._count}", wanted, process)
        tasks.start_soon(self._drain, entry)
        self._forget()
        return entry.about()

    async def commands(self) -> list[BackgroundCommand]:
        """Return all that run, and those that ended lately, in the order of their starts."""
        self._forget()
        return [entry.about() for entry in self._entries.values()]

    async def get(self, command_id: str) -> BackgroundCommand:
        """Return what is known of one.

        Raises:
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        return self._find(command_id).about()

    async def read(
        self,
        command_id: str,
        offset: int = 0,
        *,
        max_bytes: int = DEFAULT_READ_BYTES,
        wait: float = 0.0,
    ) -> OutputPart:
        """Return output from an offset on; stdout and stderr together, as they arrived.

        The last MiB is kept. What was asked for and is gone is counted in `dropped`.

        Args:
            command_id: Which.
            offset: Where to begin, from `next_offset` of what was read before; below 0, so many
                bytes before the end.
            max_bytes: The most to return.
            wait: Seconds to wait for something at that offset, if there is nothing yet; below 0,
                for something new.

        Raises:
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        if max_bytes < 0:
            raise CommandError("max_bytes must be 0 or more")
        entry = self._find(command_id)
        known = entry.output.total if offset < 0 else offset
        await anyio.lowlevel.checkpoint()  # who asks again and again lets the output come
        with anyio.move_on_after(wait):
            while wait > 0 and not entry.ended and entry.output.total <= known:
                await entry.news.wait()
        return entry.output.part(offset, max_bytes, entry.ended)

    async def write(
        self, command_id: str, data: bytes | str, *, timeout: float = DEFAULT_WRITE_TIMEOUT
    ) -> None:
        """Send to its stdin; with a terminal, type: Enter is a line feed, Ctrl-C the byte 3.

        What is sent to one that has ended, or has closed its stdin, is dropped.

        Args:
            command_id: Which.
            data: Bytes, or text to be encoded as UTF-8.
            timeout: Seconds in which it must be taken.

        Raises:
            CommandError: It does not read: a part may have been taken.
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        entry = self._find(command_id)
        raw = data.encode() if isinstance(data, str) else bytes(data)
        if not entry.ended:
            with anyio.move_on_after(timeout) as waiting:
                await entry.process.write_stdin(raw)
            if waiting.cancelled_caught:
                raise CommandError(
                    f"background command {command_id} has not read its input within {timeout:g} s"
                )

    async def close_stdin(self, command_id: str) -> None:
        """Let it see end of file; with a terminal, type what stands for that."""
        entry = self._find(command_id)
        if not entry.ended:
            await entry.process.close_stdin()

    async def resize(self, command_id: str, rows: int, columns: int) -> None:
        """Tell it that its terminal has another size, in characters.

        Raises:
            CommandError: The size is impossible, or it has no terminal.
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        entry = self._find(command_id)
        TerminalSize(rows, columns)
        if not entry.ended:
            await entry.process.resize(rows, columns)

    async def signal(self, command_id: str, number: int) -> None:
        """Send a signal to every process of its tree.

        Raises:
            CommandError: There is no such signal.
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        entry = self._find(command_id)
        if not entry.ended:
            await entry.process.kill(number)

    async def kill(self, command_id: str) -> None:
        """End its whole tree: TERM, a grace, KILL. Returns before that is done; see `wait`."""
        entry = self._find(command_id)
        if not entry.ended:
            await entry.process.kill()

    async def wait(self, command_id: str, timeout: float | None = None) -> Exit | None:
        """Wait for its end and return how it ended, or None if it runs on.

        Args:
            command_id: Which.
            timeout: Seconds to wait at most.

        Raises:
            SandboxLostError: Its sandbox ended under it.
            CommandMissingError: There is none of this id, or it ended too long ago.
        """
        entry = self._find(command_id)
        with anyio.move_on_after(timeout):
            while not entry.ended:
                await entry.news.wait()
        if entry.error is not None:
            raise entry.error.with_traceback(None)
        return entry.exit

    def _end_all(self, cause: str) -> None:
        """Give up what its session has ended."""
        self._closed = True
        for entry in self._entries.values():
            entry.finish(SandboxLostError(f"its sandbox has ended: {cause}", cause=cause))
            entry.scope.cancel()

    async def _drain(self, entry: Entry) -> None:
        """Take the output of one command until it ends. Raises nothing: it is a task of its own."""
        with entry.scope:
            try:
                await self._take(entry)
                entry.finish(await entry.process.wait())
            except DeadlineError:
                await self._destroy("it did not answer when its command's time was up")
                entry.finish(Exit(EXIT_TIMED_OUT, ExitReason.TIMED_OUT))
            except SandboxLostError as error:
                if not entry.ended and not self._closed:
                    self._lost(error)
                entry.finish(error)
            except SandboxError as error:
                entry.finish(error)

    async def _take(self, entry: Entry) -> None:
        """Take output as it comes, up to 20 MiB a second: a flood is not to keep us busy."""
        taken, turn_ends = 0, 0.0
        while (chunk := await entry.process.receive()) is not None:
            entry.output.add(chunk.data)
            entry.tell()
            now = anyio.current_time()
            if now >= turn_ends:
                taken, turn_ends = 0, now + _TURN_SECONDS
            taken += len(chunk.data)
            if taken >= _TURN_BYTES:
                await anyio.sleep(turn_ends - now)

    def _find(self, command_id: str) -> Entry:
        self._forget()
        entry = self._entries.get(command_id)
        if entry is None:
            known = ", ".join(self._entries) or "none"
            raise CommandMissingError(
                f"there is no background command {command_id!r:.80}", hint=f"there are: {known}"
            )
        return entry

    def _forget(self) -> None:
        """Forget what ended long ago, or before many others."""
        ended = [entry for entry in self._entries.values() if entry.ended]
        ended.sort(key=lambda entry: entry.ended_at)
        old = time.monotonic() - KEPT_SECONDS
        for number, entry in enumerate(ended, start=1):
            if entry.ended_at < old or number <= len(ended) - MAX_ENDED:
                del self._entries[entry.name]
