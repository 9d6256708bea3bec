"""A file written into a live sandbox and read back, against the same on the host's /tmp."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from ringfence.backend import Sandbox
from ringfence.backends.bubblewrap import BubblewrapBackend

from ..hardening import check_sandbox
from ..measure import TOTAL, Side, Times, alternate, check
from ..report import Line, compare
from ..settings import Settings

__all__ = ("run",)

_SIZES = {"1 kB": 1000, "20 MiB": 20 << 20}
_HOST = "the host's own file system"


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure a small and a large file."""
    lines = []
    async with BubblewrapBackend() as backend, await backend.create() as sandbox:
        await check_sandbox(sandbox)
        with tempfile.TemporaryDirectory() as scratch:
            for name, size in _SIZES.items():
                data = os.urandom(size)
                rounds = settings.rounds(100 if size < 1 << 20 else 10)
                path = Path(scratch, "file")
                taken = await alternate(
                    {"ours": sandbox_side(sandbox, data), _HOST: host_side(path, data)}, rounds
                )
                lines.append(compare(f"write_file() and read_file() of {name}", taken))
    return lines


def sandbox_side(sandbox: Sandbox, data: bytes) -> Side:
    async def side() -> Times:
        began = time.perf_counter()
        await sandbox.write_file("file", data)
        written = time.perf_counter()
        found = await sandbox.read_file("file")
        done = time.perf_counter()
        check(found == data, "what was read is not what was written")
        return {TOTAL: done - began, "write": written - began, "read": done - written}

    return side


def host_side(path: Path, data: bytes) -> Side:
    async def side() -> Times:
        began = time.perf_counter()
        path.write_bytes(data)
        found = path.read_bytes()
        took = time.perf_counter() - began
        check(found == data, "what was read is not what was written")
        return {TOTAL: took}

    return side
