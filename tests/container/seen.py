"""An engine as it looks from outside: what of this run's is in it."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from ringfence import inventory
from scripts.services.engine import Engine
from scripts.services.steps import ServiceError

LABEL = "ringfence."


@dataclass(frozen=True)
class Left:
    """Names of what bears the label of a store.

    Attributes:
        containers, volumes, networks: Their names.
    """

    containers: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()


class Seen:
    """Looks into an engine, by other means than what is tested.

    Args:
        socket: The path of its socket.
    """

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self._engine = Engine(f"unix://{socket}")

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Make a request; None if the answer is 404."""
        data = None if body is None else json.dumps(body).encode()
        pairs = list(query.items())
        return self._engine.call(method, path, query=pairs, body=data, kind="application/json")

    def left(self, store: str | None = None) -> Left:
        """Return what bears the label of a store; default: this run's own."""
        label = f"{LABEL}store={store or inventory.store_id()}"
        filters = json.dumps({"label": [label]})
        containers = self.call("GET", "/containers/json", all="1", filters=filters)
        volumes = self.call("GET", "/volumes", filters=filters)["Volumes"] or ()
        networks = self.call("GET", "/networks", filters=filters)
        return Left(
            # One that is being removed may have lost its name already.
            tuple(sorted((item["Names"] or [item["Id"]])[0].lstrip("/") for item in containers)),
            tuple(sorted(item["Name"] for item in volumes)),
            tuple(sorted(item["Name"] for item in networks)),
        )

    def nothing_left(self, but: Left | None = None, seconds: float = 30.0) -> None:
        """Fail if more than this is left once some time to go has passed."""
        deadline = time.monotonic() + seconds
        while (found := self.left()) != (but or Left()):
            assert time.monotonic() < deadline, f"left in the engine: {found}"
            time.sleep(0.05)

    async def until_nothing_left(self, but: Left | None = None, seconds: float = 30.0) -> None:
        """As `nothing_left`, beside what goes on in this event loop."""
        await anyio.to_thread.run_sync(self.nothing_left, but, seconds)

    def inspect(self, name: str) -> Any:
        """Return what the engine says of a container, or None if there is none."""
        return self.call("GET", f"/containers/{name}/json")

    def do(self, name: str, action: str) -> None:
        """Do something to a container: `kill`, `pause`, `unpause`."""
        self.call("POST", f"/containers/{name}/{action}")

    def remove(self, name: str) -> None:
        """Remove a container by force."""
        self.call("DELETE", f"/containers/{name}", force="1")

    def remove_quietly(self, name: str) -> None:
        """As `remove`, where others may be at it too."""
        with contextlib.suppress(ServiceError):
            self.remove(name)
