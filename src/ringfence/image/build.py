"""Builds the image in the way that can work here, and lists those that were built."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import anyio

from ..config import ContainerConfig
from ..errors import BackendUnavailableError, ConfigError, ImageError, MissingDependencyError
from . import debian, recipe
from .scratch import scratch

__all__ = ("BuiltImage", "Step", "Way", "build_image", "list_images")

Way = Literal["auto", "debian", "dockerfile"]

DEFAULT_TIMEOUT = 1800.0
_PULL_SECONDS = 300.0

# As engines have it; a registry's host and port may come before it.
_TAG = re.compile(
    r"(?:[a-zA-Z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:(?:[._/]|__|-+)[a-z0-9]+)*(?::[\w][\w.-]{0,127})?",
    re.ASCII,
)
_MAX_TAG = 255
_LINES_KEPT = 8
_UNNAMED = "<none>:<none>"
_ENGINE_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")


@dataclass(frozen=True)
class Step:
    """Something that building an image is at.

    Attributes:
        text: What it is, or a line that came of it.
        number: Which one it is, from 1, or None if that is not known.
        count: How many there are, or None if that is not known.
        is_detail: Whether it is only a line that came of the step before.
    """

    text: str
    number: int | None = None
    count: int | None = None
    is_detail: bool = False


@dataclass(frozen=True)
class BuiltImage:
    """An image that was made of the recipe.

    Attributes:
        tag: Its name, `repository:tag`.
        id: The engine's id for it.
        size_bytes: Of its files.
        created_at: When it was made.
        with_data: Whether the data packages are in it.
        is_current: Whether the recipe is still the one that it was made of.
    """

    tag: str
    id: str
    size_bytes: int
    created_at: datetime
    with_data: bool
    is_current: bool


async def build_image(
    *,
    way: Way = "auto",
    with_data: bool = False,
    tag: str = recipe.DEFAULT_TAG,
    base: str = recipe.DEFAULT_BASE,
    engine: ContainerConfig | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    on_step: Callable[[Step], None] = lambda step: None,
) -> BuiltImage:
    """Build the image that container sandboxes run; needs asyncio, as the engine's client does.

    Args:
        way: `dockerfile`: by the engine, which needs the base image or a registry to fetch it
            from, and a network. `debian`: of Debian packages by mmdebstrap; needs root and apt
            sources. `auto`: the first if the engine has the base or gets it, else the second.
        with_data: Put numpy, pandas, matplotlib and ipykernel in.
        tag: Its name. An image that had it loses it, once the new one is whole.
        base: What the Dockerfile starts from: a Debian of the recipe's release.
        engine: Where the engine is: `host`, `socket_path`, `context` and `tls_dir` of it.
        timeout: Seconds that all of it may take.
        on_step: Is told what is being done.

    Raises:
        ConfigError: A tag, a way or a timeout that can't be right.
        MissingDependencyError: The extra, or mmdebstrap, is not installed.
        BackendUnreachableError: No engine answers.
        BackendUnavailableError: That way can't work on this machine.
        ImageError: It could not be built; the end of what was said is in the message.
    """
    _check(way, tag, base, timeout)
    with anyio.move_on_after(timeout) as scope:
        async with _open(engine) as images:
            if way == "auto":
                way = await _choose(images, base, on_step)
            if way == "dockerfile":
                await _by_engine(images, tag, base, with_data, on_step)
            else:
                await _of_packages(images, tag, with_data, on_step)
            return await _built(images, tag)
    assert scope.cancelled_caught
    raise ImageError(f"{tag} was not built within {timeout:g} s", hint="allow it more time")


async def list_images(*, engine: ContainerConfig | None = None) -> list[BuiltImage]:
    """Return the images that were made of the recipe, the newest first.

    Raises:
        MissingDependencyError: The extra is not installed.
        BackendUnreachableError: No engine answers.
    """
    async with _open(engine) as images:
        labelled = await images.list_labelled(recipe.LABEL)
        tags = [tag for image in labelled for tag in image.get("RepoTags") or []]
        found = [await _built(images, tag) for tag in tags if tag != _UNNAMED]
    return sorted(found, key=lambda image: image.created_at, reverse=True)


def _open(engine: ContainerConfig | None) -> AbstractAsyncContextManager[Any]:
    """Return the engine's images, once it is entered."""
    try:
        from ..backends._docker_images import open_images
    except ImportError as error:
        raise MissingDependencyError(
            f"an engine's images need a package that is not installed: {error.name}",
            hint="pip install 'ringfence[container]'",
        ) from error
    return open_images(engine or ContainerConfig())


