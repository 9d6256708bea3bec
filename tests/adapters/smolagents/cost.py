"""What the adapter for smolagents adds."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread

from ringfence import SandboxSpec, sync
from ringfence.adapters.smolagents import SmolagentsExecutor
from ringfence.interpreter import find_interpreter
from scripts.suites.cost import Pairs


@asynccontextmanager
async def pairs() -> AsyncIterator[Pairs]:
    """Return each operation with the adapter and without it."""
    python = find_interpreter(sys.executable)
    with (
        sync.open_backend("bubblewrap") as backend,
        backend.create(SandboxSpec(mounts=python.mounts)) as sandbox,
        SmolagentsExecutor(sandbox, python=python.path) as ours,
        sync.CodeContexts(sandbox, python=python.path) as contexts,
    ):
        plain = contexts.create_context()
        in_a_thread = anyio.to_thread.run_sync
        yield {
            "run_code": (
                lambda: in_a_thread(partial(ours, "1 + 1")),
                lambda: in_a_thread(partial(contexts.run_code, "1 + 1", context=plain)),
            ),
        }
