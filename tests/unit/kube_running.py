"""Runs a body of a test with an API server that it may spoil, and a Kubernetes backend on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from ringfence import Sandbox
from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.config import KubernetesConfig
from ringfence.errors import (
    SandboxLostError,
)

from .kube_server import KubeServer

Body = Callable[[KubeServer, KubernetesBackend], Awaitable[None]]


def run(path: Path, body: Body, **settings: Any) -> None:
    """Run a body with a server and a backend that is not open yet."""

    async def main() -> None:
        async with KubeServer().running() as server:
            config = {"image": "i", "kubeconfig": server.kubeconfig(path / "config"), **settings}
            await body(server, KubernetesBackend(KubernetesConfig(**config)))

    anyio.run(main)


@asynccontextmanager
async def sandbox_of(backend: KubernetesBackend) -> AsyncIterator[Sandbox]:
    async with backend, await backend.create() as sandbox:
        yield sandbox


async def cause_of_loss(sandbox: Sandbox) -> str:
    """Use a sandbox until it is lost, and return of what."""
    with anyio.fail_after(8):
        while True:
            try:
                await sandbox.exec("true")
            except SandboxLostError as error:
                return error.cause
            await anyio.sleep(0.01)
