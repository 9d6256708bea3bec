"""The frozen values that travel between callers and backends.

They hold no connection and do no I/O. Bad input is refused when a value is made, so that a
`Command` or a `SandboxSpec` that exists is one that every backend can take.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum, IntEnum
from types import NoneType
from typing import Any, Literal

from .errors import CommandError, ConfigError, LimitError

__all__ = (
    "DEFAULT_OUTPUT_BYTES",
    "DEFAULT_TIMEOUT",
    "MAX_TIMEOUT",
    "TIMEOUT_MARKER",
    "Capabilities",
    "Chunk",
    "Command",
    "CommandFailedError",
    "CommandTimedOutError",
    "Enforced",
    "Enforcement",
    "Exit",
    "ExitReason",
    "FileInfo",
    "FileKind",
    "Isolation",
    "Limits",
    "Listing",
    "Mount",
    "Network",
    "Probe",
    "Result",
    "SandboxSpec",
    "Stream",
    "TerminalSize",
    "Usage",
    "new_sandbox_id",
    "shell",
)

DEFAULT_TIMEOUT = 30.0
"""Seconds that a command gets if nobody says otherwise."""

MAX_TIMEOUT = 300.0
"""Seconds to which a longer timeout is clamped unless the limits allow more."""

DEFAULT_OUTPUT_BYTES = 1_048_576
"""Bytes of each output stream that are kept (1 MiB)."""

TIMEOUT_MARKER = "[TIMEOUT: command exceeded time limit]"
"""The line that ends the text of a timed-out command where a model reads it."""

Stream = Literal["stdout", "stderr"]

_LARGEST_TERMINAL = 65535
_ENV_NAME_FORBIDDEN = re.compile(r"[=\0]")
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?\Z")


class Isolation(IntEnum):
    """How strong a boundary a backend is; higher is stronger within the ordered levels.

    `WASM` isolates by construction and stands beside the others rather than above them.
    """

    NONE = 0
    PROCESS = 1
    NAMESPACE = 2
    CONTAINER = 3
    GVISOR = 4
    KATA = 5
    POD = 6
    WASM = 10


class ExitReason(str, Enum):
    """Why a command ended: from wait status, clock and kernel counters, never from its output."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"


class Enforcement(str, Enum):
    """Who holds a limit.

    `ENFORCED`: the kernel holds the sandbox as a whole to it. `PER_PROCESS`: an rlimit holds each
    process to it, so many processes together can exceed it. `NONE`: nobody does.
    """

    ENFORCED = "enforced"
    PER_PROCESS = "per_process"
    NONE = "none"


def _text_bytes(value: str | bytes | os.PathLike[str], what: str) -> bytes:
    """Encode as the file system does and refuse NUL."""
    try:
        if isinstance(value, str):
            encoded = value.encode("utf-8", "surrogateescape")
        elif isinstance(value, (bytes, os.PathLike)):
            encoded = os.fsencode(value)
        else:
            raise CommandError(f"{what} must be str or bytes, not {type(value).__name__}")
    except UnicodeEncodeError:
        raise CommandError(f"{what} can't be encoded as UTF-8: {value!r}") from None
    if b"\0" in encoded:
        raise CommandError(f"{what} contains NUL: {encoded[:80]!r}")
    return encoded


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
        if isinstance(self.argv, (str, bytes)) or not isinstance(self.argv, Iterable):
            raise CommandError(
                f"argv is a list of arguments, not {type(self.argv).__name__}",
                hint='use ["ls", "-l"], or shell("ls -l") for a shell',
            )
        argv = tuple(_text_bytes(arg, f"argv[{i}]") for i, arg in enumerate(self.argv))
        if not argv or not argv[0]:
            raise CommandError("argv needs at least the name of a program")
        env = tuple(
            (_env_name(name), _text_bytes(value, f"the value of variable {name!r}"))
            for name, value in self.env.items()
        )
        cwd = None if self.cwd is None else _text_bytes(self.cwd, "cwd")
        if not isinstance(self.stdin, (bytes, str, AsyncIterable, NoneType)):
            raise CommandError(
                f"stdin is bytes, text or an async iterable, not {type(self.stdin).__name__}",
                hint="wrap a file or another plain iterable of bytes in feed()",
            )
        if isinstance(self.stdin, str) and not _is_utf8(self.stdin):
            raise CommandError("stdin can't be encoded as UTF-8", hint="give it as bytes")
        if self.fallback is not None:
            _text_bytes(self.fallback, "fallback")
        if not isinstance(self.terminal, (TerminalSize, NoneType)):
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


