"""The frozen values that travel between callers and backends.

They hold no connection and do no I/O. Bad input is refused when a value is made, so that a
`Command` or a `SandboxSpec` that exists is one that every backend can take.
"""

from __future__ import annotations

from .commands import DEFAULT_TIMEOUT, Command, TerminalSize, shell, without_leftovers
from .files import FileInfo, FileKind, Listing
from .limits import DEFAULT_OUTPUT_BYTES, MAX_TIMEOUT, Enforced, Enforcement, Limits
from .results import (
    TIMEOUT_MARKER,
    Chunk,
    CommandFailedError,
    CommandTimedOutError,
    Exit,
    ExitReason,
    Result,
    Stream,
    Usage,
)
from .sandboxes import (
    Capabilities,
    Isolation,
    Mount,
    Network,
    Probe,
    SandboxSpec,
    new_sandbox_id,
)

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
    "without_leftovers",
)
