"""What the adapter for Harbor adds."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ringfence import shell
from scripts.suites.cost import Pairs

from .test_harbor import make


@asynccontextmanager
async def pairs() -> AsyncIterator[Pairs]:
    """Return each operation with the adapter and without it."""
    with tempfile.TemporaryDirectory() as place:
        ours = make(Path(place))
        await ours.start(force_build=False)
        plain = ours._open()
        try:
            yield {"exec": (lambda: ours.exec("true"), lambda: plain.exec(shell("true")))}
        finally:
            await ours.stop(delete=True)
