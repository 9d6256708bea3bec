"""Operations as structured log lines."""

from __future__ import annotations

from typing import Any

from ..events import Operation
from ._needs import needed

__all__ = ("StructlogObserver",)


class StructlogObserver:
    """Logs the end of each operation at `info`, or at `warning` with an error; starts at `debug`.

    Args:
        logger: A structlog logger; default: the one named `ringfence`.

    Raises:
        MissingDependencyError: structlog is not installed.
    """

    def __init__(self, logger: Any = None) -> None:
        self._logger = logger or needed("structlog").get_logger("ringfence")

    def started(self, operation: Operation) -> None:
        name = operation.name + ".start"
        self._logger.debug(name, **operation.attributes)

    def ended(self, operation: Operation) -> None:
        name = operation.name + ".end"
        fields = operation.attributes | {"duration_s": round(operation.duration_s, 6)}
        if operation.error is None:
            self._logger.info(name, **fields)
        else:
            self._logger.warning(name, **fields, error=operation.error)
