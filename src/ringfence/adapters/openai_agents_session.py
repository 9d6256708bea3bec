"""Sessions of the OpenAI Agents SDK: their commands; see `openai_agents`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    PtySessionNotFoundError,
)
from agents.sandbox.session.pty_types import (
    PtyExecUpdate,
    clamp_pty_yield_time_ms,
    resolve_pty_write_yield_time_ms,
    truncate_text_by_tokens,
)
from agents.sandbox.types import ExecResult, User

from ..errors import CommandMissingError, SandboxError
from ..models import Command, TerminalSize
from ._terminals import Looked, Terminals
from ._words import cut_note, with_note
from .openai_agents_files import WorkspaceSession
from .openai_agents_life import AnyManager, RingfenceSandboxSessionState, about, check_user

__all__ = ("RingfenceSandboxSession",)


class RingfenceSandboxSession(WorkspaceSession):
    """A session of the SDK in one sandbox; made by `RingfenceSandboxClient`.

    When its sandbox has ended, every call says so: it never goes on in an empty one unnoticed.
    """

    def __init__(self, state: RingfenceSandboxSessionState, sessions: AnyManager) -> None:
        super().__init__(state, sessions)
        self._terminals = Terminals(self._box.background)

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        check_user(user)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        longest = self._box.limits.max_timeout
        try:
            wanted = await self._command(command, longest if timeout is None else timeout)
            result = await self._do(self._box.exec, wanted)
        except SandboxError as error:
            raise _not_run(command, error) from error
        stderr = with_note(result.stderr_text, note) if (note := cut_note(result)) else None
        if result.timed_out:
            raise ExecTimeoutError(
                command=command,
                timeout_s=result.timeout,
                context={"stdout": result.stdout_text, "stderr": stderr or result.stderr_text},
            )
        kept = result.stderr if stderr is None else stderr.encode()
        return ExecResult(stdout=result.stdout, stderr=kept, exit_code=result.exit_code)

    async def _command(
        self, words: tuple[str | Path, ...], timeout: float | None, tty: bool = False
    ) -> Command:
        variables = await self.state.manifest.environment.resolve()
        size = TerminalSize() if tty else None
        return Command([str(word) for word in words], env=variables, timeout=timeout, terminal=size)

    def supports_pty(self) -> bool:
        """Whether commands can have terminals here."""
        return self._box.capabilities.terminal

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a command that may run on, and return what it writes within `yield_time_s`.

        Raises:
            ExecTransportError: It can't be started; 16 run in this session, for example.
        """
        words = tuple(self._prepare_exec_command(*command, shell=shell, user=user))
        milliseconds = 10_000 if yield_time_s is None else int(yield_time_s * 1000)
        seconds = clamp_pty_yield_time_ms(milliseconds) / 1000
        try:
            number = await self._do(
                self._terminals.start, await self._command(words, timeout, tty=tty)
            )
            return _update(await self._do(self._terminals.look, number, seconds), max_output_tokens)
        except SandboxError as error:
            raise _not_run(words, error) from error

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Type into a terminal, and return what is written within `yield_time_s`.

        Raises:
            PtySessionNotFoundError: No such command runs.
            RuntimeError: It has no terminal.
            ExecTransportError: It does not read, or its sandbox has ended.
        """
        milliseconds = 250 if yield_time_s is None else int(yield_time_s * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=milliseconds, input_empty=not chars)
        try:
            if chars:
                if not self._terminals.has_terminal(session_id):
                    raise RuntimeError("stdin is not available for this process")  # as its tool has
                await self._do(self._terminals.type, session_id, chars)
            looked = await self._do(self._terminals.look, session_id, wait / 1000)
        except CommandMissingError as error:
            raise PtySessionNotFoundError(session_id=session_id, cause=error) from error
        except SandboxError as error:
            raise _not_run(("write_stdin",), error) from error
        return _update(looked, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """End all commands that `pty_exec_start` has started."""
        if self._is_there():
            await self._reach.run(self._terminals.end_all)


def _update(looked: Looked, max_output_tokens: int | None) -> PtyExecUpdate:
    text, tokens = truncate_text_by_tokens(looked.text, max_output_tokens)
    return PtyExecUpdate(
        process_id=looked.number,
        output=text.encode(),
        exit_code=looked.exit_code,
        original_token_count=tokens,
    )


def _not_run(command: Sequence[str | Path], error: SandboxError) -> ExecTransportError:
    return ExecTransportError(
        command=command,
        message=str(error),
        context=about(error),
        cause=error,
        retryable=error.retryable,
    )
