"""Directories to work in, which are removed even if whoever made them was killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ("scratch",)

_PREFIX = "ringfence-image-"
_OWNED = re.compile(rf"{_PREFIX}(\d+)-.+")
_MEMORY = Path("/dev/shm")  # noqa: S108  # below it a directory of our own is made
_WORK_BYTES = 3 << 30


@contextmanager
def scratch(*, in_memory: bool) -> Iterator[Path]:
    """Make a directory for as long as the block runs; what dead processes left goes first.

    Args:
        in_memory: Take memory, if enough is free: `dpkg` waits for a disk after each file.
    """
    place = _MEMORY if in_memory and _has_room(_MEMORY) else Path(tempfile.gettempdir())
    for path in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else removes it too
            if _is_abandoned(path):
                shutil.rmtree(path)
    with tempfile.TemporaryDirectory(dir=place, prefix=f"{_PREFIX}{os.getpid()}-") as made:
        yield Path(made)


def _has_room(place: Path) -> bool:
    try:
        return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= _WORK_BYTES
    except OSError:
        return False


def _is_abandoned(path: Path) -> bool:
    """Whether it is ours, by its name and its owner, and the process that made it is gone."""
    owned = _OWNED.fullmatch(path.name)
    if not owned or path.lstat().st_uid != os.geteuid():
        return False
    try:
        os.kill(int(owned[1]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
