"""gVisor's `runsc`, a second runtime for the engine: a kernel of its own, in a process."""

from __future__ import annotations

import platform
import re
import subprocess

from . import debian
from .steps import ServiceError

OLDEST = 2024
"""What Debian 12 itself has is of 2022, and does not work."""

ARGUMENTS = ("--network=none",)
"""Its own network stack can't be set up where the engine runs in a container or a small machine."""


def install() -> str:
    """Return the path of `runsc`, which is installed if it is not there.

    Raises:
        ServiceError: It can't be had here, or what is here is too old.
    """
    if platform.machine() != "x86_64":
        raise ServiceError("gVisor is installed on x86-64 only: elsewhere install runsc yourself")
    if not (path := debian.find_program("runsc")):
        debian.install_backport("runsc")
        path = debian.find_program("runsc")
    if not path:
        raise ServiceError("the package runsc has no program of that name")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
    year = re.search(r"20\d\d", said)
    if year and int(year[0]) < OLDEST:
        raise ServiceError(f"{path} is of {year[0]}, and {OLDEST} is the oldest that works")
    return path
