"""What the adapter for the OpenAI Agents SDK adds, the SDK's own share included."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ringfence import Command, SessionManager, open_backend
from ringfence.adapters.openai_agents import RingfenceSandboxClient
from scripts.suites.cost import Pairs


@asynccontextmanager
async def pairs() -> AsyncIterator[Pairs]:
    """Return each operation with the adapter and without it."""
    async with open_backend("bubblewrap") as backend, SessionManager(backend) as sessions:
        client = RingfenceSandboxClient(sessions)
        ours = await client.create()
        async with ours:
            (plain,) = sessions.sessions
            await plain.write_file("file", "1")
            command = Command(("sh", "-lc", "true"))
            yield {
                "exec": (lambda: ours.exec("true"), lambda: plain.exec(command)),
                "read": (lambda: ours.read(Path("file")), lambda: plain.read_file("file")),
                "write": (
                    lambda: ours.write(Path("file"), io.BytesIO(b"1")),
                    lambda: plain.write_file("file", b"1"),
                ),
                "ls": (lambda: ours.ls("."), lambda: plain.list_files(".")),
            }
        await client.delete(ours)
