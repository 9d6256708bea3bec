"""What goes out to the host. Runs inside the sandbox, with `_relay`."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from typing import Any


class Outbox:
    """Messages on their way to stdout, which is never waited for, so that the kernel goes on.

    Args:
        watch: Is told whether there is anything that waits until stdout takes it.
    """

    def __init__(self, watch: Callable[[bool], None]) -> None:
        self._watch = watch
        self._unsent: deque[bytes] = deque()
        os.set_blocking(1, False)

    def say(self, message: dict[str, Any], parts: dict[str, bytes] | None = None) -> None:
        """Send a message, or as much of it as the host takes now."""
        if parts is not None:
            message["parts"] = [[name, len(data)] for name, data in parts.items()]
        if not self._unsent:
            self._watch(True)
        self._unsent.append(json.dumps(message).encode() + b"\n" + b"".join((parts or {}).values()))
        self.write()

    def write(self) -> None:
        """Write what the host takes now."""
        while self._unsent:
            first = self._unsent[0]
            try:
                written = os.write(1, first)
            except BlockingIOError:
                return
            if written < len(first):
                self._unsent[0] = first[written:]
                continue
            self._unsent.popleft()
            if not self._unsent:
                self._watch(False)
