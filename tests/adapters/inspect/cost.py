"""What the adapter for Inspect adds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ringfence import open_backend
from ringfence.adapters.inspect import RingfenceSandboxEnvironment
from scripts.suites.cost import Pairs


@asynccontextmanager
async def pairs() -> AsyncIterator[Pairs]:
    """Return each operation with the adapter and without it."""
    async with open_backend("bubblewrap") as backend, await backend.create() as plain:
        ours = RingfenceSandboxEnvironment(plain)
        await plain.write_file("file", "1")
        yield {
            "exec": (lambda: ours.exec(["true"]), lambda: plain.exec("true")),
            "read_file": (lambda: ours.read_file("file"), lambda: plain.read_file("file")),
            "write_file": (
                lambda: ours.write_file("file", "1"),
                lambda: plain.write_file("file", "1"),
            ),
        }
