"""Commands that a framework starts, looks at now and then, and types into."""

from __future__ import annotations

import codecs
import time
from dataclasses import dataclass, field

from ..errors import CommandMissingError, SandboxLostError
from ..models import Command
from ..sessions import BackgroundCommands

__all__ = ("Looked", "Terminals")

_FIRST_NUMBER = 1000
_MOST_AT_ONCE = 1 << 20  # bytes of output of one look, which is what is kept of a command's


@dataclass(frozen=True)
class Looked:
    """What a look at a command has shown.

    Attributes:
        number: Its number, or None if it has ended.
        text: What it has written since the last look.
        exit_code: Its exit code, once it has ended.
    """

    number: int | None
    text: str
    exit_code: int | None


@dataclass
class _Known:
    command_id: str
    has_terminal: bool
    offset: int = 0
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )


class Terminals:
    """The background commands of a session, by numbers of their own."""

    def __init__(self, background: BackgroundCommands) -> None:
        self._background = background
        self._known: dict[int, _Known] = {}
        self._next = _FIRST_NUMBER

    def has_terminal(self, number: int) -> bool:
        """Whether a command has a terminal.

        Raises:
            CommandMissingError: There is no such command, or it has ended.
        """
        return self._find(number).has_terminal

    async def start(self, command: Command) -> int:
        """Start a command and return its number.

        Raises:
            SandboxError: As from `BackgroundCommands.start`.
        """
        has_terminal = command.terminal is not None
        made = await self._background.start(command, stdin_open=has_terminal)
        self._next += 1
        self._known[self._next] = _Known(made.id, has_terminal)
        return self._next

    async def type(self, number: int, text: str) -> None:
        """Type into a terminal.

        Raises:
            CommandMissingError: There is no such command, or it has ended.
            CommandError: It does not read.
        """
        await self._background.write(self._find(number).command_id, text.encode())

    async def look(self, number: int, seconds: float) -> Looked:
        """Wait until a command ends, at most so long, and return what it has written meanwhile.

        Of more than 1 MiB the end is returned, and a note of what is not.

        Raises:
            CommandMissingError: There is no such command, or its end has been seen.
            SandboxLostError: Its sandbox has ended under it.
        """
        known = self._find(number)
        until = time.monotonic() + seconds
        ended = False
        while not ended and (left := until - time.monotonic()) > 0:
            ended = await self._is_over(known, left)
        part = await self._background.read(known.command_id, known.offset, max_bytes=_MOST_AT_ONCE)
        known.offset = part.next_offset
        text = known.decoder.decode(part.data, final=ended)
        if part.dropped:
            text = f"[{part.dropped} bytes before this were not kept]\n{text}"
        if not ended:
            return Looked(number, text, None)
        self._known.pop(number, None)
        end = (await self._background.get(known.command_id)).exit
        return Looked(None, text, end.code if end is not None else None)

    async def end_all(self) -> None:
        """End all that run. Safe to call again."""
        known, self._known = self._known, {}
        for one in known.values():
            try:
                await self._background.kill(one.command_id)
            except (CommandMissingError, SandboxLostError):
                continue  # nothing is left to end

    async def _is_over(self, known: _Known, seconds: float) -> bool:
        """Wait for a command's end; whether it has come."""
        return await self._background.wait(known.command_id, seconds) is not None

    def _find(self, number: int) -> _Known:
        if number not in self._known:
            raise CommandMissingError(f"no command {number} runs here")
        return self._known[number]
