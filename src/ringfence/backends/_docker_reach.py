"""An engine that is reached and looked at: whether it can do what the config asks for."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from ..config import ContainerConfig
from ..errors import UnsupportedError
from ..warden.stream import asyncio_loop
from ._docker_body import seccomp_json
from ._docker_endpoint import find_endpoint
from ._docker_engine import Engine
from ._docker_facts import Facts, learn
from ._docker_guard import why_no_guard
from ._docker_image import Image, find_image

__all__ = ("Reached", "reach")


@dataclass(frozen=True)
class Reached:
    """An engine that can do what is asked of it.

    Attributes:
        engine: It, open until it is closed.
        facts: What there is to know of it.
        image: What sandboxes are made of.
    """

    engine: Engine
    facts: Facts
    image: Image


async def reach(config: ContainerConfig, on_progress: Callable[[str], Any] | None) -> Reached:
    """Reach the engine and find out whether it can do what the config asks for.

    Args:
        config: Names the engine and the image.
        on_progress: Called with a line of text for each step of fetching the image.

    Raises:
        UnsupportedError: This is no asyncio.
        ConfigError: What names the engine is malformed, or the profile is none.
        BackendUnavailableError: There is none, it can't do that, or has no such image.
    """
    if asyncio_loop() is None:
        raise UnsupportedError(
            "the container backend runs on asyncio only, since its client library does",
            backend="container",
            hint="the bubblewrap backend runs on trio too",
        )
    if config.seccomp_profile:
        seccomp_json(config.seccomp_profile)  # which checks it
    engine = Engine(find_endpoint(config))
    try:
        await engine.open()
        api, local = engine.docker.api_version, engine.endpoint.is_local
        most = _most_processes() if local else None
        facts = learn(engine.info, engine.version, api=api, local=local, most_processes=most)
        no_guard = await anyio.to_thread.run_sync(partial(why_no_guard, local=local))
        facts = replace(facts, no_guard=no_guard)
        facts.check(config)
        return Reached(engine, facts, await find_image(engine, config, on_progress))
    except BaseException:
        with anyio.CancelScope(shield=True):
            await engine.aclose()
        raise


def _most_processes() -> int | None:
    """Return how many processes one user can have here at all, or None where that is not told."""
    try:
        most = int(Path("/proc/sys/kernel/pid_max").read_bytes())
    except (OSError, ValueError):
        return None
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return most if hard == resource.RLIM_INFINITY else min(most, hard)
