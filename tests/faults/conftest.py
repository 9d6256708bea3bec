"""What the tests of faults run in, and the backends that they are about."""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio
import pytest

from ringfence.backend import Backend
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.process import ProcessBackend
from ringfence.config import BubblewrapConfig, ProcessConfig
from ringfence.testing import REQUIRED_VARIABLE

from ..own_places import own_places
from ..second_net import second_net

__all__ = ("own_places", "second_net")

Factory = Callable[[], Backend]

BACKENDS: dict[str, Factory] = {
    "process": lambda: ProcessBackend(ProcessConfig(kill_grace=0.05)),
    "bubblewrap": lambda: BubblewrapBackend(BubblewrapConfig(spares=1, kill_grace=0.05)),
}


@pytest.fixture(params=BACKENDS)
def factory(request: pytest.FixtureRequest) -> Factory:
    """Each of the two backends with a warden that we start ourselves."""
    return usable(request.param)


@pytest.fixture
def jails() -> Factory:
    """The backend with PID namespaces."""
    return usable("bubblewrap")


def usable(name: str) -> Factory:
    """Return a backend's factory; one that must run here and can't fails the test."""
    probe = anyio.run(BACKENDS[name]().probe)
    required = os.environ.get(REQUIRED_VARIABLE)
    if not probe.ok:
        assert required is not None, probe.reason
        assert name not in required.split(","), probe.reason
        pytest.skip(f"{name} can't run here: {probe.reason}")
    return BACKENDS[name]
