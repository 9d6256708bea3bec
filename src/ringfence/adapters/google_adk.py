"""Sandboxes for Google's Agent Development Kit: an environment, and a code executor.

`EnvironmentToolset(environment=AdkEnvironment(sandbox))` gives an agent tools for commands and
files; `LlmAgent(code_executor=AdkCodeExecutor(sandbox))` runs the code blocks of its answers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._missing import missing

try:
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.code_executors import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import (
        CodeExecutionInput,
        CodeExecutionResult,
        File,
    )
    from google.adk.environment import BaseEnvironment, ExecutionResult
except ModuleNotFoundError as error:
    raise missing("google-adk", error) from error

from pydantic import Field, PrivateAttr

from .. import sync
from ..backend import Sandbox
from ..errors import CommandError, ConfigError, SandboxClosedError, WorkspaceError
from ..export import readable, unreadable
from ..export.report import media_type
from ..models import TIMEOUT_MARKER, Command, FileInfo, FileKind, Result, shell
from ..sessions import Session
from ._reach import AnySandbox, Reach
from ._words import cut_note, with_note

__all__ = ("AdkCodeExecutor", "AdkEnvironment")

MAX_OUTPUT_FILES = 20
MAX_OUTPUT_FILE_BYTES = 8 * 1024 * 1024
"""Of one file that a code executor returns; at most `MAX_OUTPUT_FILES` of them."""


class AdkEnvironment(BaseEnvironment):
    """A sandbox or session as an environment.

    A program that fails is a result with its exit code, and so is one whose time was up
    (`timed_out`, with what it wrote). What of a long output was not kept is told on stderr.

    Args:
        sandbox: Where to run. `close` does not close it. One of an event loop can be used from
            others while that loop runs, and one of `ringfence.sync` from anywhere.

    Raises:
        ConfigError: It is no sandbox.
    """

    def __init__(self, sandbox: AnySandbox) -> None:
        self._reach = Reach(sandbox)
        self._inner = self._reach.sandbox

    @property
    def working_dir(self) -> Path:
        """The workspace, as programs in the sandbox see it."""
        return Path(self._inner.workspace)

    async def initialize(self) -> None:
        """Get ready; the sandbox of a session is made now. Safe to call again.

        Raises:
            SandboxError: As from `Session.ensure`.
        """
        if isinstance(self._inner, Session):
            await self._reach.run(self._inner.ensure)
        self.is_initialized = True

    async def close(self) -> None:
        """Refuse all later calls. Safe to call again."""
        self.is_initialized = False

    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        """Run a shell command in the workspace.

        Args:
            command: For `bash -c`, or `sh -c` where there is no bash.
            timeout: Seconds, clamped to the sandbox's maximum, which is also the default.

        Raises:
            CommandError: The command or its timeout can't be right.
            SandboxError: The sandbox could not run it, or the environment is not initialised.
        """
        self._check_open()
        seconds = self._inner.limits.max_timeout if timeout is None else timeout
        result = await self._reach.run(self._inner.exec, shell(command), timeout=seconds)
        return ExecutionResult(
            exit_code=result.exit_code,
            stdout=result.stdout_text,
            stderr=with_note(result.stderr_text, cut_note(result)),
            timed_out=result.timed_out,
        )

    async def read_file(self, path: str | Path) -> bytes:
        """Return a file's content, at most 64 MiB.

        Raises:
            WorkspaceError: One of its children says why; a missing one is a `FileNotFoundError`.
        """
        self._check_open()
        return await self._reach.run(self._inner.read_file, unreadable(os.fspath(path)))

    async def write_file(self, path: str | Path, content: str | bytes) -> None:
        """Write a file, making the directories above it.

        Raises:
            WorkspaceError: One of its children says why; each is an `OSError`.
        """
        self._check_open()
        data = content.encode() if isinstance(content, str) else content
        await self._reach.run(self._inner.write_file, unreadable(os.fspath(path)), data)

    def _check_open(self) -> None:
        if not self.is_initialized:
            raise SandboxClosedError("the environment is not open", hint="call initialize() first")


class AdkCodeExecutor(BaseCodeExecutor):
    """Runs the Python code of an agent's answers in a sandbox.

    Each run is a process of its own; what they share is the files of the workspace. A failure is
    told on stderr, since ADK takes a run without stderr to have succeeded: a line there says how
    the program ended where it said nothing itself.

    Args:
        where: A sandbox or a session for everything that this executor runs, or a
            `ringfence.sync.SessionManager`, from which each session of ADK gets one of its own.
        settings: The fields of the class, and those of `BaseCodeExecutor`.

    Attributes:
        collect_files: Return the regular files at the top of the workspace that a run has made or
            changed, at most 20 of at most 8 MiB.
        stateful: Not to be had.
        timeout_seconds: Seconds of a run, clamped to the sandbox's maximum. Default: the
            sandbox's own default.

    Raises:
        ConfigError: `where` is something else.
    """

    collect_files: bool = False
    stateful: bool = Field(default=False, frozen=True, exclude=True)

    _where: Reach | sync.SessionManager = PrivateAttr()

    def __init__(self, where: AnySandbox | sync.SessionManager, **settings: Any) -> None:
        if settings.get("stateful"):
            raise ConfigError(
                "the code executor keeps no state between runs", hint="keep it in files"
            )
        super().__init__(**settings)
        self._where = where if isinstance(where, sync.SessionManager) else Reach(where)

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        """Run a program; ADK calls this in a thread of its own.

        Raises:
            UnsupportedError: It was called in the thread of the sandbox's event loop.
            WorkspaceError: An input file has no usable name.
            SandboxError: The sandbox could not run it.
        """
        if isinstance(self._where, Reach):
            reach = self._where
        else:
            reach = Reach(self._where.session(_execution_id(invocation_context)))
        return reach.call(self._run, reach.sandbox, code_execution_input)

    async def _run(self, sandbox: Sandbox, wanted: CodeExecutionInput) -> CodeExecutionResult:
        for file in wanted.input_files:
            await sandbox.write_file(file.name, _content(file))
        before = await _files(sandbox) if self.collect_files else {}
        try:
            command = Command(("python3", "-"), stdin=wanted.code, fallback="python")
        except CommandError as error:  # it is the model's, who can mend it
            return CodeExecutionResult(stderr=f"{error}\n", exit_code=126)
        result = await sandbox.exec(command, timeout=self.timeout_seconds)
        made, note = await self._collected(sandbox, before)
        return CodeExecutionResult(
            stdout=with_note(result.stdout_text, cut_note(result) + note),
            stderr=_complaint(result),
            output_files=made,
            exit_code=result.exit_code,
        )

    async def _collected(
        self, sandbox: Sandbox, before: Mapping[str, FileInfo]
    ) -> tuple[list[File], str]:
        """Return what is new, and a note of what was left out."""
        if not self.collect_files:
            return [], ""
        found = [info for name, info in (await _files(sandbox)).items() if info != before.get(name)]
        files: list[File] = []
        for info in found:
            if info.size <= MAX_OUTPUT_FILE_BYTES and len(files) < MAX_OUTPUT_FILES:
                files += await _read(sandbox, info)
        left = len(found) - len(files)
        note = f"[{left} files are not returned: too large, too many, or gone]\n" if left else ""
        return files, note


async def _read(sandbox: Sandbox, info: FileInfo) -> list[File]:
    """Return a file, or nothing if what the run has left running has taken it away."""
    try:
        data = await sandbox.read_file(info.name, max_bytes=MAX_OUTPUT_FILE_BYTES)
    except WorkspaceError:
        return []
    kind = media_type(os.fsencode(info.name))
    return [File(name=readable(info.name), content=data, mime_type=kind)]


async def _files(sandbox: Sandbox) -> dict[str, FileInfo]:
    listing = await sandbox.list_files()
    return {info.name: info for info in listing.entries if info.kind is FileKind.FILE}


def _complaint(result: Result) -> str:
    text = result.stderr_text
    if result.timed_out:
        return with_note(text, f"{TIMEOUT_MARKER}\n")
    if result.ok or text.strip():
        return text
    how = ", ended by the memory limit" if result.out_of_memory else ""
    return with_note(text, f"[exit code: {result.exit_code}{how}]\n")


def _content(file: File) -> bytes:
    """Return a file's bytes; ADK has text for base64, but callers may have it for text."""
    if isinstance(file.content, bytes):
        return file.content
    try:
        return base64.b64decode(file.content, validate=True)
    except (binascii.Error, ValueError):
        return file.content.encode()


def _execution_id(context: InvocationContext) -> str:
    """Return a name for a session of ADK, whose own parts may be any text."""
    session = context.session
    parts = (session.app_name, session.user_id, session.id)
    return "adk-" + hashlib.sha256(repr(parts).encode()).hexdigest()[:40]
