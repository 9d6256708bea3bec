"""Packages for the Python of the test images, to be mounted into them, such as a Jupyter kernel.

An image with them would take a registry or a network inside the engine; pip on the machine itself
takes neither.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .steps import CACHE, ServiceError, step

PYTHON_VERSION = "3.11"
"""Of the test images, which are Debian 12."""

REQUIREMENTS = ("ipykernel==7.4.0",)

PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def place(requirements: tuple[str, ...] = REQUIREMENTS) -> Path:
    """Return where some requirements are, or would be."""
    name = f"{requirements} {PYTHON_VERSION} {platform.machine()}"
    return CACHE / "kernel" / hashlib.sha256(name.encode()).hexdigest()[:16]


def kernel_packages() -> Path:
    """Return a directory that is to be on the image's `PYTHONPATH`; made when first asked for.

    Raises:
        ServiceError: pip could not get them.
    """
    return packages("kernel", REQUIREMENTS)


def packages(what: str, requirements: tuple[str, ...]) -> Path:
    """Return a directory with some requirements; made when first asked for.

    Raises:
        ServiceError: pip could not get them.
    """
    target = place(requirements)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with step(f"{what}: installed {', '.join(requirements)}"):
        part = Path(tempfile.mkdtemp(dir=target.parent, prefix="part-"))
        try:
            _install(part, requirements)
            part.chmod(0o755)
            if not target.is_dir():  # of two at once the first is as good
                os.rename(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target


def _install(target: Path, requirements: tuple[str, ...]) -> None:
    argv = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "install"]
    argv += ["--target", str(target), "--only-binary", ":all:", "--python-version", PYTHON_VERSION]
    for name in PLATFORMS:
        argv += ["--platform", f"{name}_{platform.machine()}"]
    done = subprocess.run([*argv, *requirements], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise ServiceError(f"pip could not install {requirements}: {done.stderr[-2000:]}")
