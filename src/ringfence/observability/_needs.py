"""What is imported when an observer is made, and not before."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import MissingDependencyError

__all__ = ("needed",)


def needed(module: str) -> Any:
    """Import a module of the extra.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"this observer needs the package {(error.name or module).partition('.')[0]!r}",
            hint="pip install 'ringfence[observability]'",
        ) from error
