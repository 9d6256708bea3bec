"""The image that sandboxes are made of: looked at, and fetched only if that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import aiohttp
from aiodocker.exceptions import DockerError

from ..config import ContainerConfig
from ..errors import BackendUnavailableError, BackendUnreachableError
from ._docker_engine import Engine, RefusedError

__all__ = ("Image", "find_image")

_NAME = "container"
_NOT_FOUND = 404

_Steps: TypeAlias = AsyncGenerator[dict[str, Any], None]


@dataclass(frozen=True)
class Image:
    """What matters of an image.

    Attributes:
        id: Its own name, which no tag can move away from.
        env: Its variables, as `NAME=value`.
        volumes: Where it wants volumes.
    """

    id: str
    env: tuple[str, ...]
    volumes: tuple[str, ...]


async def find_image(
    engine: Engine, config: ContainerConfig, on_progress: Callable[[str], Any] | None = None
) -> Image:
    """Return the image, fetched first where the config says so.

    Args:
        engine: The engine.
        config: Names the image, and when to fetch it.
        on_progress: Called with a line of text for each step of fetching it.

    Raises:
        BackendUnavailableError: It is not there, or can't be fetched.
    """
    if config.pull != "always":
        found = await _inspect(engine, config.image)
        if found is not None:
            return found
        if config.pull == "never":
            raise BackendUnavailableError(
                f"the engine at {engine.endpoint.url} has no image {config.image!r}",
                backend=_NAME,
                hint="`ringfence image build` makes the default one; pull='missing' fetches others",
            )
    await _pull(engine, config, on_progress)
    found = await _inspect(engine, config.image)
    if found is None:
        raise BackendUnavailableError(
            f"image {config.image!r} is not there although it was fetched", backend=_NAME
        )
    return found


async def _inspect(engine: Engine, name: str) -> Image | None:
    try:
        found: Mapping[str, Any] = await engine.call("an image", engine.docker.images.inspect(name))
    except RefusedError as error:
        if error.status != _NOT_FOUND:
            raise _unusable(name, error.message) from error
        return None
    config = found.get("Config") or {}
    return Image(
        id=found["Id"],
        env=tuple(config.get("Env") or ()),
        volumes=tuple(sorted(config.get("Volumes") or ())),
    )


def _unusable(name: str, said: str) -> BackendUnavailableError:
    return BackendUnavailableError(f"image {name!r} can't be used: {said}", backend=_NAME)


async def _pull(
    engine: Engine, config: ContainerConfig, on_progress: Callable[[str], Any] | None
) -> None:
    name = config.image
    if ":" not in name.rpartition("/")[2]:
        name += ":latest"  # without a tag, an engine fetches all of them
    last = "nothing was heard yet"
    try:
        steps = cast("_Steps", engine.docker.images.pull(name, stream=True))
        # Whatever ends it, the answer is let go of here and not when it is collected as garbage.
        async with asyncio.timeout(config.pull_timeout), aclosing(steps):
            async for step in steps:
                last = _line(step)
                if "error" in step:
                    raise _not_pulled(name, last)
                if on_progress is not None:
                    on_progress(last)
    except TimeoutError:
        raise BackendUnavailableError(
            f"pulling image {name!r} was not done within {config.pull_timeout:g} s; last: {last}",
            backend=_NAME,
            hint="give it a longer pull_timeout, or pull it beforehand",
        ) from None
    except DockerError as error:
        raise _not_pulled(name, str(error.message)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise BackendUnreachableError(
            f"pulling image {name!r}: the engine hung up ({type(error).__name__})", backend=_NAME
        ) from error


def _not_pulled(name: str, said: str) -> BackendUnavailableError:
    return BackendUnavailableError(f"pulling image {name!r} failed: {said}", backend=_NAME)


def _line(step: Mapping[str, Any]) -> str:
    """Return one step of fetching an image as a line."""
    parts = (step.get("id"), step.get("error") or step.get("status"), step.get("progress"))
    return " ".join(str(part) for part in parts if part)[:200]
