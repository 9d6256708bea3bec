"""Operations as spans of OpenTelemetry."""

from __future__ import annotations

from typing import Any

from ..events import Operation
from ._needs import needed

__all__ = ("TracingObserver",)


class TracingObserver:
    """Makes a span of each operation, below whatever span is current where it starts.

    Args:
        provider: A tracer provider; default: the global one.

    Raises:
        MissingDependencyError: The API of OpenTelemetry is not installed.
    """

    def __init__(self, provider: Any = None) -> None:
        trace = needed("opentelemetry.trace")
        self._tracer = trace.get_tracer("ringfence", tracer_provider=provider)
        self._failed = trace.Status(trace.StatusCode.ERROR)

    def started(self, operation: Operation) -> None:
        attributes = _named(operation)
        operation.notes[self] = self._tracer.start_span(operation.name, attributes=attributes)

    def ended(self, operation: Operation) -> None:
        span: Any = operation.notes.pop(self)
        span.set_attributes(_named(operation))
        if operation.error is not None:
            span.set_attribute("error.type", operation.error)
            span.set_status(self._failed)
        span.end()


def _named(operation: Operation) -> dict[str, Any]:
    return {f"ringfence.{name}": value for name, value in operation.attributes.items()}
