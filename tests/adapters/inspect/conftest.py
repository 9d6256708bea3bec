"""The suite runs on one sandbox of each backend, as Inspect itself makes it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from inspect_ai.util import SandboxEnvironment

from ringfence.adapters.inspect import RingfenceSandboxEnvironment
from ringfence.config import BackendConfig

from ..backends import BACKENDS, settings

ROOM = {"memory_bytes": 1 << 30, "workspace_bytes": 256 << 20}
"""The checks read and write files of 50 MiB, and a container's workspace is memory."""

Environment = RingfenceSandboxEnvironment


@pytest_asyncio.fixture(loop_scope="session", scope="session", params=BACKENDS)
async def sample(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    """The environment of one sample; its life goes through Inspect's own four steps."""
    config = BackendConfig.parse(settings(request.param) | ROOM)
    await Environment.task_init("suite", config)
    environments = await Environment.sample_init("suite", config, {})
    yield environments["default"]
    await Environment.sample_cleanup("suite", config, environments, interrupted=False)
    await Environment.task_cleanup("suite", config, cleanup=True)
