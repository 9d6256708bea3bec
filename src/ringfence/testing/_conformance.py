"""The suite as tests of pytest: one for each check, deviations marked."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import anyio

from ringfence.backend import Backend
from ringfence.errors import SandboxError
from ringfence.models import Capabilities, Probe

from ._expect import CheckFailedError, NotApplicable
from ._model import Check
from ._runner import chosen, perform
from ._table import CHECKS

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

__all__ = ("FAILURES", "REQUIRED_VARIABLE", "Conformance")

FAILURES = (CheckFailedError, SandboxError, ExceptionGroup)
"""What a known deviation may fail with. Anything else is a fault nobody knows of."""

REQUIRED_VARIABLE = "RINGFENCE_REQUIRE_BACKENDS"
"""Names the backends that must run here, with commas; without it, all of them must."""


class Conformance:
    """The checks for one backend, as tests.

    A module of tests says::

        SUITE = Conformance("mine", lambda: MyBackend(), deviations={"a_check": "the reason"})

        @pytest.mark.parametrize("check", SUITE.params())
        def test_mine(check):
            SUITE.verify(check)

    A check that the backend's capabilities rule out is skipped with the capability as reason. A
    backend that can't run here fails, unless `RINGFENCE_REQUIRE_BACKENDS` names others only.

    Args:
        name: What the backend is called in `RINGFENCE_REQUIRE_BACKENDS`.
        factory: Makes the backend, not yet opened.
        python: Path of a Python 3 inside the sandboxes, for the checks that make system calls.
        deviations: Checks that the backend is known to fail, and why. One that passes all the
            same, or does not apply, is a failure: the list must stay true.
        beyond: Checks to hold the backend to although its capabilities do not promise them.
        patience: How many times longer than others a check may take, with each of its steps: some
            run hundreds of commands, and there are backends on which each of them is slow.

    Raises:
        ValueError: There is no check of that name.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], Backend],
        *,
        python: str | None = None,
        deviations: Mapping[str, str] | None = None,
        beyond: Collection[str] = (),
        patience: float = 1.0,
    ) -> None:
        self.name = name
        self.factory = factory
        self.python = python
        self.deviations = dict(deviations or {})
        self.beyond = frozenset(beyond)
        self.patience = patience
        if unknown := {*self.deviations, *self.beyond} - {check.name for check in CHECKS}:
            raise ValueError(f"no such check: {', '.join(sorted(unknown))}")

    def params(
        self,
        only: Collection[str] = (),
        *,
        hostile_mark: str | None = None,
        applicable_to: Capabilities | None = None,
    ) -> list[ParameterSet]:
        """Return the checks for `pytest.mark.parametrize`.

        Args:
            only: Names or topics of the checks to return; default: all.
            hostile_mark: A marker to put on those that attack.
            applicable_to: Leave out what such capabilities rule out, instead of skipping it.

        Raises:
            ValueError: `only` names a check that there is not.
        """
        import pytest

        params = []
        for check in chosen(only):
            if applicable_to is not None and check.missing(applicable_to):
                continue
            marks = [pytest.mark.timeout(check.timeout * self.patience + 30)]
            if check.hostile and hostile_mark:
                marks.append(getattr(pytest.mark, hostile_mark))
            if reason := self.deviations.get(check.name):
                marks.append(pytest.mark.xfail(reason=reason, strict=True, raises=FAILURES))
            params.append(pytest.param(check, id=check.name, marks=marks))
        return params

    def verify(self, check: Check) -> None:
        """Run one check; raises if the backend breaks it, skips if it does not apply."""
        import pytest

        try:
            anyio.run(self._verify, check)
        except NotApplicable as reason:
            if check.name in self.deviations:
                pytest.fail(f"the deviation {check.name} does not apply: {reason}")
            pytest.skip(f"{self.name}: {reason}")

    async def _verify(self, check: Check) -> None:
        if not self._is_required():
            probe: Probe = await self.factory().probe()
            if not probe.ok:
                raise NotApplicable(f"it can't run here: {probe.reason}")
        beyond = check.name in self.beyond
        await perform(
            self.factory, check, python=self.python, beyond=beyond, patience=self.patience
        )

    def _is_required(self) -> bool:
        wanted = os.environ.get(REQUIRED_VARIABLE)
        return wanted is None or self.name in {name.strip() for name in wanted.split(",")}
