"""Runs checks on a backend."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack

import anyio

from ringfence.backend import Backend

from ._context import Context
from ._expect import CheckFailedError, NotApplicable
from ._model import Check, Report
from ._table import CHECKS

__all__ = ("chosen", "perform", "run")


def chosen(only: Collection[str]) -> list[Check]:
    """Return the checks of these names and topics; all, if there is none.

    Raises:
        ValueError: There is no check or topic of that name.
    """
    wanted = set(only)
    if unknown := wanted - {check.name for check in CHECKS} - {check.topic for check in CHECKS}:
        raise ValueError(f"no such check or topic: {', '.join(sorted(unknown))}")
    return [check for check in CHECKS if not wanted or wanted & {check.name, check.topic}]


async def run(
    backend_factory: Callable[[], Backend],
    only: Collection[str] | None = None,
    *,
    python: str | None = None,
) -> Report:
    """Run the suite on a backend and say what it keeps and what it breaks.

    Args:
        backend_factory: Makes the backend, not yet opened; called for each check.
        only: Names or topics of the checks to run; default: all.
        python: Path of a Python 3 inside the sandboxes. Without one, the checks that make
            system calls are not applicable.

    Raises:
        ValueError: `only` names a check that there is not.
        BackendUnavailableError: The backend can't run on this machine.
    """
    checks = chosen(only or ())
    async with backend_factory():
        pass  # one that can't run is one error, not a hundred failures
    report = Report()
    for check in checks:
        try:
            await perform(backend_factory, check, python=python)
        except NotApplicable as reason:
            report.not_applicable[check.name] = str(reason)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises is its failure
            report.failed[check.name] = _reason(error)
        else:
            report.passed.append(check.name)
    return report


async def perform(
    backend_factory: Callable[[], Backend],
    check: Check,
    *,
    python: str | None = None,
    beyond: bool = False,
    patience: float = 1.0,
) -> None:
    """Run one check in a fresh sandbox of a fresh backend.

    Args:
        backend_factory: Makes the backend, not yet opened.
        check: What to try.
        python: Path of a Python 3 inside the sandboxes.
        beyond: Hold the backend to it although its capabilities do not promise it.
        patience: How many times longer than others the check may take, with each of its steps.

    Raises:
        NotApplicable: The backend's capabilities rule it out; the message says which.
        CheckFailedError: The rule is broken.
        Exception: Whatever else the backend raised, which breaks the rule as well.
    """
    finished = False
    seconds = check.timeout * patience
    with anyio.move_on_after(seconds):
        async with AsyncExitStack() as stack:
            backend = await stack.enter_async_context(backend_factory())
            missing = check.missing(backend.capabilities)
            if missing and not beyond:
                raise NotApplicable(", ".join(missing))
            context = Context(backend, backend_factory, python, stack, patience)
            await context.prepare()
            await check.function(context)
        finished = True
    if not finished:
        raise CheckFailedError(f"it did not end within {seconds:g} s")


def _reason(error: Exception) -> str:
    if isinstance(error, CheckFailedError):
        return str(error)
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (at {where.filename}:{where.lineno})"
