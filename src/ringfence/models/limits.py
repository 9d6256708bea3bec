"""Ceilings, and who holds them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum

from ..errors import LimitError

__all__ = (
    "DEFAULT_OUTPUT_BYTES",
    "MAX_TIMEOUT",
    "Enforced",
    "Enforcement",
    "Limits",
)

MAX_TIMEOUT = 300.0
"""Seconds to which a longer timeout is clamped unless the limits allow more."""

DEFAULT_OUTPUT_BYTES = 1_048_576
"""Bytes of each output stream that are kept (1 MiB)."""


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
        return replace(other, **mine) if mine else other  # often: to make them is to check them

    def asked(self) -> frozenset[str]:
        """Return the names of the limits that are set."""
        return frozenset(name for name, value in vars(self).items() if value is not None)


class Enforcement(str, Enum):
    """Who holds a limit.

    `ENFORCED`: the kernel holds the sandbox as a whole to it. `PER_PROCESS`: an rlimit holds each
    process to it, so many processes together can exceed it. `NONE`: nobody does.
    """

    ENFORCED = "enforced"
    PER_PROCESS = "per_process"
    NONE = "none"


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
