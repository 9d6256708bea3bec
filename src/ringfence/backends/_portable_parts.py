"""What a portable command has of its own beside its process: its stdin, and its group."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import cast

__all__ = ("Stdin", "group_alive")

_SLICE = 64 * 1024
"""Bytes of stdin that are handed to the loop at once."""


class Stdin(asyncio.BaseProtocol):
    """The writing end of a command's stdin, waiting while it does not read."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._can_write.set()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def write_first(self, data: bytes) -> None:
        """Write what a pipe holds at once."""
        if data and self._transport:
            self._transport.write(data)

    async def write(self, data: bytes) -> None:
        """Write, waiting while the program does not read."""
        view = memoryview(data)
        while view and self._transport and not self._transport.is_closing():
            self._transport.write(view[:_SLICE])
            view = view[_SLICE:]
            await self._can_write.wait()

    def close(self) -> None:
        """Let the program see end of file after what has been written."""
        if self._transport:
            self._transport.close()


def group_alive(group: int) -> bool:
    """Whether a process group has a member that runs; zombies wait for whoever adopted them."""
    if sys.platform == "win32":
        return False
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return sys.platform != "linux" or any(_is_running(pid, group) for pid in os.listdir("/proc"))


def _is_running(pid: str, group: int) -> bool:
    if not pid.isdecimal():
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name is in brackets and may hold anything, brackets too.
            state, _, found, *_ = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return int(found) == group and state != b"Z"
