"""What a command printed, how it ended, and what it used."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal

from .limits import Enforced

__all__ = (
    "TIMEOUT_MARKER",
    "Chunk",
    "CommandFailedError",
    "CommandTimedOutError",
    "Exit",
    "ExitReason",
    "Result",
    "Stream",
    "Usage",
)

TIMEOUT_MARKER = "[TIMEOUT: command exceeded time limit]"
"""The line that ends the text of a timed-out command where a model reads it."""

Stream = Literal["stdout", "stderr"]


class ExitReason(str, Enum):
    """Why a command ended: from wait status, clock and kernel counters, never from its output."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"


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
