"""Sandboxes with a real ipykernel, on each backend that runs programs."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from ringfence.backend import Backend, Sandbox
from ringfence.config import BubblewrapConfig, ContainerConfig, ProcessConfig
from ringfence.contexts import CodeContexts, ContextLimits
from ringfence.interpreter import find_interpreter
from ringfence.models import Limits, Mount, SandboxSpec
from ringfence.registry import open_backend
from ringfence.testing import REQUIRED_VARIABLE
from scripts.services.engine import Engine
from scripts.services.kernel import kernel_packages

from ..own_places import own_places
from ..second_net import second_net

__all__ = ("Room", "own_places", "second_net")

PACKAGES = "/opt/kernel"


@dataclass
class Room:
    """A backend whose sandboxes can have kernels.

    Attributes:
        name: The backend's.
        backend: It, opened.
        python: The interpreter to be named there.
        mounts: What its sandboxes show for it.
        env: What they need of variables.
    """

    name: str
    backend: Backend
    python: str
    mounts: tuple[Mount, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    async def sandbox(self, limits: Limits | None = None) -> Sandbox:
        return await self.backend.create(
            SandboxSpec(mounts=self.mounts, env=self.env, limits=limits or Limits())
        )

    def contexts(self, sandbox: Sandbox, limits: ContextLimits | None = None) -> CodeContexts:
        return CodeContexts(sandbox, python=self.python, limits=limits)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(
    scope="module",
    params=["process", "bubblewrap", pytest.param("container", marks=pytest.mark.container)],
)
async def room(request: pytest.FixtureRequest, own_places: object) -> AsyncIterator[Room]:
    """Each backend in turn."""
    python = find_interpreter(sys.executable)
    if request.param == "container":
        packages = Mount(str(kernel_packages()), PACKAGES)
        config = ContainerConfig(image="ringfence-test:python", host=str(Engine().address))
        async with open_backend(config) as backend:
            yield Room("container", backend, "python3", (packages,), {"PYTHONPATH": PACKAGES})
    elif request.param == "bubblewrap":
        jails = BubblewrapConfig(spares=0)
        probe = await open_backend(jails).probe()
        if not probe.ok:
            assert "bubblewrap" not in os.environ.get(REQUIRED_VARIABLE, "bubblewrap"), probe.reason
            pytest.skip(f"bubblewrap can't run here: {probe.reason}")
        async with open_backend(jails) as backend:
            yield Room("bubblewrap", backend, python.path, python.mounts)
    else:
        async with open_backend(ProcessConfig()) as backend:
            yield Room("process", backend, python.path)


@pytest.fixture(scope="module")
async def sandbox(room: Room) -> AsyncIterator[Sandbox]:
    """One sandbox for all tests that leave it as it was."""
    async with await room.sandbox() as made:
        yield made


@pytest.fixture(scope="module")
async def shared(room: Room, sandbox: Sandbox) -> AsyncIterator[CodeContexts]:
    """Contexts of that sandbox."""
    async with room.contexts(sandbox) as made:
        yield made
