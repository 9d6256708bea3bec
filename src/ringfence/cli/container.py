"""What the command line has for containers alone."""

from __future__ import annotations

import sys

from ..backend import Backend
from ..config import ContainerConfig
from ..errors import BackendUnavailableError, SandboxError
from ..registry import load_backend
from ..settings import Settings

__all__ = ("reap_engine", "show_fetching")


def show_fetching(backend: Backend) -> None:
    """Let a container backend tell on stderr how far an image has been fetched."""
    from ..backends.docker import ContainerBackend

    if isinstance(backend, ContainerBackend):
        backend.on_progress = _tell


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


async def reap_engine(settings: Settings) -> tuple[int, str]:
    """Remove what dead owners left in the container engine, if there is one.

    Returns:
        How many sandboxes that was, and what went wrong, or nothing.
    """
    config = ContainerConfig(host=settings.host or "")
    try:
        backend = load_backend("container")
        return await backend(config).reap(), ""  # type: ignore[call-arg]  # each takes its config
    except BackendUnavailableError as error:
        # Without an engine there is nothing to remove, unless one was named.
        return 0, str(error) if settings.host else ""
    except SandboxError as error:
        return 0, str(error)
