"""What the tests of containers run in, and the engine that they run against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import inventory
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from scripts.services.engine import Engine

from ..own_places import own_places
from ..second_net import second_net
from .between import Between
from .own_engine import OwnEngine
from .seen import Seen

__all__ = ("own_places", "second_net")

MINIMAL, PYTHON = "ringfence-test:minimal", "ringfence-test:python"


@pytest.fixture(scope="session")
def address() -> str:
    """The path of the socket of the engine that is given or was brought up for the tests."""
    found = Engine().address
    assert found.startswith("unix://"), "these tests put a socket of their own before the engine's"
    return found.removeprefix("unix://")


@pytest.fixture(autouse=True)
def owner(own_places: Path) -> None:
    """Be an owner already: its file stays open from the first time to the end of this process."""
    inventory.owner()


@pytest.fixture
def seen(address: str, own_places: Path) -> Iterator[Seen]:
    """The engine as it looks from outside; fails if anything of this run is left in it."""
    found = Seen(address)
    yield found
    found.nothing_left()


@pytest.fixture
def between(address: str, tmp_path_factory: pytest.TempPathFactory) -> Between:
    """A socket before the engine's, that spoils what a test wants spoilt."""
    return Between(address, str(tmp_path_factory.mktemp("e") / "s"))


@pytest.fixture(scope="module")
def own_engine(own_places: Path) -> Iterator[OwnEngine]:
    """An engine that may be stopped and killed, in a network namespace of its own."""
    assert os.geteuid() == 0, "an engine of one's own needs root"
    engine = OwnEngine()
    try:
        engine.start()
        engine.import_minimal()
        yield engine
    finally:
        engine.put_away()


def containers(socket: str, image: str = MINIMAL, **settings: object) -> ContainerBackend:
    """Return a backend, not yet opened, at a socket; one that a busy machine has time for."""
    asked = {"image": image, "socket_path": socket, "start_timeout": 60.0, **settings}
    return ContainerBackend(ContainerConfig.model_validate(asked))
