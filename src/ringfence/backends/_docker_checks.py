"""What is asked for, checked before the engine hears of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace

from ..errors import ConfigError, LimitError
from ..models import Limits, Mount

__all__ = ("checked_limits", "checked_mounts")

_NAME = "container"
_LEAST_MEMORY = 16 << 20  # below it there is no room to start a program in
_LEAST_PIDS = 8


def checked_limits(limits: Limits, asked: frozenset[str], storage: str) -> Limits:
    """Return limits that fit together.

    A workspace in memory that nobody asked for by size is at most half of the memory.

    Args:
        limits: Every limit filled in.
        asked: Those that somebody named.
        storage: What workspaces are made of.

    Raises:
        LimitError: One is too small to work, or a workspace in memory is larger than that.
    """
    memory, workspace = limits.memory_bytes or 0, limits.workspace_bytes or 0
    if memory < _LEAST_MEMORY:
        raise LimitError(
            "memory_bytes",
            f"a container needs at least {_LEAST_MEMORY} bytes of memory, not {memory}",
            backend=_NAME,
        )
    if (limits.pids or 0) < _LEAST_PIDS:
        raise LimitError(
            "pids",
            f"a container needs at least {_LEAST_PIDS} processes, not {limits.pids}",
            backend=_NAME,
            hint="the warden and one more for each running command are counted too",
        )
    if storage != "tmpfs" or workspace < memory:
        return limits
    if "workspace_bytes" in asked:
        raise LimitError(
            "workspace_bytes",
            f"a workspace of {workspace} bytes in memory does not fit into {memory} bytes of it",
            backend=_NAME,
            hint="raise memory_bytes, or choose another workspace_storage",
        )
    return replace(limits, workspace_bytes=memory // 2)


def checked_mounts(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    """Return host paths that can be shown read-only.

    Raises:
        ConfigError: One does not exist, or is a socket, which could be talked to all the same.
    """
    for mount in mounts:
        try:
            mode = os.stat(mount.source).st_mode
        except OSError as error:
            raise ConfigError(
                f"mount source {mount.source!r}: {error.strerror}", backend=_NAME
            ) from error
        if stat.S_ISSOCK(mode):
            raise ConfigError(
                f"mount source {mount.source!r} is a socket: read-only does not hold it",
                backend=_NAME,
            )
    return tuple(mounts)
