"""A socket of this machine by which a container's warden reaches us, past the engine.

Over the engine's attach, each byte is copied by the container's shim and by the daemon: half of a
command's time, and most of a large file's. The socket is shown to one container alone. Its warden
connects before any program runs there, and then the socket is taken away: what stays is a
connection that only the two of us hold.

Where the warden can't connect (a kernel of its own, a policy of the host's) it takes the streams
that the engine gave it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from typing import Self

import anyio

from ..errors import CreateError
from ..warden.stream import ByteStream, SocketStream
from ._docker_attach import ContainerStream

__all__ = ("WardenSocket", "taken_stream")

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
        CreateError: It can't be made.
    """

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{_NAME}"
        self._directory = directory
        try:
            os.mkdir(directory, 0o700)
            self._socket = _listening(directory)
        except OSError as error:
            raise _failed(error) from error

    async def accept(self, on_end: Callable[[], Awaitable[None]]) -> SocketStream:
        """Wait for the warden and return the stream to it.

        Args:
            on_end: Awaited when the other end is gone, before anybody is told.

        Raises:
            CreateError: It has called, and can't be answered.
        """
        while True:
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise _failed(error) from error
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


async def taken_stream(
    listening: WardenSocket, attached: ContainerStream, on_end: Callable[[], Awaitable[None]]
) -> ByteStream:
    """Return the stream that a warden has taken: what is first heard of it tells.

    Args:
        listening: Where it may call.
        attached: What the engine gave it.
        on_end: As for `WardenSocket.accept`.

    Raises:
        CreateError: It has called, and can't be answered.
    """
    calling = asyncio.ensure_future(listening.accept(on_end))
    watching = asyncio.ensure_future(attached.wait())
    taken: ByteStream | None = None
    try:
        await asyncio.wait((calling, watching), return_when=asyncio.FIRST_COMPLETED)
        taken = calling.result() if calling.done() else attached
        return taken
    finally:
        calling.cancel()
        watching.cancel()
        await asyncio.wait((calling, watching))
        if taken is None and not calling.cancelled() and not calling.exception():
            calling.result().close()


def _listening(directory: str) -> socket.socket:
    """Return a socket that listens in a directory, or leave nothing of that."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        # By a short name: a path may be longer than a socket's name can be.
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made.bind(f"/proc/self/fd/{place}/{_NAME}")
        finally:
            os.close(place)
        os.chmod(f"{directory}/{_NAME}", _ALL)
        made.listen(1)
    except BaseException:
        made.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return made


def _failed(error: OSError) -> CreateError:
    return CreateError(
        f"there is no socket to be had for its warden: {error.strerror}", backend="container"
    )
