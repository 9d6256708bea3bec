"""`ringfence shell`: a person's terminal, in a sandbox.

The local terminal is made raw, so that every key goes inside as it is, and its size is followed.
Whatever ends us, it is put back as it was, with what a program inside may have switched on.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress

import anyio

from ..backend import Backend, Sandbox
from ..errors import CommandError, ConfigError, SandboxLostError, UnsupportedError
from ..models import Command, Exit, ExitReason, SandboxSpec, TerminalSize
from ..process import Process
from ..settings import Settings
from . import words
from .container import show_fetching
from .interrupts import unless_interrupted
from .job import Copy, Job
from .run import choose, no_isolation
from .stdio import Writer, read_stdin

__all__ = ("check_terminals", "parse_command", "shell")

_SHELL = ("bash",)
_FALLBACK = "sh"
_TERM = re.compile(r"[A-Za-z0-9+._-]{1,64}\Z")

# The normal screen, a cursor, no reports of the mouse or of pastes, plain characters.
_RESET = b"\x1b[?1047l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[0m"


def parse_command(text: str | None) -> tuple[str, ...]:
    """Split a program and its arguments, as a shell does; without one, it is a shell.

    Raises:
        ConfigError: There is no program in it, or a quote is open.
    """
    if text is None:
        return _SHELL
    try:
        argv = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--command {text!r} can't be read: {error}") from None
    if not argv or not argv[0]:
        raise ConfigError("--command needs the name of a program")
    return argv


async def shell(settings: Settings, argv: tuple[str, ...], files: tuple[Copy, ...]) -> int:
    """Run a program of a new sandbox on this terminal, and return its exit code.

    Raises:
        ConfigError: Stdin or stdout is no terminal.
        UnsupportedError: The backend has no terminals.
        SandboxError: The sandbox could not run it.
    """
    for descriptor, name in enumerate(("stdin", "stdout")):
        if not os.isatty(descriptor):
            raise ConfigError(
                f"a shell needs a terminal, and {name} is none",
                hint="`ringfence run` takes its input from a pipe",
            )
    return await unless_interrupted(_Shell(settings, argv, files).perform)


class _Shell:
    """One person's stay in a sandbox."""

    def __init__(self, settings: Settings, argv: tuple[str, ...], files: tuple[Copy, ...]) -> None:
        self._settings = settings
        self._argv = argv
        self._files = files
        self._writer = Writer()

    async def perform(self) -> int:
        job = Job("command", self._argv, self._files)
        backend = await choose(self._settings, job, shows_host=False)
        if backend.name == "container":
            show_fetching(backend)
        if warning := no_isolation(self._settings, backend):
            words.say(warning)
        spec = SandboxSpec(
            env=self._settings.env, mounts=self._settings.mounts, labels={"command": "shell"}
        )
        async with backend:
            check_terminals(backend)
            async with await backend.create(spec) as sandbox:
                for file in self._files:
                    await file.put(sandbox)
                end = await self._stay(sandbox)
        if end.message:
            words.say(end.message)
        elif end.reason is ExitReason.OUT_OF_MEMORY:
            words.say("killed at its memory limit")
        return end.code

    async def _stay(self, sandbox: Sandbox) -> Exit:
        with _raw_terminal():
            process = await sandbox.start(self._command(), stdin_open=True)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_obey_signals, process)
                tasks.start_soon(_type, process)
                while (chunk := await process.receive()) is not None:
                    await self._writer.write(1, chunk.data)
                tasks.cancel_scope.cancel()
            return await process.wait()

    def _command(self) -> Command:
        term = os.environ.get("TERM", "")
        known = _TERM.match(term) and "TERM" not in self._settings.env
        return Command(
            self._argv,
            env={"TERM": term} if known else {},
            fallback=_FALLBACK if self._argv == _SHELL else None,
            terminal=_size(),
        )


def check_terminals(backend: Backend) -> None:
    """Refuse a backend before it has made anything.

    Raises:
        UnsupportedError: It has no terminals.
    """
    if not backend.capabilities.terminal:
        raise UnsupportedError(
            f"{backend.name} has no terminals here",
            backend=backend.name,
            hint="bubblewrap has them, and container with the transport auto or attach",
        )


def _size() -> TerminalSize:
    """Return the size of our terminal; one that says that it has none gets the usual."""
    try:
        found = os.get_terminal_size(0)
    except OSError:  # it is gone, which we are told in other ways too
        return TerminalSize()
    usual = TerminalSize()
    return TerminalSize(found.lines or usual.rows, found.columns or usual.columns)


async def _obey_signals(process: Process) -> None:
    """Follow our terminal's size, and end in order at what would else end us on the spot."""
    wanted = (signal.SIGWINCH, signal.SIGQUIT)
    with anyio.open_signal_receiver(*wanted) as signals, suppress(SandboxLostError):
        size = _size()  # it may have changed before we listened
        await process.resize(size.rows, size.columns)
        async for number in signals:
            if number == signal.SIGQUIT:
                await process.kill()
            size = _size()
            await process.resize(size.rows, size.columns)


async def _type(process: Process) -> None:
    """Send every key on; when our terminal is gone, so is the reason for the program."""
    async with aclosing(read_stdin()) as parts:
        with suppress(SandboxLostError):
            with suppress(CommandError):
                async for part in parts:
                    await process.write_stdin(part)
            await process.kill()


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Make the terminal raw, and put it back on every way out."""
    import termios  # not on Windows, which has no terminals to give either
    import tty

    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        with suppress(OSError):  # nobody is there to see it
            os.write(1, _RESET)
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
