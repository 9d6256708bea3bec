"""What the adapter for deepagents adds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ringfence import open_backend, shell, sync
from ringfence.adapters.deepagents import RingfenceBackend
from scripts.suites.cost import Call, Pairs


def blocking(function: Callable[..., Any], *args: Any) -> Call:
    async def call() -> Any:
        return function(*args)

    return call


@asynccontextmanager
async def pairs() -> AsyncIterator[Pairs]:
    """Return each operation with the adapter and without it."""
    async with open_backend("bubblewrap") as backend, await backend.create() as plain:
        ours = RingfenceBackend(plain)
        data = [("/workspace/file", b"1")]
        await ours.aupload_files(data)
        with sync.open_backend("bubblewrap") as other, other.create() as plain_sync:
            ours_sync = RingfenceBackend(plain_sync)
            yield {
                "aexecute": (lambda: ours.aexecute("true"), lambda: plain.exec(shell("true"))),
                "aupload_files": (
                    lambda: ours.aupload_files(data),
                    lambda: plain.write_file(*data[0]),
                ),
                "adownload_files": (
                    lambda: ours.adownload_files(["/workspace/file"]),
                    lambda: plain.read_file("/workspace/file"),
                ),
                "execute, blocking": (
                    blocking(ours_sync.execute, "true"),
                    blocking(plain_sync.exec, shell("true")),
                ),
            }
