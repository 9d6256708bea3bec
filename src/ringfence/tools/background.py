"""The tools for commands that run on while the model does something else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..backend import Sandbox
from ..errors import LimitError, ToolError
from ..models import TIMEOUT_MARKER, Command, ExitReason, TerminalSize, shell
from ..sessions import BackgroundCommand, BackgroundCommands, OutputPart, Session
from .functions import check_script
from .text import MAX_TEXT, whole_characters

__all__ = (
    "MAX_WAIT",
    "CommandNews",
    "hear",
    "list_commands",
    "read_output",
    "start",
    "start_command",
    "stop",
    "stop_command",
    "tell",
    "write_input",
)

MAX_WAIT = 60.0
"""Seconds that one call waits for output at most."""

_FIRST_WAIT = 1.0
_STOP_SECONDS = 15.0
_INTERRUPT = 2
_WIDTH = TerminalSize(40, 120)

# What steers a terminal: sequences with an end of their own, and single characters.
_STEERING = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)


async def start_command(
    sandbox: Sandbox, command: str, terminal: bool = False, wait: float = _FIRST_WAIT
) -> str:
    """Start a shell command that runs on, and return its id and what it has written so far.

    Args:
        sandbox: A session.
        command: For `bash -c`, or `sh -c` where there is no bash.
        terminal: Whether it gets a terminal, for programs that ask for one.
        wait: Seconds to wait for its first output, or its end; at most 60.

    Raises:
        ToolError: It is too long, as many run already, or there are no terminals here.
        SandboxError: The sandbox could not run it.
    """
    return (await start(sandbox, command, terminal, wait)).told()


async def start(
    sandbox: Sandbox, command: str, terminal: bool = False, wait: float = _FIRST_WAIT
) -> CommandNews:
    """Start a shell command that runs on; see `start_command`."""
    check_script(command)
    wanted = shell(command)
    if terminal:
        if not sandbox.capabilities.terminal:
            raise ToolError("this sandbox has no terminals; start it without one")
        wanted = Command(wanted.argv, fallback=wanted.fallback, terminal=_WIDTH)
    jobs = _jobs(sandbox)
    try:
        found = await jobs.start(wanted)
    except LimitError as error:
        if error.limit != "background_commands":
            raise
        raise ToolError(f"{error.message}; end one with stop_command") from None
    return await _news(jobs, found.id, 0, wait)


async def read_output(
    sandbox: Sandbox,
    command_id: str,
    offset: int | None = None,
    wait: float = 0.0,
    limit: int = MAX_TEXT,
) -> str:
    """Return output of a background command, and whether it runs.

    Args:
        sandbox: A session.
        command_id: Which.
        offset: The byte to begin with; default: as near to the end as `limit` allows.
        wait: Seconds to wait for something at that offset, or for something new; at most 60.
        limit: The most bytes to return, at most 30,000.

    Raises:
        CommandMissingError: There is none of this id.
    """
    return (await hear(sandbox, command_id, offset, wait, limit)).told()


async def hear(
    sandbox: Sandbox,
    command_id: str,
    offset: int | None = None,
    wait: float = 0.0,
    limit: int = MAX_TEXT,
) -> CommandNews:
    """Return output of a background command; see `read_output`."""
    most = min(limit, MAX_TEXT)
    return await _news(_jobs(sandbox), command_id, -most if offset is None else offset, wait, most)


async def write_input(
    sandbox: Sandbox, command_id: str, text: str = "", end: bool = False, wait: float = _FIRST_WAIT
) -> str:
    """Send text to a background command's stdin, and return what it writes then.

    Args:
        sandbox: A session.
        command_id: Which.
        text: Sent as it is, so with a line feed where one is to be entered.
        end: Whether that was all: it reads end of file then.
        wait: Seconds to wait for output; at most 60.

    Raises:
        ToolError: It has ended.
        CommandError: It does not read.
        CommandMissingError: There is none of this id.
    """
    return (await tell(sandbox, command_id, text, end, wait)).told()


async def tell(
    sandbox: Sandbox, command_id: str, text: str = "", end: bool = False, wait: float = _FIRST_WAIT
) -> CommandNews:
    """Send text to a background command's stdin; see `write_input`."""
    jobs = _jobs(sandbox)
    found = await jobs.get(command_id)
    if not found.running:
        raise ToolError(f"{command_id} does not run any more; read_output tells how it ended")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ToolError("the text has half of a surrogate pair; write whole characters") from None
    await jobs.write(command_id, data)
    if end:
        await jobs.close_stdin(command_id)
    return await _news(jobs, command_id, found.output_bytes, wait)


