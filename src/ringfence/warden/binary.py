"""Where the warden's binary is."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

__all__ = ("warden_for", "warden_path")

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def warden_path() -> Path | None:
    """Return the warden for this machine's processor, or None where there is none."""
    return warden_for(platform.machine()) if sys.platform == "linux" else None


def warden_for(processor: str) -> Path | None:
    """Return the warden for a Linux machine with that processor, or None where there is none."""
    machine = _MACHINES.get(processor.lower())
    if machine is None:
        return None
    path = Path(__file__).parent / "bin" / f"warden-{machine}"
    return path if path.is_file() else None
