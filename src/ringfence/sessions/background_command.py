"""One background command: what is kept of it, and what is told."""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio

from ..errors import SandboxError, SandboxLostError
from ..models import Command, Exit
from ..process import Process
from .kept_output import KeptOutput

__all__ = ("BackgroundCommand", "Entry")

KEPT_BYTES = 1 << 20
"""Bytes of each command's output that are kept: the last ones."""

_LONGEST_NAME = 200


@dataclass(frozen=True)
class BackgroundCommand:
    """What is known of a background command.

    Attributes:
        id: Its name in its session, such as `c1`; none is given twice.
        command: What was started, shortened.
        terminal: Whether it has a terminal.
        running: Whether it runs.
        age_s: Seconds since its start.
        output_bytes: All that it has written so far.
        exit: How it ended, or None while it runs or where its sandbox ended under it.
        lost: Why its sandbox ended under it, or None.
    """

    id: str
    command: str
    terminal: bool
    running: bool
    age_s: float
    output_bytes: int
    exit: Exit | None = None
    lost: str | None = None


class Entry:
    """One command, from its start to when it is forgotten."""

    def __init__(self, name: str, command: Command, process: Process) -> None:
        self.name = name
        self.command = command
        self.process = process
        self.output = KeptOutput(KEPT_BYTES)
        self.began = time.monotonic()
        self.ended_at = 0.0
        self.exit: Exit | None = None
        self.error: SandboxError | None = None
        self.scope = anyio.CancelScope()
        self.news = anyio.Event()

    @property
    def ended(self) -> bool:
        """Whether it has ended, or its sandbox has."""
        return self.exit is not None or self.error is not None

    def tell(self) -> None:
        """Wake whoever waits for more."""
        self.news.set()
        self.news = anyio.Event()

    def finish(self, end: Exit | SandboxError) -> None:
        """Note how it ended; what comes later does not count."""
        if self.ended:
            return
        if isinstance(end, Exit):
            self.exit = end
            self.output.add(end.message.encode())
        else:
            self.error = end
        self.ended_at = time.monotonic()
        self.tell()

    def about(self) -> BackgroundCommand:
        """Return what is to be told of it."""
        error = self.error
        lost = None
        if error is not None:
            lost = error.cause if isinstance(error, SandboxLostError) else error.message
        return BackgroundCommand(
            self.name,
            _shown(self.command),
            self.command.terminal is not None,
            not self.ended,
            time.monotonic() - self.began,
            self.output.total,
            self.exit,
            lost,
        )


def _shown(command: Command) -> str:
    """Return a command for people: a script as it is, else its words."""
    words = [word.decode("utf-8", "replace") for word in command.argv_bytes]
    is_script = len(words) == 3 and words[:2] == ["bash", "-c"]
    text = words[2] if is_script else " ".join(words)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