def _env_name(name: str | bytes) -> bytes:
    encoded = _text_bytes(name, "the name of a variable")
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


@dataclass(frozen=True)
class Limits:
    """Every ceiling that a sandbox can have. None means: not asked for, take the next default.

    Attributes:
        memory_bytes: Memory of all processes together, tmpfs files included; no swap on top.
        cpus: CPU cores' worth of time, 0.5 being half of one core.
        pids: Processes and threads together.
        open_files: Open descriptors of each process.
        workspace_bytes: Size of `/workspace`.
        workspace_files: Number of files and directories (inodes) in `/workspace`.
        tmp_bytes: Size of `/tmp`; `/dev/shm` gets the same.
        output_bytes: Bytes kept of each output stream of a command.
        timeout: Seconds that a command gets which names none.
        max_timeout: Seconds to which a command's timeout is clamped.
        kill_grace: Seconds between TERM and KILL when a command is ended.
        start_timeout: Seconds in which a new sandbox must be ready.
        max_age: Seconds after which a sandbox is ended, used or not.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    open_files: int | None = None
    workspace_bytes: int | None = None
    workspace_files: int | None = None
    tmp_bytes: int | None = None
    output_bytes: int | None = None
    timeout: float | None = None
    max_timeout: float | None = None
    kill_grace: float | None = None
    start_timeout: float | None = None
    max_age: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is None:
                continue
            number = (int, float) if str(item.type).startswith("float") else (int,)
            if isinstance(value, bool) or not isinstance(value, number):
                raise LimitError(item.name, f"{item.name} must be a number, not {value!r}")
            if not 0 < value < 2**63:  # NaN is neither; the kernel's numbers end there
                raise LimitError(
                    item.name, f"{item.name} must be above zero and finite, not {value!r:.80}"
                )

    def over(self, other: Limits) -> Limits:
        """Return these limits, with what they leave open taken from `other`."""
        mine = {name: value for name, value in vars(self).items() if value is not None}
        return replace(other, **mine)

    def asked(self) -> frozenset[str]:
        """Return the names of the limits that are set."""
        return frozenset(name for name, value in vars(self).items() if value is not None)


@dataclass(frozen=True)
class Enforced:
    """Who holds each of the limits that the kernel, and not our clock, must hold."""

    memory_bytes: Enforcement = Enforcement.NONE
    cpus: Enforcement = Enforcement.NONE
    pids: Enforcement = Enforcement.NONE
    open_files: Enforcement = Enforcement.NONE
    workspace_bytes: Enforcement = Enforcement.NONE
    workspace_files: Enforcement = Enforcement.NONE
    tmp_bytes: Enforcement = Enforcement.NONE

    def missing(self, asked: frozenset[str]) -> tuple[str, ...]:
        """Return the limits among `asked` that nobody would hold, in the order of the fields."""
        return tuple(
            item.name
            for item in fields(self)
            if item.name in asked and getattr(self, item.name) is Enforcement.NONE
        )


@dataclass(frozen=True)
class Network:
    """What a sandbox may reach.

    Attributes:
        mode: `none`: only its own loopback. `bridge`: outbound connections. Anything else is the
            name of a network that the backend knows.
    """

    mode: str = "none"


@dataclass(frozen=True)
class Mount:
    """A host file or directory shown read-only inside the sandbox.

    Attributes:
        source: Absolute path on the host. It must exist when the sandbox is made.
        target: Absolute path inside; default: the same as `source`.
    """

    source: str
    target: str = ""

    def __post_init__(self) -> None:
        if not self.target:
            object.__setattr__(self, "target", self.source)
        for what, path in (("source", self.source), ("target", self.target)):
            if not os.path.isabs(path) or "\0" in path or os.path.normpath(path) != path:
                raise ConfigError(
                    f"a mount's {what} must be an absolute path without '..', not {path!r}"
                )


@dataclass(frozen=True)
class SandboxSpec:
    """What kind of sandbox to make.

    Attributes:
        limits: Ceilings; what is left open comes from the backend's config and defaults.
        network: What it may reach; None takes the backend's own first choice.
        env: Variables that every command in it gets.
        mounts: Host paths shown read-only.
        labels: Names and values put on the real resource, to find it again.
    """

    limits: Limits = field(default_factory=Limits)
    network: Network | None = None
    env: Mapping[str, str | bytes] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.env.items():
            _env_name(name)
            _text_bytes(value, f"the value of variable {name!r}")
        for key, value in self.labels.items():
            if not _LABEL_KEY.match(key):
                raise ConfigError(f"not a label's name: {key!r}")
            if not _is_label(value):
                raise ConfigError(f"label {key!r} needs a text of at most 256 characters")


def _is_label(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 256 and "\0" not in value


@dataclass(frozen=True)
class Chunk:
    """A piece of output, in the order in which it arrived.

    Attributes:
        stream: `stdout` or `stderr`.
        data: The bytes.
        text: The bytes as text, decoded incrementally: a character that is split over two chunks
            appears whole, in the second one. Empty on chunks that have not been decoded.
    """

    stream: Stream
    data: bytes
    text: str = ""


@dataclass(frozen=True)
class Usage:
    """What a command used, where the backend can tell; None where it can't.

    Attributes:
        cpu_s: CPU seconds, user and system, of the command and the children it waited for.
        peak_memory_bytes: Largest resident size of one of its processes.
    """

    cpu_s: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class Exit:
    """How a `Process` ended, as its backend saw it.

    Attributes:
        code: The program's own exit code, or 128+N for death by signal N.
        reason: Why it ended.
        stdout_bytes, stderr_bytes: All that it wrote, also what was dropped past the cap.
        usage: What it used.
        message: A line for stderr where the program could not be started (codes 126 and 127).
        workspace_is_new: Whether it was the first command in the workspace of a session.
    """

    code: int
    reason: ExitReason
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    usage: Usage = field(default_factory=Usage)
    message: str = ""
    workspace_is_new: bool = False


@dataclass(frozen=True)
class Result:
    """What a program did.

    Attributes:
        stdout, stderr: The first `output_bytes` of each stream, kept apart.
        exit_code: The program's own; 128+N for death by signal N; 127 not found and 126 not
            executable (with a line on stderr); 124 ended by our clock; 137 ended by the memory
            limit; 134 a WASM trap.
        exit_reason: Why it ended.
        stdout_bytes, stderr_bytes: All that it wrote, kept or not.
        duration_s: Wall-clock seconds from start to end.
        timeout: The seconds that it really had, after defaults and clamping.
        usage: What it used.
        enforced: Who held which limit.
        workspace_is_new: Whether it was the first command in the workspace of a session: what
            earlier commands of the same execution wrote, if there were any, is gone.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int
    exit_reason: ExitReason
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    duration_s: float = 0.0
    timeout: float | None = None
    usage: Usage = field(default_factory=Usage)
    enforced: Enforced = field(default_factory=Enforced)
    workspace_is_new: bool = False

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.exit_code == 0 and self.exit_reason is ExitReason.EXITED

    @property
    def timed_out(self) -> bool:
        """Whether our clock ended it."""
        return self.exit_reason is ExitReason.TIMED_OUT

    @property
    def out_of_memory(self) -> bool:
        """Whether the memory limit ended it."""
        return self.exit_reason is ExitReason.OUT_OF_MEMORY

    @property
    def stdout_truncated(self) -> bool:
        """Whether stdout was longer than what was kept."""
        return self.stdout_bytes > len(self.stdout)

    @property
    def stderr_truncated(self) -> bool:
        """Whether stderr was longer than what was kept."""
        return self.stderr_bytes > len(self.stderr)

    @property
    def stdout_text(self) -> str:
        """Stdout as text; what is not UTF-8 appears as U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """Stderr as text; what is not UTF-8 appears as U+FFFD."""
        return self.stderr.decode("utf-8", "replace")

    def check(self) -> Result:
        """Return this result if the program succeeded.

        Raises:
            CommandTimedOutError: It was ended by its deadline.
            CommandFailedError: It failed in any other way.
        """
        if self.ok:
            return self
        if self.timed_out:
            after = "" if self.timeout is None else f" after {self.timeout:g} s"
            raise CommandTimedOutError(f"command timed out{after}", self)
        raise CommandFailedError(
            f"command failed with exit code {self.exit_code} ({self.exit_reason.value})", self
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types; streams as text under `stdout` and `stderr`."""
        return {
            "stdout": self.stdout_text,
            "stderr": self.stderr_text,
            "exit_code": self.exit_code,
            "exit_reason": self.exit_reason.value,
            "stdout_truncated": self.stdout_truncated,
            "stderr_truncated": self.stderr_truncated,
            "stdout_bytes": self.stdout_bytes,
            "stderr_bytes": self.stderr_bytes,
            "duration_s": round(self.duration_s, 6),
            "timeout": self.timeout,
            "usage": asdict(self.usage),
            "enforced": {name: value.value for name, value in vars(self.enforced).items()},
            "workspace_is_new": self.workspace_is_new,
        }


