"""What is asked for of memory, and of a workspace that is made of it, checked before it is made."""

from __future__ import annotations

from dataclasses import replace

from ..errors import LimitError
from ..models import Limits

__all__ = ("checked_memory", "workspace_within_memory")

_LEAST = 16 << 20  # below it there is no room to start a program in


def checked_memory(limits: Limits, backend: str, what: str) -> int:
    """Return the memory that there is.

    Args:
        limits: Every limit filled in.
        backend: The backend's name.
        what: What it makes, for people: `a pod`.

    Raises:
        LimitError: It is too little to work.
    """
    memory = limits.memory_bytes or 0
    if memory < _LEAST:
        raise LimitError(
            "memory_bytes",
            f"{what} needs at least {_LEAST} bytes of memory, not {memory}",
            backend=backend,
        )
    return memory


def workspace_within_memory(
    limits: Limits, asked: frozenset[str], backend: str, instead: str
) -> Limits:
    """Return limits of a sandbox whose workspace is in memory, and counted as such.

    A workspace that nobody asked for by size is at most half of the memory.

    Args:
        limits: Every limit filled in.
        asked: Those that somebody named.
        backend: The backend's name.
        instead: What would make the workspace of something else, for people.

    Raises:
        LimitError: The workspace was asked for and does not fit.
    """
    memory, workspace = limits.memory_bytes or 0, limits.workspace_bytes or 0
    if workspace < memory:
        return limits
    if "workspace_bytes" in asked:
        raise LimitError(
            "workspace_bytes",
            f"a workspace of {workspace} bytes in memory does not fit into {memory} bytes of it",
            backend=backend,
            hint=f"raise memory_bytes, or {instead}",
        )
    return replace(limits, workspace_bytes=memory // 2)
