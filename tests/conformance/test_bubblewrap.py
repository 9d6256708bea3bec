"""The conformance suite on the bubblewrap backend."""

from __future__ import annotations

import pytest

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.testing import Check, Conformance

SUITE = Conformance("bubblewrap", BubblewrapBackend, python="/usr/bin/python3")


@pytest.mark.parametrize("check", SUITE.params(hostile_mark="hostile"))
def test_bubblewrap(check: Check) -> None:
    SUITE.verify(check)
