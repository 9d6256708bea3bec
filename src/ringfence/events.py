"""What is told to observers: the start and the end of each operation on a sandbox.

Operations are `sandbox.create`, `sandbox.exec`, `sandbox.file`, `sandbox.export`, `sandbox.end`
and `sandbox.reap`. They carry names, sizes, times and codes; never a command's arguments or
output, a file's content, or the value of a variable. Backends know nothing of them: whoever wraps
a sandbox tells.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from .errors import SandboxError

__all__ = ("Events", "Observer", "Operation", "Value")

_log = logging.getLogger(__name__)

Value: TypeAlias = str | int | float | bool


class Operation:
    """One operation, from its start to its end.

    Attributes:
        name: Such as `sandbox.exec`.
        attributes: What is known of it; at its end there is more.
        duration_s: Seconds that it took; 0 until its end.
        error: The code of the error that it ended with, or None.
        notes: A place for each observer to keep what it needs at the end.
    """

    __slots__ = ("_began", "attributes", "duration_s", "error", "name", "notes")

    def __init__(self, name: str, attributes: dict[str, Value]) -> None:
        self.name = name
        self.attributes = attributes
        self.duration_s = 0.0
        self.error: str | None = None
        self.notes: dict[object, object] = {}
        self._began = time.monotonic()

    def finish(self) -> None:
        """Take the time."""
        self.duration_s = time.monotonic() - self._began


class Observer(Protocol):
    """Who is told. Its methods must not block; what they raise is logged and goes no further."""

    def started(self, operation: Operation) -> None:
        """An operation begins."""

    def ended(self, operation: Operation) -> None:
        """It has ended, well or not."""


class Events:
    """Tells its observers; without any it costs next to nothing.

    Args:
        observers: Who is told, in this order.

    Attributes:
        are_told: Whether there is anybody to tell.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self.are_told = bool(self._observers)

    def begin(self, name: str, attributes: dict[str, Value]) -> Operation | None:
        """Tell that an operation starts; None where nobody wants to know."""
        if not self._observers:
            return None
        operation = Operation(name, attributes)
        for observer in self._observers:
            _tell(observer.started, operation)
        return operation

    def end(self, operation: Operation | None, error: BaseException | None = None) -> None:
        """Tell that an operation has ended."""
        if operation is None:
            return
        operation.finish()
        if error is not None:
            operation.error = _code(error)
        for observer in self._observers:
            _tell(observer.ended, operation)

    @contextmanager
    def operation(self, name: str, attributes: dict[str, Value]) -> Iterator[dict[str, Value]]:
        """Tell of a block; what is put into the dictionary is told at its end."""
        operation = self.begin(name, attributes)
        try:
            yield attributes
        except BaseException as error:
            self.end(operation, error)
            raise
        self.end(operation)


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, SandboxError) else type(error).__name__


class _Told(Protocol):
    def __call__(self, operation: Operation, /) -> None: ...


def _tell(function: _Told, operation: Operation) -> None:
    try:
        function(operation)
    except Exception:  # an observer's fault is not the sandbox's  # noqa: BLE001
        _log.exception("an observer of %s failed", operation.name)
