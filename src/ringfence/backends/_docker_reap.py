"""Finds what dead owners left in an engine, and removes it.

Everything that is made bears the name of the inventory that knows it and the id of its sandbox. It
is a left-over if no live owner of that inventory has noted the sandbox. What bears another
inventory's name, or none, is never touched.
"""

from __future__ import annotations

import logging

import anyio.to_thread

from .. import inventory
from ..errors import BackendUnreachableError, CreateError
from ._docker_body import LABEL
from ._docker_engine import Engine, RefusedError
from ._docker_guard import held, why_no_guard
from ._docker_loop import left_loops, remove_loop
from ._docker_refusals import remove_container

__all__ = ("reap_engine",)

_log = logging.getLogger(__name__)


async def reap_engine(engine: Engine) -> int:
    """Remove what dead owners left and return how many sandboxes that was.

    Raises:
        BackendUnreachableError: The engine does not answer.
    """
    store = await anyio.to_thread.run_sync(inventory.store_id)
    label = f"{LABEL}store={store}"
    # Listed before the owners are looked at: what is made in between is not on the list.
    containers = await engine.list_owned("containers", label)
    volumes = await engine.list_owned("volumes", label)
    networks = await engine.list_owned("networks", label)
    live = await anyio.to_thread.run_sync(_live)
    reaped: set[str] = set()
    for name, labels in containers:
        sandbox = labels.get(f"{LABEL}sandbox", "")
        if sandbox not in live and await _removed(engine, "container", name):
            reaped.add(sandbox)
    for name, labels in volumes:
        if labels.get(f"{LABEL}sandbox", "") not in live:
            await _removed(engine, "volume", name)
    for name, labels in networks:
        if labels.get(f"{LABEL}sandbox", "") not in live:
            await _removed(engine, "network", name)
    if networks and not await anyio.to_thread.run_sync(_why_no_guard):
        async with held(making=False):
            pass  # which takes the guard away after the last of them
    for sandbox in await anyio.to_thread.run_sync(left_loops, live):
        try:
            await anyio.to_thread.run_sync(remove_loop, sandbox)
        except (CreateError, OSError) as error:
            _log.warning("the workspace of sandbox %s can't be removed yet: %s", sandbox, error)
    await anyio.to_thread.run_sync(inventory.reap)  # what dead owners have noted
    return len(reaped)


def _why_no_guard() -> str:
    return why_no_guard(local=True)


def _live() -> frozenset[str]:
    """Return the sandboxes that live owners of this inventory have noted."""
    return frozenset(found.entry.id for found in inventory.scan() if found.alive)


async def _removed(engine: Engine, kind: str, name: str) -> bool:
    try:
        if kind == "container":
            return await remove_container(engine, name)
        if kind == "volume":
            await engine.remove_volume(name)
        else:
            await engine.remove_network(name)
    except RefusedError as error:
        _log.warning("%s %s of a dead owner can't be removed yet: %s", kind, name, error.message)
        return False
    except BackendUnreachableError as error:
        _log.warning("%s %s of a dead owner stays: %s", kind, name, error)
        raise
    return True
