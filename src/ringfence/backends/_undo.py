"""Makes a sandbox for a caller who may be cancelled meanwhile, and then leaves nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio

from ..backend import Sandbox
from ..errors import SandboxError
from ._tasks import Tasks

__all__ = ("UNDO_SECONDS", "made_or_undone")

UNDO_SECONDS = 5.0
"""That a cancelled caller waits for it; then it goes on in the background."""


async def made_or_undone(
    tasks: Tasks, work: Coroutine[Any, Any, Sandbox], *, cuts: bool
) -> Sandbox:
    """Return the sandbox that some work makes.

    A request that has reached a server can't be taken back: for a caller that is cancelled, what
    the work has begun is finished and then removed.

    Args:
        tasks: What goes on behind the callers' backs.
        work: Makes the sandbox, and takes it away itself where it fails.
        cuts: Whether it is cancelled too, since it then takes away itself what it has begun;
            else it is let to its end.
    """
    making = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        if cuts:
            making.cancel()
        undoing = tasks.task(_undo(making))
        with anyio.move_on_after(UNDO_SECONDS, shield=True):
            await asyncio.shield(undoing)
        raise


async def _undo(making: asyncio.Future[Sandbox]) -> None:
    """Close what was made for somebody who has gone."""
    try:
        sandbox = await making
    except (SandboxError, asyncio.CancelledError):
        return  # it has undone itself
    await sandbox.aclose()
