"""A running command, as the one primitive that every backend provides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .errors import CommandError, UnsupportedError
from .models import Chunk, Command, Exit

__all__ = ("FIRST_STDIN_BYTES", "HOST_SLACK", "DeadlineError", "Launch", "Process")

HOST_SLACK = 9.0
"""Seconds that the sandbox's own deadline is given before the host's destroys it."""

FIRST_STDIN_BYTES = 65536
"""What a pipe holds: so much of stdin can be given with the start of a command."""


@dataclass(frozen=True)
class Launch:
    """A command with every default filled in: what a backend gets to start.

    Attributes:
        command: What to run.
        timeout: Seconds until its tree is killed, or None if only the sandbox's age bounds it.
        output_bytes: Bytes of each stream to hand out before the rest is drained and counted, or
            None to hand out everything.
        kill_grace: Seconds between TERM and KILL.
        stdin: The first bytes of stdin, at most `FIRST_STDIN_BYTES`.
        stdin_open: Whether more will come by `write_stdin`, up to `close_stdin`. Without it the
            command reads end of file after `stdin`.
    """

    command: Command
    timeout: float | None
    output_bytes: int | None
    kill_grace: float
    stdin: bytes = b""
    stdin_open: bool = False


class DeadlineError(Exception):
    """The host's own deadline for a command has passed without a word from its sandbox."""


class Process(ABC):
    """One running command. Deadlines, caps and decoding are written above it.

    Output must be consumed: a program that writes more than the window waits for its reader.
    """

    pid: int | None = None
    """The process id inside the sandbox, where the backend knows it."""

    @abstractmethod
    async def receive(self) -> Chunk | None:
        """Return the next output in order of arrival, or None when the command has ended.

        It has ended when its main process has, even if a left-over child holds its pipes open.

        Raises:
            SandboxLostError: The sandbox died under it.
        """

    @abstractmethod
    async def wait(self) -> Exit:
        """Return how the command ended. Output that nobody received is dropped.

        Raises:
            SandboxLostError: The sandbox died, or the command's end can't be told for certain.
        """

    @abstractmethod
    async def kill(self, signal: int | None = None) -> None:
        """End the command's whole tree: TERM, a grace, KILL. Safe after its end.

        Args:
            signal: Send this signal to every process of the tree instead, and nothing more.
        """

    @abstractmethod
    async def write_stdin(self, data: bytes) -> None:
        """Send bytes to the command's stdin, waiting while it does not read.

        Data for a command that has closed its stdin or ended is dropped.
        """

    @abstractmethod
    async def close_stdin(self) -> None:
        """Let the command see end of file. Safe to call again."""

    async def _is_waiting(self) -> bool:
        """Whether it still runs and has not been given its stdin, which is held open for it.

        Raises:
            UnsupportedError: Nothing can be handed over to the commands of this backend.
            SandboxLostError: The sandbox is dead.
        """
        raise UnsupportedError("the time of a command can't begin after its start here")

    async def _hand_over(self, stdin: bytes, seconds: float, more: bool) -> None:
        """Give a command that waits the beginning of its stdin, and let its time begin.

        Args:
            stdin: At most `FIRST_STDIN_BYTES`.
            seconds: Its time limit, from now.
            more: Whether more of stdin will come by `write_stdin`.
        """
        raise UnsupportedError("the time of a command can't begin after its start here")

    async def resize(self, rows: int, columns: int) -> None:
        """Tell the command that its terminal has another size. Safe after its end.

        Args:
            rows: Its height in characters, 1 to 65,535.
            columns: Its width, likewise.

        Raises:
            CommandError: The size is impossible, or the command has no terminal.
        """
        raise CommandError(
            "the command has no terminal", hint="start it with Command(terminal=TerminalSize())"
        )

    def __aiter__(self) -> Process:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self.receive()
        if chunk is None:
            raise StopAsyncIteration
        return chunk
