"""What is to be run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import CommandError

__all__ = (
    "DEFAULT_TIMEOUT",
    "Command",
    "TerminalSize",
    "env_name",
    "shell",
    "text_bytes",
    "without_leftovers",
)

DEFAULT_TIMEOUT = 30.0
"""Seconds that a command gets if nobody says otherwise."""

_LARGEST_TERMINAL = 65535
_ENV_NAME_FORBIDDEN = re.compile(r"[=\0]")


def text_bytes(value: str | bytes | os.PathLike[str], what: str, place: int | None = None) -> bytes:
    """Encode as the file system does.

    Args:
        value: The text or path.
        what: What it is, for the error.
        place: Which one of many it is, likewise.

    Raises:
        CommandError: It is neither text nor bytes, can't be encoded, or contains NUL.
    """
    try:
        if isinstance(value, str):
            encoded = value.encode("utf-8", "surrogateescape")
        elif isinstance(value, (bytes, os.PathLike)):
            encoded = os.fsencode(value)
        else:
            raise CommandError(
                f"{_at(what, place)} must be str or bytes, not {type(value).__name__}"
            )
    except UnicodeEncodeError:
        raise CommandError(f"{_at(what, place)} can't be encoded as UTF-8: {value!r}") from None
    if b"\0" in encoded:
        raise CommandError(f"{_at(what, place)} contains NUL: {encoded[:80]!r}")
    return encoded


def _at(what: str, place: int | None) -> str:
    return what if place is None else f"{what}[{place}]"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_seconds(value: float, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CommandError(f"{what} must be a number of seconds, not {value!r}")
    if not 0 < value <= sys.float_info.max:  # NaN is neither
        raise CommandError(
            f"{what} must be a positive number of seconds, not {value!r}",
            hint=f"leave it out for {DEFAULT_TIMEOUT:g} s",
        )


@dataclass(frozen=True)
class TerminalSize:
    """How large a terminal is, in characters.

    Args:
        rows: Its height, 1 to 65,535.
        columns: Its width, likewise.

    Raises:
        CommandError: One of them is something else.
    """

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or not 0 < value <= _LARGEST_TERMINAL:
                raise CommandError(
                    f"a terminal has 1 to {_LARGEST_TERMINAL} {name}, not {value!r:.80}"
                )


@dataclass(frozen=True)
class Command:
    """One program to run, exactly as given: no shell, no splitting, no expansion.

    Args:
        argv: The program and its arguments, byte for byte; text is encoded as UTF-8 (with
            `surrogateescape` for bytes that are not). At least one; the first may not be empty.
        stdin: What the program reads: bytes, text, or an async iterable of bytes. Without it the
            program sees end of file at once.
        env: Variables added to the backend's own few. Never the host's.
        cwd: Where it runs: absolute and inside the workspace, or relative to the workspace.
        timeout: Seconds until the whole process tree is killed. Default 30, clamped to the
            sandbox's `max_timeout`; zero, negative, infinite and NaN are refused.
        output_bytes: Bytes kept of each stream. Default: the sandbox's `output_bytes` (1 MiB).
        leftovers: What happens to processes that the program leaves running: `keep` lets them
            live until the sandbox ends, `kill` ends them with the program.
        fallback: Another program name to try if the first is not found (`sh` after `bash`).
        terminal: Give it a terminal of this size as its stdin, stdout and stderr, on backends
            that have them. All that it writes is stdout then, what is sent to its stdin is typed,
            and `TERM` is `xterm-256color` unless `env` has one.

    Raises:
        CommandError: For a NUL, an empty argv or name, a name with `=`, a timeout that is not a
            positive number.
    """

    argv: Sequence[str | bytes | os.PathLike[str]]
    stdin: bytes | str | AsyncIterable[bytes] | None = None
    env: Mapping[str, str | bytes] = field(default_factory=dict)
    cwd: str | bytes | os.PathLike[str] | None = None
    timeout: float | None = None
    output_bytes: int | None = None
    leftovers: Literal["keep", "kill"] = "keep"
    fallback: str | None = None
    terminal: TerminalSize | None = None

    argv_bytes: tuple[bytes, ...] = field(init=False, repr=False, compare=False)
    env_bytes: tuple[tuple[bytes, bytes], ...] = field(init=False, repr=False, compare=False)
    cwd_bytes: bytes | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # What most commands have not is not looked at: one is made for every command that runs.
        argv = _argv_bytes(self.argv)
        env = _env_bytes(self.env)
        cwd = None if self.cwd is None else text_bytes(self.cwd, "cwd")
        if self.stdin is not None:
            _check_stdin(self.stdin)
        if self.fallback is not None:
            text_bytes(self.fallback, "fallback")
        if self.terminal is not None and not isinstance(self.terminal, TerminalSize):
            raise CommandError(f"terminal is a TerminalSize, not {type(self.terminal).__name__}")
        if self.timeout is not None:
            _check_seconds(self.timeout, "timeout")
        if self.output_bytes is not None and not (
            type(self.output_bytes) is int and self.output_bytes >= 0
        ):
            raise CommandError(f"output_bytes must be 0 or more, not {self.output_bytes!r}")
        if self.leftovers not in ("keep", "kill"):
            raise CommandError(f"leftovers must be 'keep' or 'kill', not {self.leftovers!r}")
        object.__setattr__(self, "argv_bytes", argv)
        object.__setattr__(self, "env_bytes", env)
        object.__setattr__(self, "cwd_bytes", cwd)


def without_leftovers(command: Command) -> Command:
    """Return the same command with its left-overs killed; what was checked once is as good."""
    changed = object.__new__(type(command))
    vars(changed).update(vars(command), leftovers="kill")
    return changed


def _argv_bytes(argv: Sequence[str | bytes | os.PathLike[str]]) -> tuple[bytes, ...]:
    is_usual = isinstance(argv, (list, tuple))
    if not is_usual and (isinstance(argv, (str, bytes)) or not isinstance(argv, Iterable)):
        raise CommandError(
            f"argv is a list of arguments, not {type(argv).__name__}",
            hint='use ["ls", "-l"], or shell("ls -l") for a shell',
        )
    encoded = tuple([text_bytes(arg, "argv", place) for place, arg in enumerate(argv)])
    if not encoded or not encoded[0]:
        raise CommandError("argv needs at least the name of a program")
    return encoded


def _env_bytes(env: Mapping[str, str | bytes]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(
        [
            (env_name(name), text_bytes(value, f"the value of variable {name!r}"))
            for name, value in env.items()
        ]
    )


def _check_stdin(stdin: object) -> None:
    if not isinstance(stdin, (bytes, str, AsyncIterable)):
        raise CommandError(
            f"stdin is bytes, text or an async iterable, not {type(stdin).__name__}",
            hint="wrap a file or another plain iterable of bytes in feed()",
        )
    if isinstance(stdin, str) and not _is_utf8(stdin):
        raise CommandError("stdin can't be encoded as UTF-8", hint="give it as bytes")


def env_name(name: str | bytes) -> bytes:
    """Encode the name of a variable.

    Raises:
        CommandError: It is empty, or contains `=` or NUL.
    """
    encoded = text_bytes(name, "the name of a variable")
    if not encoded or _ENV_NAME_FORBIDDEN.search(os.fsdecode(encoded)):
        raise CommandError(f"a variable's name may not be empty or contain '=': {name!r}")
    return encoded


def shell(
    script: str,
    *,
    stdin: bytes | str | AsyncIterable[bytes] | None = None,
    env: Mapping[str, str | bytes] | None = None,
    cwd: str | None = None,
    timeout: float | None = None,
) -> Command:
    """Build the command `bash -c script`, or `sh -c script` where there is no bash."""
    return Command(
        ("bash", "-c", script),
        stdin=stdin,
        env=env or {},
        cwd=cwd,
        timeout=timeout,
        fallback="sh",
    )
