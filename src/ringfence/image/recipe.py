"""The recipe, read from the files that ship with the package."""

from __future__ import annotations

import hashlib
import io
import tarfile
from importlib import resources
from pathlib import Path

__all__ = (
    "DEFAULT_BASE",
    "DEFAULT_TAG",
    "LABEL",
    "SUITE",
    "context",
    "digest",
    "labels",
    "packages",
    "settings",
    "write_setup",
)

DEFAULT_TAG = "ringfence-sandbox:latest"
DEFAULT_BASE = "debian:bookworm-slim"

SUITE = "bookworm"
"""The Debian release of both ways; the other half of `DEFAULT_BASE`."""

LABEL = "ringfence.image.recipe"
"""On every image that is made of the recipe: its digest, and whether the data packages are in."""

_FILES = ("Dockerfile", "packages", "packages-data", "setup")
_SETTINGS = ("CMD", "ENV", "USER", "WORKDIR")


def _read(name: str) -> bytes:
    return resources.files(__package__).joinpath("context", name).read_bytes()


def digest() -> str:
    """Return a digest of the whole recipe: of an image that says another, it has changed since."""
    total = hashlib.sha256()
    for name in _FILES:
        content = _read(name)
        total.update(f"{name} {len(content)}\n".encode() + content)
    return total.hexdigest()[:16]


def labels(*, with_data: bool) -> dict[str, str]:
    """Return the labels of an image that is made of the recipe as it is now."""
    return {LABEL: f"{digest()}{'-data' if with_data else ''}"}


def packages(*, with_data: bool) -> list[str]:
    """Return the names of the Debian packages."""
    names = _read("packages").split()
    if with_data:
        names += _read("packages-data").split()
    return [name.decode() for name in names]


def settings() -> list[str]:
    """Return the Dockerfile's lines that are about the image and not about its files."""
    lines = _read("Dockerfile").decode().splitlines()
    return [line for line in lines if line.partition(" ")[0] in _SETTINGS]


def context() -> bytes:
    """Return the recipe as the tar archive that an engine builds from."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in _FILES:
            content = _read(name)
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755 if name == "setup" else 0o644
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def write_setup(directory: Path) -> Path:
    """Write the script that makes a sandbox of a Debian, and return where it is."""
    path = directory / "setup"
    path.write_bytes(_read("setup"))
    path.chmod(0o755)
    return path
