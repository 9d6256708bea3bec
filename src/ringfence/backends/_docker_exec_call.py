"""One exec of the engine's, with a warden in it that serves one command or one file operation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiodocker.execs import Exec

from ..errors import SandboxLostError
from ..warden.connection import Connection
from ._docker_attach import ContainerStream
from ._docker_engine import Engine, RefusedError

__all__ = ("Call",)

_HELLO = b"\x20\0\0\0\0\0\0\0\x81\0\0\0"  # the header of a warden's first frame
_HELLO_BYTES = len(_HELLO) + 32
_GREET_SECONDS = 10.0
_MAX_WORDS = 500


class Call:
    """One exec in a container, with a warden in it.

    Args:
        process: The exec, created.
        look_after: Says why an exec's stream has ended: whether its warden was killed from inside,
            and all that it kept is gone too.
        lose: Gives the container up.
        forget: Takes note that the call is over.

    Attributes:
        connection: To the warden.
        swept: Whether the warden was killed from inside, and all that it kept is gone too.
    """

    def __init__(
        self,
        process: Exec,
        *,
        look_after: Callable[[Exec], Awaitable[bool]],
        lose: Callable[[SandboxLostError], SandboxLostError],
        forget: Callable[[Call], None],
    ) -> None:
        self.connection: Connection
        self.swept = False
        self._process = process
        self._look_after = look_after
        self._lose = lose
        self._forget = forget
        self._greeted = False

    async def open(self, engine: Engine) -> None:
        """Start the exec and hear its warden's greeting.

        Raises:
            RefusedError: The engine did not start it; the message is what it said.
            BackendUnreachableError: It does not answer.
        """
        stream = await engine.start_exec(self._process.id, self._on_end)
        self.connection = Connection(stream, self._on_lost)
        try:
            async with asyncio.timeout(_GREET_SECONDS):
                self.connection.take_early(await _first_frame(stream))
        except TimeoutError:
            self.connection.close()
            raise RefusedError(0, "nothing was heard of it") from None
        except BaseException:
            self.connection.close()
            raise
        self._greeted = True

    async def _on_end(self) -> None:
        """The stream has ended: find out why before its reader is told."""
        if self._greeted and self.connection.lost is None:
            self.swept = await self._look_after(self._process)

    def _on_lost(self, error: SandboxLostError) -> SandboxLostError:
        return self._lose(error) if self._greeted and not self.swept else error

    def close(self) -> None:
        """Let go of it: its warden ends, with what has not ended by then. Safe to call again."""
        self.connection.close()
        self._forget(self)


async def _first_frame(stream: ContainerStream) -> bytes:
    """Return the greeting, and whatever came with it.

    Raises:
        RefusedError: The engine has written into the program's stdout what went wrong.
    """
    got = b""
    while len(got) < _HELLO_BYTES and (data := await stream.receive()):
        got += data
    if not got.startswith(_HELLO):
        words = f"{got.decode('utf-8', 'replace')} {stream.words}"
        raise RefusedError(0, words.strip()[:_MAX_WORDS])
    return got
