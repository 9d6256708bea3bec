"""The conformance suite on the process backend where it has no warden."""

from __future__ import annotations

import pytest

from ringfence.backends.process import ProcessBackend
from ringfence.config import ProcessConfig
from ringfence.testing import Check, Conformance

SUITE = Conformance(
    "process",
    lambda: ProcessBackend(ProcessConfig(portable=True)),
    python="/usr/bin/python3",
)


@pytest.mark.parametrize("check", SUITE.params(hostile_mark="hostile"))
def test_portable(check: Check) -> None:
    SUITE.verify(check)
