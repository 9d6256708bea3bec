"""What a server in the tests' cluster takes beside an image with Python: what the package requires.

It is mounted into a pod, as a kernel's packages are into containers: an image with it would be made
anew with each change of the package.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from . import kernel

PROJECT = Path(__file__).resolve().parent.parent.parent
EXTRAS = ("kubernetes", "mcp")


def requirements() -> tuple[str, ...]:
    """Return what the package takes that serves sandboxes of a cluster."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = (one for name in EXTRAS for one in project["optional-dependencies"][name])
    return (*project["dependencies"], *extras)


def server_packages() -> Path:
    """Return a directory that is to be on the image's `PYTHONPATH`; made when first asked for.

    Raises:
        ServiceError: pip could not get them.
    """
    return kernel.packages("server", requirements())
