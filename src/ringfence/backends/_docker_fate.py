"""What is heard of one container: that it was killed, removed, paused, or ran out of memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from ..errors import BackendUnreachableError, SandboxLostError
from ._docker_engine import Engine, RefusedError

__all__ = ("UNREACHABLE", "Fate")

UNREACHABLE = "unreachable"
"""What stands for a container's state where its engine does not answer."""

_KILLED = 137
_PAUSE_SECONDS = 2.0


class Fate:
    """What has become of a container, as far as its engine has told.

    Args:
        engine: The engine.
        name: The container's name.
        tell: Called with the loss, for those who wait for something in it.
        causes: What the container's own exit codes mean; `ended` where nothing is said.

    Attributes:
        dead: Set once it has ended.
        gone: Set once the engine has removed it.
        cause: Why it is lost, once that is known.
        out_of_memory: Whether something in it was killed for its memory.
        is_paused: Whether it was found paused for longer than does no harm.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        tell: Callable[[SandboxLostError], object],
        causes: Mapping[int, str],
    ) -> None:
        self.dead = asyncio.Event()
        self.gone = asyncio.Event()
        self.cause = ""
        self.out_of_memory = False
        self.is_paused = False
        self._engine = engine
        self._name = name
        self._tell = tell
        self._causes = {_KILLED: "killed", **causes}

    def take_event(self, event: Mapping[str, Any]) -> None:
        """Take what the engine says has happened to it."""
        action = event.get("Action", event.get("status"))
        if action == "oom":
            self.out_of_memory = True
        elif action in ("die", "died"):
            self.died(self._why(event))
        elif action in ("destroy", "remove"):  # the second is Podman's word
            self.died("removed")
            self.gone.set()
        elif action == "pause":
            self._engine.tasks.spawn(self._look_after_pause())

    def _why(self, event: Mapping[str, Any]) -> str:
        said = str(event.get("Actor", {}).get("Attributes", {}).get("exitCode", ""))
        known = self._causes.get(int(said)) if said.isdecimal() else None
        return known or f"ended (exit code {said})"

    def died(self, cause: str) -> None:
        """Note that it has ended, and tell everybody who waits for it."""
        if self.dead.is_set():
            return
        if self.out_of_memory and cause == "killed":
            cause = "out of memory"
        self.cause = cause
        self.dead.set()
        self._tell(SandboxLostError(f"its container is gone: {cause}", cause=cause))

    async def _look_after_pause(self) -> None:
        """A short pause does no harm; one that lasts is a loss."""
        await asyncio.sleep(_PAUSE_SECONDS)
        if await self.state() == "paused":
            self.is_paused = True
            self._tell(SandboxLostError("its container was paused", cause="paused"))

    async def state(self) -> str:
        """Return what the engine says of its state now; empty if there is none."""
        try:
            found = await self._engine.call("a state", self._engine.container(self._name).show())
        except RefusedError:
            return ""
        except BackendUnreachableError:
            return UNREACHABLE
        return str(found.get("State", {}).get("Status", ""))

    async def heard_within(self, seconds: float) -> bool:
        """Return whether it has ended, of which the engine tells a moment later."""
        with anyio.move_on_after(seconds):
            await self.dead.wait()
        return self.dead.is_set()
