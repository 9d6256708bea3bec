"""The tools that run programs."""

from __future__ import annotations

from typing import Literal

from ..backend import Sandbox
from ..errors import ToolError
from ..models import Command, Result, shell
from .text import command_text

__all__ = (
    "Language",
    "check_language",
    "check_script",
    "code_command",
    "run_code",
    "terminal",
)

Language = Literal["python", "bash", "javascript"]

MAX_SCRIPT = 120_000
"""Bytes of a shell script: the kernel takes no longer argument."""

_NOT_FOUND = 127
_PROGRAMS: dict[str, tuple[str, str | None]] = {
    "python": ("python3", "python"),
    "javascript": ("node", "nodejs"),
}


async def terminal(sandbox: Sandbox, command: str, timeout: float | None = None) -> str:
    """Run a shell command and return its output.

    Args:
        sandbox: Where.
        command: For `bash -c`, or `sh -c` where there is no bash.
        timeout: Seconds; default 30, clamped to the sandbox's maximum.

    Raises:
        ToolError: The command is too long.
        SandboxError: The sandbox could not run it.
    """
    check_script(command)
    return command_text(await sandbox.exec(shell(command), timeout=timeout))


async def run_code(
    sandbox: Sandbox, language: Language, code: str, timeout: float | None = None
) -> str:
    """Run a program given as text and return its output.

    Args:
        sandbox: Where.
        language: `python`, `bash` or `javascript`, as far as the sandbox has it.
        code: The program. It runs in the workspace.
        timeout: Seconds; default 30, clamped to the sandbox's maximum.

    Raises:
        ToolError: The sandbox does not have the language.
        SandboxError: The sandbox could not run it.
    """
    result = await sandbox.exec(code_command(language, code), timeout=timeout)
    await check_language(sandbox, language, result)
    return command_text(result)


def code_command(language: str, code: str) -> Command:
    """Return the command that runs a program given as text.

    Raises:
        ToolError: There is no such language, or a script is too long.
    """
    if language == "bash":
        check_script(code)
        return shell(code)
    if language not in _PROGRAMS:
        known = ", ".join(sorted(["bash", *_PROGRAMS]))
        raise ToolError(f"there is no language {language!r:.80}; there are {known}")
    program, other = _PROGRAMS[language]
    return Command((program, "-"), stdin=code, fallback=other)


async def check_language(sandbox: Sandbox, language: str, result: Result) -> None:
    """Tell a program that was not found from a language that the sandbox does not have.

    Raises:
        ToolError: The sandbox does not have the language.
    """
    if result.exit_code != _NOT_FOUND or language not in _PROGRAMS:
        return
    if not await _has(sandbox, language):
        raise ToolError(f"this sandbox has no {language}; use another language or the terminal")


def check_script(script: str) -> None:
    """Refuse a script that the kernel does not take.

    Raises:
        ToolError: It is too long.
    """
    if len(script.encode("utf-8", "surrogatepass")) > MAX_SCRIPT:
        raise ToolError(
            f"the command is longer than {MAX_SCRIPT} bytes; write it to a file with write_file "
            "and run that"
        )


async def _has(sandbox: Sandbox, language: str) -> bool:
    """Whether the sandbox has a language, told apart from a program that ends with 127 itself."""
    names = [name for name in _PROGRAMS[language] if name]
    found: Result = await sandbox.exec(shell(" || ".join(f"command -v {name}" for name in names)))
    return found.ok
