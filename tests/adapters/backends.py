"""The backends that the frameworks' suites run on, both required: one that is missing fails."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.services.engine import Engine

IMAGE = "ringfence-test:python"

BACKENDS = ("bubblewrap", "container")

on_each_backend = pytest.mark.parametrize("backend", BACKENDS)


def settings(backend: str) -> dict[str, Any]:
    """Return the settings of a backend for the tests, as `open_backend` takes them."""
    if backend != "container":
        return {"backend": backend}
    address = Engine().address
    assert Engine().is_ready(), f"no engine at {address}: make services"
    return {
        "backend": "container",
        "image": IMAGE,
        "socket_path": address.removeprefix("unix://"),
    }
