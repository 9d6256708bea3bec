"""The network of a sandbox that may reach out: a bridge of its own, with its name and its life.

Nobody else is on it, and it is guarded: see `_docker_guard`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio

from ..errors import ConfigError, CreateError
from ._docker_aside import network_body
from ._docker_engine import Engine, RefusedError
from ._docker_guard import bridge_is_here, held

__all__ = ("Network", "network_of")

_NAME = "container"
_NOT_FOUND = 404


def network_of(sandbox_id: str) -> str:
    """Return the name of a sandbox's network; its bridge has the sandbox's own."""
    return f"{sandbox_id}-net"


class Network:
    """Makes and removes networks.

    Args:
        engine: The engine.
        guarded: Whether bridges are guarded, or left open.
    """

    def __init__(self, engine: Engine, *, guarded: bool) -> None:
        self._engine = engine
        self._guarded = guarded
        self._made: set[str] = set()
        self._turns = anyio.Lock()  # so that ours do not wait in threads for the machine's

    async def check(self, name: str) -> None:
        """Refuse a network of the engine that does not exist, or that is the host's own.

        Raises:
            ConfigError: There is none of that name, or it is no network of its own.
        """
        try:
            get = self._engine.docker.networks.get(name)
            network = await self._engine.call("a network", get)
            found = await self._engine.call("a network", network.show())
        except RefusedError as error:
            if error.status != _NOT_FOUND:
                raise CreateError(error.message, backend=_NAME) from error
            raise ConfigError(
                f"the engine has no network {name!r}",
                backend=_NAME,
                hint="`docker network ls` lists them",
            ) from error
        if found.get("Driver") in ("host", "null"):
            raise ConfigError(
                f"network {name!r} is of the kind {found.get('Driver')!r}",
                backend=_NAME,
                hint="give none, bridge, or a network whose driver is bridge or the like",
            )

    async def make(self, sandbox_id: str, labels: Mapping[str, str]) -> str:
        """Make a sandbox's network and return its name.

        Raises:
            CreateError: It can't be made, or not be guarded. What there is of it is for `remove`
                to take away.
            BackendUnreachableError: The engine does not answer.
        """
        name = network_of(sandbox_id)
        self._made.add(sandbox_id)
        async with self._guard(making=True):
            try:
                create = self._engine.docker.networks.create(network_body(name, sandbox_id, labels))
                await self._engine.call("a network", create)
            except RefusedError as error:
                raise _refused(error) from error
            if self._guarded and not bridge_is_here(sandbox_id):
                raise CreateError(
                    "a bridge can't be guarded: the engine has another network namespace than we",
                    backend=_NAME,
                    hint="bridge_guard='preferred' does without",
                )
        return name

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox's network, if it has one.

        Raises:
            RefusedError: The engine does not do it.
            BackendUnreachableError: It does not answer.
        """
        if sandbox_id not in self._made:
            return
        async with self._guard(making=False):
            await self._engine.remove_network(network_of(sandbox_id))
        self._made.discard(sandbox_id)

    @asynccontextmanager
    async def _guard(self, *, making: bool) -> AsyncIterator[None]:
        if not self._guarded:
            yield
            return
        async with self._turns, held(making=making):
            yield


def _refused(error: RefusedError) -> CreateError:
    hint = None
    if "address pool" in error.message:
        hint = "each sandbox has a network of its own: give the engine smaller and more pools"
    return CreateError(
        f"the engine can't make a network: {error.message}", backend=_NAME, hint=hint
    )
