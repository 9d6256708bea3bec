"""What the tests of the MCP server run in."""

from __future__ import annotations

import pytest

from ..own_places import own_places

__all__ = ("own_places",)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