def _check(way: str, tag: str, base: str, timeout: float) -> None:
    if way not in get_args(Way):
        raise ConfigError(f"way {way!r:.40}", hint=f"one of {', '.join(get_args(Way))}")
    for name, value in (("tag", tag), ("base", base)):
        if len(value) > _MAX_TAG or not _TAG.fullmatch(value):
            raise ConfigError(
                f"{name} {value!r:.80} is no image's name", hint="lower case: repository:tag"
            )
    if not 0 < timeout <= 86400:
        raise ConfigError(f"timeout {timeout!r} is not between 0 and 86400 seconds")


async def _choose(images: Any, base: str, on_step: Callable[[Step], None]) -> Way:
    """Return the way that can work here, with the base image fetched if it is the engine's."""
    try:
        await _fetch(images, base, on_step)
    except BackendUnavailableError as error:
        try:
            debian.check()
        except BackendUnavailableError as other:
            raise BackendUnavailableError(
                f"neither way can work here: {error.message}; and {other.message}",
                hint=other.hint,
            ) from error
        on_step(Step(f"of Debian packages, since {error.message}"))
        return "debian"
    return "dockerfile"


async def _fetch(images: Any, base: str, on_step: Callable[[Step], None]) -> None:
    if not await images.find(base):
        on_step(Step(f"fetching {base}"))
        await images.fetch(base, _PULL_SECONDS, lambda line: on_step(Step(line, is_detail=True)))


async def _by_engine(
    images: Any, tag: str, base: str, with_data: bool, on_step: Callable[[Step], None]
) -> None:
    try:
        await _fetch(images, base, on_step)
    except BackendUnavailableError as error:
        raise ImageError(
            error.message,
            hint="use --way debian where no registry can be reached, or --base for another image",
        ) from error
    args = {"BASE": base, "DATA": "1" if with_data else ""}
    said: list[str] = []
    building = images.build(
        recipe.context(), tag, args=args, labels=recipe.labels(with_data=with_data)
    )
    try:
        async with aclosing(building) as lines:
            async for line in lines:
                said.append(line)
                on_step(_engine_step(line))
    except ImageError as error:
        end = "\n".join(said[-_LINES_KEPT:])
        raise ImageError(f"{tag} can't be built: {error.message}\n{end}") from error


def _engine_step(line: str) -> Step:
    found = _ENGINE_STEP.fullmatch(line)
    if not found:
        return Step(line, is_detail=True)
    return Step(found[3], int(found[1]), int(found[2]))


async def _of_packages(
    images: Any, tag: str, with_data: bool, on_step: Callable[[Step], None]
) -> None:
    stages = iter(range(1, len(_STAGES) + 1))

    def tell(line: str) -> None:
        text = line.removeprefix("I: ").rstrip(".")
        is_stage = any(text.startswith(stage) for stage in _STAGES)
        on_step(
            Step(text, next(stages, None), len(_STAGES) + 1)
            if is_stage
            else Step(text, is_detail=True)
        )

    with scratch(in_memory=False) as place:
        archive = place / "image.tar"
        await debian.bootstrap(archive, with_data=with_data, on_line=tell)
        on_step(Step(f"importing {tag}", len(_STAGES) + 1, len(_STAGES) + 1))
        labels = [
            f"LABEL {name}={value}" for name, value in recipe.labels(with_data=with_data).items()
        ]
        await images.import_archive(archive, tag, [*recipe.settings(), *labels])


_STAGES = (
    "running apt-get update",
    "downloading packages",
    "extracting archives",
    "installing essential packages",
    "installing remaining packages",
    "creating tarball",
)
"""What mmdebstrap says when it begins something, in this order."""


async def _built(images: Any, tag: str) -> BuiltImage:
    found = await images.find(tag)
    if not found:
        raise ImageError(f"{tag} was built, and the engine does not have it any more")
    label = (found["Config"].get("Labels") or {}).get(recipe.LABEL, "")
    return BuiltImage(
        tag=tag,
        id=found["Id"],
        size_bytes=found["Size"],
        created_at=_time(found["Created"]),
        with_data=label.endswith("-data"),
        is_current=label.removesuffix("-data") == recipe.digest(),
    )


def _time(text: str) -> datetime:
    """Read an engine's time, which has up to nine digits after the second."""
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text)
    if not found:
        return datetime.fromtimestamp(0, UTC)
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
