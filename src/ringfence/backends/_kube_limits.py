"""What is asked for, checked before the cluster hears of it."""

from __future__ import annotations

from dataclasses import replace

from ..config import KubernetesConfig
from ..errors import LimitError
from ..models import Limits
from ._memory import checked_memory, workspace_within_memory

__all__ = ("checked_limits", "one_shot_limits")

_NAME = "kubernetes"
_SLACK = 30.0


def checked_limits(limits: Limits, asked: frozenset[str], config: KubernetesConfig) -> Limits:
    """Return limits that fit together.

    A workspace in memory that nobody asked for by size is at most half of the memory.

    Args:
        limits: Every limit filled in.
        asked: Those that somebody named.
        config: Says what volumes are made of, and what is reserved.

    Raises:
        LimitError: One is too small to work, or contradicts another.
    """
    memory = checked_memory(limits, _NAME, "a pod")
    if (config.memory_request_bytes or 0) > memory:
        raise LimitError(
            "memory_bytes",
            f"memory_request_bytes {config.memory_request_bytes} is above the limit of {memory}",
            backend=_NAME,
        )
    if config.volume_medium == "disk":
        return limits
    return workspace_within_memory(limits, asked, _NAME, "set volume_medium='disk'")


def one_shot_limits(limits: Limits) -> Limits:
    """Return limits by which the cluster ends a sandbox for one command soon after that must end.

    The command's own time is the warden's to hold; this is the net below it.
    """
    longest = (limits.max_timeout or 0) + (limits.kill_grace or 0) + _SLACK
    return replace(limits, max_age=min(limits.max_age or longest, longest))
