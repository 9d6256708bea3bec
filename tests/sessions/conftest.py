"""What the tests of sessions run in."""

from __future__ import annotations

import pytest

from ..own_places import own_places
from ..second_net import second_net

__all__ = ("own_places", "second_net")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
