"""What the engine's refusals mean, where a container is made and where it is removed."""

from __future__ import annotations

import asyncio

from ..errors import CreateError, LimitError, SandboxError
from ._docker_engine import Engine, RefusedError

__all__ = ("creation_error", "remove_container", "says_taken")

_NAME = "container"
_NOT_FOUND, _CONFLICT = 404, 409
_POLL_SECONDS = 0.05
_NPROC = 6  # as Linux, and so the runtime, numbers RLIMIT_NPROC


async def remove_container(engine: Engine, name: str) -> bool:
    """Remove a container in whatever state it is, and return when it is gone.

    Returns whether it was removed by this call: others may be at it too.

    Raises:
        RefusedError: The engine does not do it.
        BackendUnreachableError: It does not answer.
    """
    container = engine.container(name)
    removed = False
    while True:
        try:
            await engine.call("a removal", container.delete(force=True, v=True))
            removed = True
        except RefusedError as error:
            if error.status == _NOT_FOUND:
                return removed
            if error.status != _CONFLICT:  # it is being removed already
                raise
        await asyncio.sleep(_POLL_SECONDS)


def creation_error(error: RefusedError, name: str) -> SandboxError:
    """Return what the engine's refusal to create or start a container means."""
    said = error.message
    lower = said.lower()
    if error.status == _NOT_FOUND and "no such image" in lower:
        return CreateError(
            f"the image is gone: {said}",
            backend=_NAME,
            hint="`ringfence image build` makes it, or pull='missing' fetches it",
        )
    if says_taken(error):
        return CreateError(f"there is a container {name!r} already", backend=_NAME)
    if "rlimit" in lower or "ulimit" in lower:
        return LimitError(
            "nproc" if f"type {_NPROC}" in lower else "open_files",
            f"the engine can't give so many: {said}",
            backend=_NAME,
            hint="ask for less, or raise the engine's own limit",
        )
    return CreateError(f"the engine could not make the sandbox: {said}", backend=_NAME)


def says_taken(error: RefusedError) -> bool:
    """Whether a container of that name is there already, which is somebody else's then."""
    return error.status == _CONFLICT and "name" in error.message.lower()
