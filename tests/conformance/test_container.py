"""The conformance suite on containers: on a busybox alone, with a Python for the attacks, and with
each command as an exec of the engine's.
"""

from __future__ import annotations

import os

import pytest

from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.testing import Check, Conformance

MINIMAL = Conformance(
    "container", lambda: ContainerBackend(ContainerConfig(image="ringfence-test:minimal"))
)
WITH_PYTHON = Conformance(
    "container",
    lambda: ContainerBackend(ContainerConfig(image="ringfence-test:python")),
    python="/usr/bin/python3",
)
BY_EXEC = Conformance(
    "container",
    lambda: ContainerBackend(ContainerConfig(image="ringfence-test:python", transport="exec")),
    python="/usr/bin/python3",
    patience=4,  # a command is an exec of the engine's, and some checks run hundreds
)

# Each check makes a container or more. What an image can have to do with is tried on both, and by
# exec what goes another way then. RINGFENCE_TEST_CONFORMANCE=whole tries everything.
WHOLE = os.environ.get("RINGFENCE_TEST_CONFORMANCE") == "whole"
OF_THE_IMAGE = () if WHOLE else ("exec", "stdin", "output", "files", "leftovers")
OF_THE_TRANSPORT = () if WHOLE else ("exec", "stdin", "output", "timeouts", "files", "leftovers")

pytestmark = pytest.mark.container


@pytest.mark.parametrize("check", MINIMAL.params(OF_THE_IMAGE, hostile_mark="hostile"))
def test_container(check: Check) -> None:
    MINIMAL.verify(check)


@pytest.mark.parametrize("check", WITH_PYTHON.params(hostile_mark="hostile"))
def test_container_with_python(check: Check) -> None:
    WITH_PYTHON.verify(check)


@pytest.mark.parametrize("check", BY_EXEC.params(OF_THE_TRANSPORT, hostile_mark="hostile"))
def test_container_by_exec(check: Check) -> None:
    BY_EXEC.verify(check)
