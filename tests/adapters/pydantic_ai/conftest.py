"""What the tests of workspaces run in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ringfence import SessionManager, open_backend

from ..backends import BACKENDS, settings


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=BACKENDS)
async def sessions(request: pytest.FixtureRequest) -> AsyncIterator[SessionManager]:
    async with open_backend(settings(request.param)) as opened, SessionManager(opened) as found:
        yield found
