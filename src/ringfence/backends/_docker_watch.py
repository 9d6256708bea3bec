"""One stream of events for all containers of a backend: who has died, was removed or paused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from ..errors import BackendUnreachableError
from ._docker_box import Box
from ._docker_engine import Engine, RefusedError

__all__ = ("Watch",)

_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0


class Watch:
    """Tells boxes what happens to their containers.

    Args:
        engine: The engine.
        label: Which containers, as `name=value`.
        boxes: The boxes by name; those that are not in it are somebody else's.
    """

    def __init__(self, engine: Engine, label: str, boxes: Mapping[str, Box]) -> None:
        self._engine = engine
        self._label = label
        self._boxes = boxes
        self._task: asyncio.Task[None] | None = None
        self._since = 0.0

    def start(self, since: float) -> None:
        """Begin, with what has happened since a moment by the engine's clock."""
        self._since = since
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        delay = _FIRST_DELAY
        while True:
            began = time.monotonic()
            try:
                async for event in self._engine.events(self._label, self._since):
                    self._take(event)
            except (RefusedError, BackendUnreachableError):
                pass  # the engine may come back
            delay = _FIRST_DELAY if time.monotonic() - began > _LONGEST_DELAY else delay * 2
            await asyncio.sleep(min(delay, _LONGEST_DELAY))
            await self._look()

    def _take(self, event: dict[str, Any]) -> None:
        self._since = int(event.get("timeNano", 0)) / 1e9 or self._since
        name = event.get("Actor", {}).get("Attributes", {}).get("name", "")
        box = self._boxes.get(name)
        if box is not None:
            box.fate.take_event(event)

    async def _look(self) -> None:
        """After a gap: who is not there any more has died in it."""
        if not self._boxes:
            return
        try:
            running = await self._engine.running(self._label)
        except (RefusedError, BackendUnreachableError):
            return
        for name, box in list(self._boxes.items()):
            if box.started and name not in running:
                box.fate.died("killed while the engine was away")

    async def aclose(self) -> None:
        """Stop. Safe to call again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
