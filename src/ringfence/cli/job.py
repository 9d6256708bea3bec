"""What is to be run: the words of the command line, made into files and a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio.to_thread

from ..backend import Sandbox
from ..errors import ConfigError, UnsupportedError
from ..interpreter import Interpreter, find_interpreter, find_virtual_environment
from ..settings import Settings

__all__ = ("Copy", "Job", "choose_python", "default_python", "parse_copy", "parse_job")

_PART_BYTES = 8 << 20
_SYSTEM_PYTHON = "/usr/bin/python3"
_ON_THE_HOST = ("bubblewrap", "process")  # the backends that show the host's own programs


@dataclass(frozen=True)
class Copy:
    """A file to be copied into the workspace.

    Attributes:
        source: On this machine.
        target: In the workspace.
    """

    source: str
    target: str

    async def put(self, sandbox: Sandbox) -> None:
        """Copy it, with its permission bits.

        Raises:
            ConfigError: It can't be read.
            WorkspaceError: It can't be written there.
        """
        size = 0
        while True:
            data, mode = await anyio.to_thread.run_sync(self._read, size)
            if size == 0 or data:
                await sandbox.write_file(self.target, data, mode=mode, append=size > 0)
            size += len(data)
            if len(data) < _PART_BYTES:
                return

    def _read(self, offset: int) -> tuple[bytes, int]:
        try:
            with open(self.source, "rb") as file:
                file.seek(offset)
                return file.read(_PART_BYTES), os.fstat(file.fileno()).st_mode & 0o777
        except OSError as error:
            raise ConfigError(f"{self.source!r} can't be read: {error.strerror}") from error


@dataclass(frozen=True)
class Job:
    """What to run, with nothing known yet of the sandbox that it will run in.

    Attributes:
        kind: `command`; `python` or `shell`, a script that is among the files; `stdin`, a Python
            script that is read from there.
        words: The program or the script, and its arguments.
        files: What the workspace gets.
    """

    kind: str
    words: tuple[str, ...]
    files: tuple[Copy, ...]

    @property
    def needs_python(self) -> bool:
        """Whether it needs an interpreter that it does not name itself."""
        return self.kind in ("python", "stdin")

    def argv(self, workspace: str, python: str) -> list[str]:
        """Return the command; a script's output is not held back in a buffer."""
        first, *rest = self.words
        if self.kind == "stdin":
            return [python, "-u", "-", *rest]
        if self.kind == "python":
            return [python, "-u", f"{workspace}/{first}", *rest]
        return ["bash", f"{workspace}/{first}", *rest] if self.kind == "shell" else [first, *rest]


def parse_job(words: Sequence[str], files: Sequence[Copy], *, is_literal: bool) -> Job:
    """Decide what the words mean.

    Args:
        words: The program and its arguments.
        files: What the workspace gets beside a script.
        is_literal: Whether they came after `--`: then they are a command, whatever they look like.

    Raises:
        ConfigError: A script does not exist.
    """
    first = words[0]
    kind = {".py": "python", ".sh": "shell"}.get(os.path.splitext(first)[1], "command")
    if is_literal or (kind == "command" and first != "-"):
        return Job("command", tuple(words), tuple(files))
    if first == "-":
        return Job("stdin", tuple(words), tuple(files))
    if not os.path.isfile(first):
        raise ConfigError(
            f"there is no script {first!r}",
            hint=f"for a program of the sandbox: ringfence run -- {first}",
        )
    script = Copy(first, os.path.basename(first))
    return Job(kind, (script.target, *words[1:]), (*files, script))


def parse_copy(text: str) -> Copy:
    """Return the copy that `SOURCE` or `SOURCE:TARGET` stands for.

    Raises:
        ConfigError: The source is not a regular file.
    """
    source, target = text, ""
    if not os.path.exists(text) and ":" in text:
        source, _, target = text.rpartition(":")
    if os.path.isdir(source):
        raise ConfigError(f"{source!r} is a directory", hint="--mount shows one, read-only")
    if not os.path.isfile(source):
        raise ConfigError(f"there is no file {source!r}", hint="give SOURCE or SOURCE:TARGET")
    if not target or target.endswith("/"):
        target += os.path.basename(source)
    return Copy(source, target)


def choose_python(settings: Settings, backend: str, *, with_venv: bool) -> Interpreter | None:
    """Return the interpreter that was asked for, or None if none was.

    Args:
        settings: Of which `python` may name it.
        backend: The backend's name.
        with_venv: Take the active virtual environment's.

    Raises:
        ConfigError: It is none, or no environment is active.
        UnsupportedError: The sandbox does not show this machine's programs.
    """
    wanted = settings.python
    if with_venv:
        own = sys.prefix if sys.prefix != sys.base_prefix else ""
        wanted = find_virtual_environment(os.environ, own)
        if wanted is None:
            raise ConfigError(
                "no virtual environment is active", hint="activate one, or give --python PATH"
            )
        if backend not in _ON_THE_HOST:
            raise UnsupportedError(
                f"{backend} does not show this machine's virtual environments",
                backend=backend,
                hint="--backend bubblewrap does; or put the packages into the image",
            )
    return _shown(wanted, settings, backend) if wanted else None


def default_python(settings: Settings, backend: str) -> Interpreter:
    """Return the interpreter for a script if none was asked for: the sandbox's own if it has one.

    Raises:
        ConfigError: There is none.
    """
    if settings.root_dir or backend not in _ON_THE_HOST:
        return Interpreter("python3")
    if os.access(_SYSTEM_PYTHON, os.X_OK):
        return Interpreter(_SYSTEM_PYTHON)
    return _shown(os.path.join(sys.base_prefix, "bin", "python3"), settings, backend)


def _shown(wanted: str, settings: Settings, backend: str) -> Interpreter:
    """Return an interpreter with what the backend has to show for it."""
    if "/" not in wanted or backend not in _ON_THE_HOST:  # a path is one of the sandbox's then
        return Interpreter(wanted)
    if settings.root_dir:
        raise UnsupportedError(
            f"{wanted!r} needs this machine's own /usr, which root_dir replaces",
            backend=backend,
            hint="give --python a name that root_dir has, such as python3",
        )
    found = find_interpreter(wanted)
    return replace(found, mounts=()) if backend == "process" else found
