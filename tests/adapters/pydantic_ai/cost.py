"""What the adapter for Pydantic AI adds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ringfence import SessionManager, open_backend
from ringfence.adapters.pydantic_ai import RingfenceWorkspace
from scripts.suites.cost import Pairs


@asynccontextmanager
async def pairs() -> AsyncIterator[Pairs]:
    """Return each operation with the adapter and without it."""
    async with open_backend("bubblewrap") as backend, SessionManager(backend) as sessions:
        ours, plain = RingfenceWorkspace(sessions), sessions.session("plain")
        for write in (ours.write_bytes, plain.write_file):
            await write("file", b"1")
        yield {
            "run": (lambda: ours.run(["true"]), lambda: plain.exec("true")),
            "read_bytes": (lambda: ours.read_bytes("file"), lambda: plain.read_file("file")),
            "write_bytes": (
                lambda: ours.write_bytes("file", b"1"),
                lambda: plain.write_file("file", b"1"),
            ),
            "list_dir": (lambda: ours.list_dir("."), lambda: plain.list_files(".")),
        }
