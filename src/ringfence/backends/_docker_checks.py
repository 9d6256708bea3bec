"""What is asked for, checked before the engine hears of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from ..errors import ConfigError, LimitError
from ..models import Limits, Mount
from ._memory import checked_memory, workspace_within_memory

__all__ = ("checked_limits", "checked_mounts")

_NAME = "container"
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
    checked_memory(limits, _NAME, "a container")
    if (limits.pids or 0) < _LEAST_PIDS:
        raise LimitError(
            "pids",
            f"a container needs at least {_LEAST_PIDS} processes, not {limits.pids}",
            backend=_NAME,
            hint="the warden and one more for each running command are counted too",
        )
    if storage != "tmpfs":
        return limits
    return workspace_within_memory(limits, asked, _NAME, "choose another workspace_storage")


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
