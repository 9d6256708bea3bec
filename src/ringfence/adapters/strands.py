"""A sandbox for Strands Agents: `Agent(sandbox=StrandsSandbox(sandbox))`.

Commands and files go the sandbox's own ways: no content travels in a shell's text. The tools that
it gives an agent are Strands' own file editor and shell, bound to it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import AsyncGenerator
from typing import Any

from ._missing import missing

try:
    from strands.sandbox import (
        ExecutionResult,
        FileInfo,
        Sandbox,
        StreamChunk,
    )
    from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
    from strands.types.tools import AgentTool
    from strands.vended_tools.file_editor import make_file_editor
    from strands.vended_tools.shell import make_shell
except ModuleNotFoundError as error:
    raise missing("strands", error) from error


from ..errors import (
    CommandError,
    FileIsDirectoryError,
    FileMissingError,
    FileNotDirectoryError,
    FileTooLargeError,
)
from ..export import readable, unreadable
from ..models import Command, FileKind, Result, shell
from ._reach import AnySandbox, Reach
from ._words import cut_note, with_note

__all__ = ("StrandsSandbox",)

_LANGUAGE = re.compile(r"[A-Za-z0-9._-]+\Z")


class StrandsSandbox(Sandbox):
    r"""A ringfence sandbox or session, as Strands sees one.

    A program that fails is a result with its exit code. Paths are relative to the workspace, or
    absolute below it; names that are not UTF-8 appear with `\xNN` and are taken so.

    `agent("...")` runs in an event loop of its own. It needs a sandbox of `ringfence.sync`; with
    one of an event loop, await `agent.invoke_async("...")` in that loop.

    Args:
        sandbox: Where to run. It is not closed with the agent.

    Raises:
        ConfigError: It is no sandbox.
    """

    def __init__(self, sandbox: AnySandbox) -> None:
        self._reach = Reach(sandbox)
        self._inner = self._reach.sandbox

    async def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a shell command and hand out its output as it arrives, and its result at the end.

        Args:
            command: For `bash -c`, or `sh -c` where there is no bash.
            timeout: Seconds, clamped to the sandbox's maximum, which is also the default.
            cwd: In the workspace; default: the workspace itself.
            env: Variables added to the sandbox's own.
            kwargs: What later versions of Strands may add; not used.

        Raises:
            SandboxTimeoutError: Its time was up; has what it wrote until then.
            CommandError: The command, its environment or its timeout can't be right.
            PathError: `cwd` is outside of the workspace.
            SandboxError: The sandbox could not run it.
        """
        async for part in self._streamed(shell(command, cwd=cwd, env=env), timeout):
            yield part

    async def execute_code_streaming(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a program given as text, which its interpreter reads from stdin.

        Args:
            code: The program.
            language: The interpreter, such as `python3` or `node`.
            timeout: As in `execute_streaming`, and so are the others.
            cwd: In the workspace.
            env: Variables.
            kwargs: Not used.

        Raises:
            CommandError: The language is not a program's name, or as in `execute_streaming`.
        """
        async for part in self._streamed(_program(code, language, cwd, env), timeout):
            yield part

    async def execute(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> ExecutionResult:
        """Run a shell command to its end; see `execute_streaming`."""
        return await self._executed(shell(command, cwd=cwd, env=env), timeout)

    async def execute_code(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> ExecutionResult:
        """Run a program given as text to its end; see `execute_code_streaming`."""
        return await self._executed(_program(code, language, cwd, env), timeout)

    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        """Return a file's content, at most 64 MiB.

        Raises:
            WorkspaceError: One of its children says why; a missing one is a `FileNotFoundError`.
        """
        return await self._reach.run(self._inner.read_file, unreadable(path))

    async def write_file(self, path: str, content: bytes, **kwargs: Any) -> None:
        """Write a file, making the directories above it.

        Raises:
            WorkspaceError: One of its children says why; each is an `OSError`.
        """
        await self._reach.run(self._inner.write_file, unreadable(path), content)

    async def remove_file(self, path: str, **kwargs: Any) -> None:
        """Remove a file or a link.

        Raises:
            FileIsDirectoryError: It is a directory.
            WorkspaceError: Another of its children says why.
        """
        await self._reach.run(self._remove, unreadable(path))

    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        """Return a directory's entries.

        Of the directory above the workspace only the workspace is shown.

        Raises:
            SandboxPathNotFoundError: There is no such directory.
            FileTooLargeError: It has more than 10,000 entries.
            WorkspaceError: Another of its children says why.
        """
        above, name = posixpath.split(self._inner.workspace)
        if path.rstrip("/") == above.rstrip("/") and path:
            return [FileInfo(name=name, is_dir=True)]
        try:
            found = await self._reach.run(self._inner.list_files, unreadable(path))
        except (FileMissingError, FileNotDirectoryError) as error:
            raise SandboxPathNotFoundError(path) from error
        if found.truncated:
            raise FileTooLargeError(
                path,
                f"has {found.total} entries, more than one call lists",
                hint="list it with a command, in parts",
            )
        return [
            FileInfo(
                name=readable(entry.name),
                is_dir=entry.kind is FileKind.DIRECTORY,
                size=entry.size if entry.kind is FileKind.FILE else None,
            )
            for entry in found.entries
        ]

    def get_tools(self) -> list[AgentTool]:
        """Return Strands' file editor and shell, bound to this sandbox, as far as it has them."""
        able, where = self._inner.capabilities, self._inner.workspace
        tools: list[AgentTool] = []
        if able.files:
            tools.append(make_file_editor(sandbox=self, name="sandbox_file_editor"))
        if able.arbitrary_programs:
            tools.append(
                make_shell(
                    sandbox=self,
                    name="sandbox_shell",
                    description="Runs a shell command in an isolated sandbox and returns its "
                    f"output. Each call starts a new shell in {where}, where its files persist.",
                )
            )
        return tools

    async def _streamed(
        self, command: Command, timeout: float | None
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        async for part in self._reach.output(command, self._seconds(timeout)):
            if isinstance(part, Result):
                yield _result(part)
            elif part.text:
                yield StreamChunk(data=part.text, stream_type=part.stream)

    async def _executed(self, command: Command, timeout: float | None) -> ExecutionResult:
        seconds = self._seconds(timeout)
        return _result(await self._reach.run(self._inner.exec, command, timeout=seconds))

    def _seconds(self, timeout: float | None) -> float | None:
        return self._inner.limits.max_timeout if timeout is None else timeout

    async def _remove(self, path: str) -> None:
        found = await self._inner.stat(path)
        if found.kind is FileKind.DIRECTORY:
            raise FileIsDirectoryError(path, "is a directory", backend=self._inner.backend)
        await self._inner.remove(path)


def _program(code: str, language: str, cwd: str | None, env: dict[str, str] | None) -> Command:
    if not _LANGUAGE.match(language):
        raise CommandError(f"language is the name of an interpreter, not {language!r:.80}")
    return Command((language,), stdin=code, cwd=cwd, env=env or {})


def _result(result: Result) -> ExecutionResult:
    stderr = with_note(result.stderr_text, cut_note(result))
    if result.timed_out:
        raise SandboxTimeoutError(result.timeout, result.stdout_text, stderr)
    return ExecutionResult(exit_code=result.exit_code, stdout=result.stdout_text, stderr=stderr)
