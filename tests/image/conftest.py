"""Images that are built for these tests, each once, in both ways."""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from ringfence.backends._docker_images import open_images
from ringfence.config import ContainerConfig
from ringfence.image import BuiltImage, Way, build_image, list_images

from ..cli.conftest import Cli

OF_PACKAGES = "ringfence-test:sandbox"
BY_ENGINE = "ringfence-test:sandbox-dockerfile"
BASE = "ringfence-test:sandbox-base"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture(scope="session")
def of_packages() -> BuiltImage:
    """The image of Debian packages; one that the recipe as it is has made before will do."""
    for image in anyio.run(list_images):
        if image.tag == OF_PACKAGES and image.is_current:
            return image
    return _build("debian", OF_PACKAGES)


@pytest.fixture(scope="session")
def base(of_packages: BuiltImage) -> Iterator[str]:
    """A Debian for the Dockerfile to start from: no registry is asked, nor any mirror.

    It has the packages already, and an apt-get that only notes what it was asked for, in
    `/opt/apt-arguments`.
    """
    anyio.run(make_base, BASE, of_packages.tag, 'echo "$*" | tee -a /opt/apt-arguments')
    yield BASE
    anyio.run(remove, BASE)


@pytest.fixture(scope="session")
def by_engine(base: str) -> Iterator[BuiltImage]:
    yield _build("dockerfile", BY_ENGINE, base=base)
    anyio.run(remove, BY_ENGINE)


@pytest.fixture(params=["of_packages", "by_engine"])
def image(request: pytest.FixtureRequest) -> BuiltImage:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, BuiltImage)
    return found


def _build(way: Way, tag: str, base: str = "none") -> BuiltImage:
    return anyio.run(partial(build_image, way=way, tag=tag, base=base))


async def remove(tag: str) -> None:
    async with open_images(ContainerConfig()) as images:
        await images._engine.docker.images.delete(tag, force=True)


async def make_base(tag: str, origin: str, apt_get: str) -> None:
    """Make a base image with an apt-get of the test's own."""
    parts = {
        "Dockerfile": f"FROM {origin}\nUSER 0\nCOPY apt-get /usr/local/bin/apt-get\n",
        "apt-get": f"#!/bin/sh\n{apt_get}\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in parts.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    once = {"ringfence-test.session": uuid.uuid4().hex}  # nothing of another run is taken for it
    async with open_images(ContainerConfig()) as images:
        async for _ in images.build(buffer.getvalue(), tag, args={}, labels=once):
            pass
