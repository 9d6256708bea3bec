"""Operations as counters and histograms of Prometheus."""

from __future__ import annotations

from typing import Any

from ..events import Operation
from ._needs import needed

__all__ = ("MetricsObserver",)

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class MetricsObserver:
    """Counts operations and what came of them, and measures how long they took.

    Tenants and executions are no labels: there are too many of them.

    Args:
        registry: Where the metrics are; default: the global registry.

    Raises:
        MissingDependencyError: prometheus_client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:
        prometheus = needed("prometheus_client")
        where = {} if registry is None else {"registry": registry}
        self._started = prometheus.Gauge(
            "ringfence_operations_running", "Operations that go on", ["operation"], **where
        )
        self._ended = prometheus.Counter(
            "ringfence_operations",
            "Operations that have ended, by what came of them",
            ["operation", "backend", "outcome"],
            **where,
        )
        self._seconds = prometheus.Histogram(
            "ringfence_operation_seconds",
            "How long operations took",
            ["operation", "backend"],
            buckets=BUCKETS,
            **where,
        )
        self._live = prometheus.Gauge(
            "ringfence_sandboxes", "Sandboxes of sessions that are up", ["backend"], **where
        )

    def started(self, operation: Operation) -> None:
        self._started.labels(operation.name).inc()

    def ended(self, operation: Operation) -> None:
        backend = str(operation.attributes.get("backend", ""))
        self._started.labels(operation.name).dec()
        self._ended.labels(operation.name, backend, _outcome(operation)).inc()
        self._seconds.labels(operation.name, backend).observe(operation.duration_s)
        if operation.name == "sandbox.create" and operation.error is None:
            self._live.labels(backend).inc()
        elif operation.name == "sandbox.end":
            self._live.labels(backend).dec()


def _outcome(operation: Operation) -> str:
    """Return `ok`, how a command ended unless it ended by itself, or the error's code."""
    if operation.error is not None:
        return operation.error
    reason = operation.attributes.get("exit_reason", "exited")
    if reason != "exited":
        return str(reason)
    return "ok" if operation.attributes.get("exit_code", 0) == 0 else "failed"
