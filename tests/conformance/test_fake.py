"""The part of the conformance suite that needs no program, on the fake backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringfence.backends.fake import FakeBackend
from ringfence.testing import Check, Conformance

SUITE = Conformance(
    "fake",
    lambda: FakeBackend(capabilities=replace(FakeBackend().capabilities, arbitrary_programs=False)),
    deviations={"a_leak_is_told": "it keeps every sandbox that it made, so that none is leaked"},
)


@pytest.mark.parametrize("check", SUITE.params(applicable_to=SUITE.factory().capabilities))
def test_fake(check: Check) -> None:
    SUITE.verify(check)
