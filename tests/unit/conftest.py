"""What the unit tests run with: asyncio, unless a module asks for trio too."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
