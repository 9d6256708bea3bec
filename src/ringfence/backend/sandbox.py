"""One sandbox: what a backend must implement of it, and what users call."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import replace
from typing import Any, Self, final

import anyio

from .. import execution
from ..errors import CommandError, SandboxLostError, UnsupportedError
from ..models import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT,
    MAX_TIMEOUT,
    Capabilities,
    Chunk,
    Command,
    Limits,
    Result,
    SandboxSpec,
)
from ..process import FIRST_STDIN_BYTES, Launch, Process
from .closeable import Closeable
from .commands import as_command, command_cwd
from .files import SandboxFiles

__all__ = ("Sandbox",)


class Sandbox(SandboxFiles, Closeable):
    """One isolated environment with one writable workspace.

    Made by `Backend.create`. Commands may run in it at the same time; each is a process tree of
    its own. It lives until `aclose`, its maximum age, or its death.
    """

    id: str
    """Its own name, unique on this machine."""
    spec: SandboxSpec
    """What was asked for."""
    limits: Limits
    """The limits in force, every default filled in."""
    capabilities: Capabilities
    """What its backend can promise."""

    keeps_deadlines: bool = False
    """Whether its processes raise `DeadlineError` by themselves, `HOST_SLACK` after the end of a
    command's time and grace, so that nothing above has to watch the clock."""

    # What a backend must implement.

    @abstractmethod
    async def _start(self, launch: Launch) -> Process:
        """Start a command.

        Raises:
            SandboxLostError: The sandbox is dead.
        """

    @abstractmethod
    async def _destroy(self, cause: str) -> None:
        """End the sandbox at once because it can't be trusted any more.

        Every later call gets a `SandboxLostError` with this cause.
        """

    async def _ping(self) -> None:
        """Return if the sandbox is alive, at the least cost that its backend knows.

        Raises:
            SandboxLostError: The sandbox is dead.
        """
        if self.capabilities.files:
            await self._file_operation("stat", b".", b"")

    # What users call.

    @final
    async def __aenter__(self) -> Self:
        return self

    @final
    async def ping(self, *, timeout: float = 2.0) -> None:
        """Find out whether the sandbox is alive and answers, without starting a command.

        Args:
            timeout: Seconds in which it must answer.

        Raises:
            SandboxLostError: It is dead, or has not answered in time.
            SandboxClosedError: It has been closed.
        """
        with anyio.move_on_after(timeout) as waiting:
            await self._ping()
        if waiting.cancelled_caught:
            raise SandboxLostError(
                f"sandbox {self.id} has not answered within {timeout:g} s",
                cause="silent",
                backend=self.backend,
            )

    @final
    async def start(self, command: Command, *, stdin_open: bool = False) -> Process:
        """Start a command and return it running.

        Without a timeout in the command, only the sandbox's maximum age bounds it.

        Args:
            command: What to run.
            stdin_open: Keep its stdin open for `write_stdin` until `close_stdin`.

        Raises:
            CommandError: The command can't be run anywhere, or its stdin is more than 64 KiB or
                an iterator: send that with `write_stdin`.
            PathError: Its cwd is not in the workspace.
            UnsupportedError: It is to have a terminal, and this backend has none.
            SandboxLostError: The sandbox is dead.
        """
        timeout = None if command.timeout is None else self._clamp(command.timeout)
        launch, rest = self._launch(command, timeout, None)
        if rest is not None:
            raise CommandError(
                "start() takes at most 64 KiB of stdin, as bytes or text",
                hint="use stdin_open=True and write_stdin()",
            )
        return await self._start(replace(launch, stdin_open=stdin_open))

    @final
    async def exec(
        self,
        command: Command | str,
        args: Sequence[str] = (),
        *,
        timeout: float | None = None,
        on_output: Callable[[Chunk], Any] | None = None,
    ) -> Result:
        """Run a command to its end and return what it did.

        Args:
            command: A `Command`, or a program's name with `args` beside it.
            args: The arguments that follow a program's name.
            timeout: Seconds; overrides the command's own.
            on_output: Called with each chunk as it arrives, decoded; may be async. An exception
                from it stops the command and reaches the caller.

        Raises:
            CommandError: The command can't be run anywhere.
            SandboxLostError: The sandbox died; the output so far is lost.
        """
        run = self.stream(command, args, timeout=timeout)
        if on_output is None:
            return await run.complete()
        async with run:
            async for chunk in run:
                outcome = on_output(chunk)
                if inspect.isawaitable(outcome):
                    await outcome
            return run.result

    @final
    def stream(
        self, command: Command | str, args: Sequence[str] = (), *, timeout: float | None = None
    ) -> execution.Run:
        """Run a command and hand out its output as it arrives.

        Use it as `async with sandbox.stream(...) as run`, iterate over `run` for decoded chunks,
        and read `run.result` after the last one. Leaving the block early kills the command.
        """
        wanted = as_command(command, args, timeout)
        seconds = self._clamp(wanted.timeout or self.limits.timeout or DEFAULT_TIMEOUT)
        cap = wanted.output_bytes
        if cap is None:
            cap = self.limits.output_bytes or DEFAULT_OUTPUT_BYTES
        launch, rest = self._launch(wanted, seconds, cap)
        held = self.capabilities.limits
        return execution.Run(
            self._start, self._destroy, launch, rest, held, keeps_deadlines=self.keeps_deadlines
        )

    # What follows.

    def _clamp(self, timeout: float) -> float:
        return min(timeout, self.limits.max_timeout or MAX_TIMEOUT)

    def _launch(
        self, command: Command, timeout: float | None, cap: int | None
    ) -> tuple[Launch, bytes | AsyncIterable[bytes] | None]:
        """Return a launch, and what of stdin must be sent after it."""
        command_cwd(command, self.workspace)
        if command.terminal is not None and not self.capabilities.terminal:
            raise UnsupportedError(
                f"a command can't have a terminal on {self.backend} here",
                backend=self.backend,
                hint="leave `terminal` out, or use a backend whose capabilities have it",
            )
        if self.spec.env:
            command = replace(command, env={**self.spec.env, **command.env})
        stdin = command.stdin.encode() if isinstance(command.stdin, str) else command.stdin
        first, rest = b"", None if stdin is None else stdin
        if isinstance(stdin, bytes):
            first, rest = stdin[:FIRST_STDIN_BYTES], stdin[FIRST_STDIN_BYTES:] or None
        grace = self.limits.kill_grace or 0.0
        return Launch(command, timeout, cap, grace, first, rest is not None), rest

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} backend={self.backend}>"
