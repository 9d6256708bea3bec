"""Images of a container engine: imported from an archive, built from a recipe, fetched, listed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from aiodocker.exceptions import DockerError

from ..config import ContainerConfig
from ..errors import ImageError
from ._docker_endpoint import find_endpoint
from ._docker_engine import Engine, RefusedError, unreachable
from ._docker_image import find_image

__all__ = ("ImageStore", "open_images", "split_name")

_BACKEND = "container"
_UNREACHABLE = 900  # aiodocker's own number
_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 20


@asynccontextmanager
async def open_images(config: ContainerConfig) -> AsyncIterator[ImageStore]:
    """Reach the engine that a config names, for its images.

    Raises:
        BackendUnavailableError: There is none, or none that answers.
    """
    engine = Engine(find_endpoint(config))
    try:
        await engine.open()
        yield ImageStore(engine)
    finally:
        await engine.aclose()


class ImageStore:
    """The images of one engine. Every call raises `BackendUnreachableError` if it is gone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._client = engine.docker

    async def find(self, name: str) -> dict[str, Any] | None:
        """Return what the engine says of an image, or None if it has none of that name."""
        try:
            return await self._engine.call("an image", self._client.images.inspect(name))
        except RefusedError as error:
            if error.status == 404:
                return None
            raise _refused(error.message) from error

    async def list_labelled(self, label: str) -> list[dict[str, Any]]:
        """Return what the engine says, in short, of each image that has a label."""
        request = self._client.images.list(filters={"label": [label]})
        try:
            return list(await self._engine.call("its images", request))
        except RefusedError as error:
            raise _refused(error.message) from error

    async def import_archive(self, archive: Path, tag: str, changes: Sequence[str]) -> None:
        """Make an image of the files in a tar archive.

        Args:
            archive: The files.
            tag: Its name; an image that had it loses it.
            changes: Lines of a Dockerfile that are about the image: ENV, USER, LABEL, ...

        Raises:
            ImageError: The engine can't read it.
        """
        repository, label = split_name(tag)
        query = {"fromSrc": "-", "repo": repository, "tag": label, "changes": "\n".join(changes)}
        async with await anyio.open_file(archive, "rb") as file:
            async for _ in self._post("images/create", query, _chunks(file)):
                pass  # it only says the image's id

    async def build(
        self, context: bytes, tag: str, *, args: Mapping[str, str], labels: Mapping[str, str]
    ) -> AsyncGenerator[str, None]:
        """Build an image and yield what the engine says meanwhile, line by line.

        Closing the generator ends the build.

        Raises:
            ImageError: A step of it failed.
        """
        query = {
            "t": tag,
            "buildargs": json.dumps(args),
            "labels": json.dumps(labels),
            "rm": "1",
            "forcerm": "1",
        }
        async with aclosing(self._post("build", query, context)) as answer:
            async for said in answer:
                for line in str(said.get("stream", said.get("status", ""))).splitlines():
                    if line.strip():
                        yield line.strip()

    async def fetch(self, name: str, seconds: float, on_line: Callable[[str], None]) -> None:
        """Have an image, from its registry if the engine has it not.

        Raises:
            BackendUnavailableError: It can't be had.
        """
        config = ContainerConfig(image=name, pull="missing", pull_timeout=seconds)
        await find_image(self._engine, config, on_line)

    async def _post(
        self, path: str, query: Mapping[str, str], data: object
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Send an archive and yield each object of the answer, which comes bit by bit."""
        with self._translated():
            async with self._client._query(
                path,
                "POST",
                params=query,
                data=data,
                headers={"Content-Type": "application/x-tar"},
                timeout=None,
            ) as response:
                try:
                    async for line in _lines(response.content):
                        said = json.loads(line)
                        if "error" in said:
                            raise _refused(said["error"])
                        yield said
                finally:
                    response.close()  # which ends what is still going on

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn what the client raises, while something long is going on, into our own errors."""
        endpoint = self._engine.endpoint
        try:
            yield
        except DockerError as error:
            if error.status == _UNREACHABLE:
                raise unreachable(endpoint, "can't be reached") from error
            raise _refused(error.message) from error
        except (aiohttp.ClientError, OSError, json.JSONDecodeError) as error:
            raise unreachable(endpoint, f"hung up ({type(error).__name__})") from error


def split_name(name: str) -> tuple[str, str]:
    """Split an image's name into its repository and its tag; a port is no tag."""
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, "latest"
    return repository, tag


async def _chunks(file: anyio.AsyncFile[bytes]) -> AsyncIterator[bytes]:
    while chunk := await file.read(_CHUNK_BYTES):
        yield chunk


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    kept = b""
    async for chunk in content.iter_any():
        *whole, kept = (kept + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(kept) > _MAX_LINE_BYTES:
            raise _refused("it says more in one line than anybody would")
    if kept.strip():
        yield kept


def _refused(message: object) -> ImageError:
    return ImageError(f"the engine refuses: {str(message).strip()}", backend=_BACKEND)
