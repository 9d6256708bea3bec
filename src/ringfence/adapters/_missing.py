"""What an adapter says where its framework is not installed."""

from __future__ import annotations

from ..errors import MissingDependencyError

__all__ = ("missing",)


def missing(extra: str, error: ModuleNotFoundError) -> MissingDependencyError:
    """Return the error that names the extra which brings what could not be imported."""
    return MissingDependencyError(
        f"the adapter for {extra} needs {error.name}, which is not installed",
        hint=f"pip install 'ringfence[{extra}]'",
    )
