"""A socket of this machine by which a container's warden reaches us, past the engine.

Over the engine's attach, each byte is copied by the container's shim and by the daemon: half of a
command's time, and most of a large file's. The socket is shown to one container alone. Its warden
connects before any program runs there, and then the socket is taken away: what stays is a
connection that only the two of us hold.

Where the warden can't connect (a kernel of its own, a policy of the host's) it takes the streams
that the engine gave it.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from typing import Self

import anyio

from ..warden.stream import SocketStream

__all__ = ("WardenSocket",)

_NAME = "socket"
_ALL = 0o666  # whatever uid the engine maps the warden's to; the directory keeps others away
_SEND_BYTES = 1 << 20


class WardenSocket:
    """A socket that listens for one warden; a context manager that closes it.

    Args:
        directory: Where it is to lie; it is made for it, and removed with it.

    Attributes:
        path: Its name, for the engine.

    Raises:
        OSError: It can't be made.
    """

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{_NAME}"
        self._directory = directory
        os.mkdir(directory, 0o700)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            _bind(self._socket, directory)
            os.chmod(self.path, _ALL)
            self._socket.listen(1)
        except BaseException:
            self.close()
            raise

    async def accept(self, on_end: Callable[[], Awaitable[None]]) -> SocketStream:
        """Wait for the warden and return the stream to it.

        Args:
            on_end: Awaited when the other end is gone, before anybody is told.
        """
        while True:
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            else:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
                return _WardenStream(accepted, on_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Listen no longer, and leave nothing. Safe to call again."""
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class _WardenStream(SocketStream):
    def __init__(self, accepted: socket.socket, on_end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(accepted)
        self._on_end = on_end

    async def explain(self) -> None:
        await self._on_end()


def _bind(listening: socket.socket, directory: str) -> None:
    """Bind it in a directory whose path may be longer than a socket's name can be."""
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listening.bind(f"/proc/self/fd/{place}/{_NAME}")
    finally:
        os.close(place)
