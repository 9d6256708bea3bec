"""What a check is, what it needs, and what a run of them says."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ringfence.models import Capabilities, Enforcement, Isolation

from ._context import Context

__all__ = (
    "FILES",
    "HOST_KERNEL",
    "ISOLATED",
    "KILL_TREE",
    "LIVE",
    "PROGRAMS",
    "SEPARATE",
    "STREAMING",
    "TERMINAL",
    "Check",
    "Need",
    "Report",
    "check",
    "enforced",
    "held",
)


@dataclass(frozen=True)
class Need:
    """A capability without which a check says nothing about a backend.

    Attributes:
        name: The capability, as it is written in `Capabilities`.
        met: Tells from the capabilities whether it is there.
    """

    name: str
    met: Callable[[Capabilities], bool]


PROGRAMS = Need("arbitrary_programs", lambda able: able.arbitrary_programs)
LIVE = Need("live", lambda able: able.live)
FILES = Need("files", lambda able: able.files and able.live)
STREAMING = Need("streaming", lambda able: able.streaming)
SEPARATE = Need("separate_streams", lambda able: able.separate_streams)
TERMINAL = Need("terminal", lambda able: able.terminal)
KILL_TREE = Need("kill_tree", lambda able: able.kill_tree)
ISOLATED = Need(
    "isolation >= namespace",
    lambda able: able.isolation >= Isolation.NAMESPACE and able.arbitrary_programs,
)

HOST_KERNEL = Need(
    "the host's kernel",  # so that programs are processes that the host sees
    lambda able: able.isolation not in (Isolation.GVISOR, Isolation.KATA),
)


def enforced(limit: str) -> Need:
    """Need the kernel to hold the whole sandbox to a limit."""
    return Need(
        f"limits.{limit} enforced",
        lambda able: getattr(able.limits, limit) is Enforcement.ENFORCED,
    )


def held(limit: str) -> Need:
    """Need a limit to be held at least process by process."""
    return Need(
        f"limits.{limit} held",
        lambda able: getattr(able.limits, limit) is not Enforcement.NONE,
    )


@dataclass(frozen=True)
class Check:
    """One rule of the contract, as something that can be tried.

    Attributes:
        name: The rule in a few words.
        topic: Which part of the contract it is about.
        fault: What is wrong with a backend that fails it.
        needs: The capabilities without which it does not apply.
        hostile: Whether it attacks: bombs, floods, fills.
        timeout: Seconds in which it has to end, whatever the backend does.
        function: Raises if the rule is broken.
    """

    name: str
    topic: str
    fault: str
    needs: tuple[Need, ...]
    hostile: bool
    timeout: float
    function: Callable[[Context], Awaitable[None]]

    def missing(self, able: Capabilities) -> tuple[str, ...]:
        """Return the needs that these capabilities do not meet."""
        return tuple(need.name for need in self.needs if not need.met(able))


def check(
    function: Callable[[Context], Awaitable[None]],
    *needs: Need,
    hostile: bool = False,
    timeout: float = 90.0,
) -> Check:
    """Make a row of a table of checks out of a function and its docstring."""
    name = function.__name__
    fault = (inspect.getdoc(function) or "").strip()
    if not fault:
        raise ValueError(f"check {name} does not say which fault it catches")
    topic = function.__module__.rpartition("_checks_")[2].partition("_")[0]
    return Check(name, topic, fault, needs, hostile, timeout, function)


@dataclass
class Report:
    """What a run of the suite found.

    Attributes:
        passed: The names of the checks that the backend keeps.
        failed: Those that it breaks, and how.
        not_applicable: Those that its capabilities rule out, and which capability that is.
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing failed."""
        return bool(self.passed) and not self.failed

    def __str__(self) -> str:
        counts = (len(self.passed), len(self.failed), len(self.not_applicable))
        lines = ["{} passed, {} failed, {} not applicable".format(*counts)]
        lines += [f"FAILED {name}: {reason}" for name, reason in self.failed.items()]
        lines += [f"n/a    {name}: {reason}" for name, reason in self.not_applicable.items()]
        return "\n".join(lines)