class CommandFailedError(Exception):
    """The program failed. Raised by `Result.check()` alone.

    Attributes:
        result: The whole result, with whatever the program printed.
    """

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.result)


class CommandTimedOutError(CommandFailedError, TimeoutError):
    """The program was ended by its deadline. Raised by `Result.check()` alone."""


class FileKind(str, Enum):
    """What a path is, links not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHARACTER_DEVICE = "character_device"
    BLOCK_DEVICE = "block_device"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class FileInfo:
    """One entry of the workspace; links are described, never followed.

    Attributes:
        name: The last part of the path; bytes that are not UTF-8 as surrogate escapes, so that
            `os.fsencode(name)` gives the exact name back.
        kind: What it is.
        size: Bytes.
        mode: Permission bits.
        mtime: Seconds since the epoch.
    """

    name: str
    kind: FileKind
    size: int
    mode: int
    mtime: float


@dataclass(frozen=True)
class Listing:
    """A directory, sorted by the bytes of the names.

    Attributes:
        entries: At most as many as were asked for.
        total: How many there really are.
    """

    entries: tuple[FileInfo, ...]
    total: int

    @property
    def truncated(self) -> bool:
        """Whether there are more entries than these."""
        return self.total > len(self.entries)


@dataclass(frozen=True)
class Capabilities:
    """What a backend can promise, and what it can't.

    Attributes:
        isolation: Its level.
        live: Whether a sandbox can serve several commands.
        files: Whether file operations work.
        streaming: Whether output arrives while the program runs.
        separate_streams: Whether stdout and stderr are told apart.
        kill_tree: Whether every process of a command can be killed for certain.
        network_modes: The values of `Network.mode` that it takes.
        mounts: Whether host paths can be shown read-only.
        arbitrary_programs: Whether any program of the system can be run, a shell too.
        terminal: Whether a command can have a terminal.
        limits: Who would hold each limit.
        notes: What is lost or special here, one sentence each.
    """

    isolation: Isolation
    live: bool = True
    files: bool = True
    streaming: bool = True
    separate_streams: bool = True
    kill_tree: bool = True
    network_modes: tuple[str, ...] = ("none",)
    mounts: bool = False
    arbitrary_programs: bool = True
    terminal: bool = False
    limits: Enforced = field(default_factory=Enforced)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probe:
    """Whether a backend can run on this machine now.

    Attributes:
        ok: Whether it can.
        reason: What blocks it, in one sentence; empty if nothing does.
        hint: How to mend it; empty if there is nothing to mend.
        details: Versions and facts found on the way.
    """

    ok: bool
    reason: str = ""
    hint: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


def new_sandbox_id() -> str:
    """Return a name for a new sandbox: `rf-` and 12 random hexadecimal digits."""
    return f"rf-{secrets.token_hex(6)}"
