"""The conformance suite on the sandboxes of sessions: a session is a sandbox like any other."""

from __future__ import annotations

import pytest

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.backends.docker import ContainerBackend
from ringfence.backends.process import ProcessBackend
from ringfence.config import ContainerConfig
from ringfence.testing import Check, Conformance

from ..own_places import own_places
from ..sessions.through import ThroughSessions

__all__ = ("own_places",)

HELD = {
    "a_leak_is_told": "a manager keeps every session, so that none is leaked",
    "a_destroyed_sandbox_is_lost_for_good": "a session gets a new one, once the loss was told",
    "a_sandbox_ends_at_its_maximum_age": "a session gets a new one, once that end was told",
}
PROCESS = Conformance(
    "process",
    lambda: ThroughSessions(ProcessBackend()),
    python="/usr/bin/python3",
    deviations=HELD,
)
BUBBLEWRAP = Conformance(
    "bubblewrap",
    lambda: ThroughSessions(BubblewrapBackend()),
    python="/usr/bin/python3",
    deviations=HELD,
)
CONTAINER = Conformance(
    "container",
    lambda: ThroughSessions(ContainerBackend(ContainerConfig(image="ringfence-test:python"))),
    python="/usr/bin/python3",
    deviations=HELD,
)


@pytest.mark.parametrize("check", PROCESS.params(hostile_mark="hostile"))
def test_sessions_on_process(check: Check) -> None:
    PROCESS.verify(check)


@pytest.mark.parametrize("check", BUBBLEWRAP.params(hostile_mark="hostile"))
def test_sessions_on_bubblewrap(check: Check) -> None:
    BUBBLEWRAP.verify(check)


# Each check makes a container or more. What a session has to do with is tried on them too.
OF_A_SESSION = ("exec", "lifecycle", "leaks", "timeouts")


@pytest.mark.container
@pytest.mark.parametrize("check", CONTAINER.params(OF_A_SESSION, hostile_mark="hostile"))
def test_sessions_on_containers(check: Check) -> None:
    CONTAINER.verify(check)