async def stop_command(sandbox: Sandbox, command_id: str, interrupt: bool = False) -> str:
    """End a background command and all that it has started.

    Args:
        sandbox: A session.
        command_id: Which.
        interrupt: Only send it SIGINT, as Ctrl-C does; it may run on.

    Raises:
        CommandMissingError: There is none of this id.
    """
    return (await stop(sandbox, command_id, interrupt)).told()


async def stop(sandbox: Sandbox, command_id: str, interrupt: bool = False) -> CommandNews:
    """End a background command; see `stop_command`."""
    jobs = _jobs(sandbox)
    found = await jobs.get(command_id)
    if interrupt:
        await jobs.signal(command_id, _INTERRUPT)
        return await _news(jobs, command_id, found.output_bytes, _FIRST_WAIT)
    await jobs.kill(command_id)
    if found.running:
        await jobs.wait(command_id, _STOP_SECONDS)
    return await _news(jobs, command_id, found.output_bytes, 0.0)


async def list_commands(sandbox: Sandbox) -> str:
    """Return the background commands: those that run, and those that ended lately.

    Args:
        sandbox: A session.
    """
    found = await _jobs(sandbox).commands()
    lines = [
        f"{one.id}  {_state(one)}  {one.output_bytes} bytes of output  {_plain(one.command)}"
        for one in found
    ]
    running = sum(one.running for one in found)
    return "\n".join([*lines, f"[{running} running, {len(found) - running} ended]"])


def _jobs(sandbox: Sandbox) -> BackgroundCommands:
    if not isinstance(sandbox, Session):
        raise ToolError("only a session has background commands; run it with the terminal")
    return sandbox.background


@dataclass(frozen=True)
class CommandNews:
    """A part of what a background command has written, and how it is doing.

    Attributes:
        command: What is known of the command.
        text: The part, as characters; of a terminal, without what steers it.
        part: The part as it was read, with how much there is in all.
        end: The byte after the part's last.
    """

    command: BackgroundCommand
    text: str
    part: OutputPart
    end: int

    def told(self) -> str:
        """Return it for a model: the output, and as the last line what is to be known of it."""
        line_end = "\n" if self.text and not self.text.endswith("\n") else ""
        return f"{self.text}{line_end}{self._note()}"

    def _note(self) -> str:
        known, part = self.command, self.part
        told = [f"{known.id}: {_state(known)}"]
        if part.dropped:
            told.append(f"{part.dropped} bytes before byte {part.offset} are not kept any more")
        elif part.offset and part.data:
            told.append(f"from byte {part.offset}")
        if self.end < part.total:
            told.append(
                f"{part.total - self.end} more bytes are there, read on with offset={self.end}"
            )
        elif known.running:
            told.append(f"read on with offset={self.end}")
        return f"[{'; '.join(told)}]"


async def _news(
    jobs: BackgroundCommands, command_id: str, offset: int, wait: float, most: int = MAX_TEXT
) -> CommandNews:
    part = await jobs.read(command_id, offset, max_bytes=most, wait=min(wait, MAX_WAIT))
    known = await jobs.get(command_id)
    data = part.data
    if not part.ended or part.next_offset < part.total:
        data = whole_characters(data)
    text = data.decode("utf-8", "replace")
    return CommandNews(
        known, _plain(text) if known.terminal else text, part, part.offset + len(data)
    )


def _state(known: BackgroundCommand) -> str:
    if known.running:
        return f"running for {known.age_s:.0f} s"
    end = known.exit
    if end is None:
        return f"ended with its sandbox ({known.lost})"
    if end.reason is ExitReason.TIMED_OUT:
        return TIMEOUT_MARKER.strip("[]")
    if end.reason is ExitReason.OUT_OF_MEMORY:
        return f"exit code: {end.code}, ended by the memory limit"
    return f"exit code: {end.code}"


def _plain(text: str) -> str:
    """Return what a terminal shows, without what steers it."""
    return _STEERING.sub("", text.replace("\r\n", "\n"))
