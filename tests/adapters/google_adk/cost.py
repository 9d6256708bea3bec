"""What the adapters for Google ADK add."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ringfence import open_backend, shell
from ringfence.adapters.google_adk import AdkEnvironment
from scripts.suites.cost import Pairs


@asynccontextmanager
async def pairs() -> AsyncIterator[Pairs]:
    """Return each operation with the adapter and without it."""
    async with open_backend("bubblewrap") as backend, await backend.create() as plain:
        ours = AdkEnvironment(plain)
        await ours.initialize()
        await plain.write_file("file", "1")
        yield {
            "execute": (lambda: ours.execute("true"), lambda: plain.exec(shell("true"))),
            "read_file": (lambda: ours.read_file("file"), lambda: plain.read_file("file")),
            "write_file": (
                lambda: ours.write_file("file", b"1"),
                lambda: plain.write_file("file", b"1"),
            ),
        }
