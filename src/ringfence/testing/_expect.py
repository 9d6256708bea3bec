"""How a check says that a rule is broken. Not `assert`: that is gone under `python -O`."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Generic, NoReturn, TypeVar

__all__ = (
    "CheckFailedError",
    "NotApplicable",
    "each_raises",
    "equal",
    "fail",
    "raising",
    "true",
)

_LONGEST = 300
_E = TypeVar("_E", bound=BaseException)


class CheckFailedError(AssertionError):
    """The backend breaks the rule; the message says how."""


class NotApplicable(Exception):  # noqa: N818 - it says nothing bad about anybody
    """The rule can't be tried here; the message says what is missing."""


def fail(message: str) -> NoReturn:
    """Say that the rule is broken."""
    raise CheckFailedError(message)


def true(condition: object, message: str) -> None:
    """Require a condition."""
    if not condition:
        fail(message)


def equal(actual: object, wanted: object, what: str) -> None:
    """Require two values to be equal."""
    if actual != wanted:
        fail(f"{what} is {_shown(actual)}, not {_shown(wanted)}")


class raising(Generic[_E]):  # noqa: N801 - reads as a function: with raising(...) as caught
    """Require the block to raise; gives a list that the error is put into."""

    def __init__(self, kind: type[_E] | tuple[type[_E], ...], what: str) -> None:
        self._kinds = kind if isinstance(kind, tuple) else (kind,)
        self._what = what
        self._caught: list[_E] = []

    def __enter__(self) -> list[_E]:
        return self._caught

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if exc is None:
            kinds = " or ".join(kind.__name__ for kind in self._kinds)
            fail(f"{self._what} raised nothing, not {kinds}")
        if not isinstance(exc, self._kinds):
            return False
        self._caught.append(exc)
        return True


async def each_raises(
    kind: type[_E] | tuple[type[_E], ...], *works: Coroutine[Any, Any, object], where: str = ""
) -> list[_E]:
    """Require each of some calls to raise, and return their errors."""
    errors: list[_E] = []
    try:
        for work in works:
            with raising(kind, f"{name_of(work)}{where}") as caught:
                await work
            errors += caught
    finally:
        for work in works:
            work.close()
    return errors


def name_of(work: Coroutine[Any, Any, object]) -> str:
    """Return the name of the method that was called."""
    return str(getattr(work, "__name__", work))


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({len(text)} characters)"
