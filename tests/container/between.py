"""A socket before an engine's: passes everything on, but for what a test wants spoilt."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Literal

Spoilt = Literal["unheard", "unanswered", "hung up"]

REQUESTS = {
    "version": rb"GET (/v[\d.]+)?/version",
    "info": rb"GET (/v[\d.]+)?/info",
    "image": rb"GET (/v[\d.]+)?/images/",
    "volume": rb"POST (/v[\d.]+)?/volumes/create",
    "create": rb"POST (/v[\d.]+)?/containers/create\?name=rf-[0-9a-f]{12} ",
    "attach": rb"POST (/v[\d.]+)?/containers/[^/]+/attach",
    "start": rb"POST (/v[\d.]+)?/containers/[^/]+/start",
    "inspect": rb"GET (/v[\d.]+)?/containers/[^/]+/json",
    "events": rb"GET (/v[\d.]+)?/events",
    "remove": rb"DELETE (/v[\d.]+)?/containers/",
    "network": rb"POST (/v[\d.]+)?/networks/create",
    "anything": rb"[A-Z]+ /",
}
"""How requests begin, by the names that tests give them."""


class Between:
    """A server on a socket of its own.

    Args:
        target: The engine's socket.
        path: Its own.

    Attributes:
        path: Its own socket.
        asked: The names of the requests that have passed, or did not.
        on_request: Called with the name of each request before it is passed on.
        held_back: Whether nothing passes any more, either way, on any connection.
    """

    def __init__(self, target: str, path: str) -> None:
        self.path = path
        self.asked: list[str] = []
        self.on_request: Callable[[str], object] = lambda _: None
        self.held_back = False
        self._target = target
        self._spoilt: dict[str, Spoilt] = {}
        self._open: set[asyncio.StreamWriter] = set()

    def spoil(self, request: str, how: Spoilt) -> None:
        """Spoil a kind of request from now on.

        Args:
            request: Its name.
            how: `unheard`: the engine never gets it, and nothing is answered. `unanswered`: the
                engine gets it, and nothing of the answer comes back. `hung up`: the connection
                is closed in the place of an answer.
        """
        assert request in REQUESTS
        self._spoilt[request] = how

    def mend(self) -> None:
        """Spoil nothing any more."""
        self._spoilt.clear()
        self.held_back = False

    def break_all(self) -> None:
        """Close every connection that is open now."""
        for writer in self._open:
            writer.transport.abort()

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Serve until the block is left."""
        server = await asyncio.start_unix_server(self._serve, self.path)
        try:
            yield
        finally:
            server.close()
            self.break_all()
            while self._open:
                await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to_engine = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open.add(writer)
        answers = asyncio.ensure_future(self._pass_answers(there, writer))
        try:
            with contextlib.suppress(OSError):
                await self._pass_requests(reader, to_engine, answers)
        finally:
            answers.cancel()
            to_engine.transport.abort()
            writer.transport.abort()
            await asyncio.gather(answers, return_exceptions=True)
            self._open.discard(writer)

    async def _pass_requests(
        self,
        reader: asyncio.StreamReader,
        to_engine: asyncio.StreamWriter,
        answers: asyncio.Future[None],
    ) -> None:
        while data := await reader.read(65536):
            how = self._look(data)
            if how == "hung up":
                return
            if how is not None:
                answers.cancel()
            if how == "unheard" or self.held_back:
                continue  # until the other side has had enough
            to_engine.write(data)
            await to_engine.drain()

    def _look(self, data: bytes) -> Spoilt | None:
        for name, pattern in REQUESTS.items():
            if re.match(pattern, data):
                self.asked.append(name)
                self.on_request(name)
                return self._spoilt.get(name) or self._spoilt.get("anything")
        return None

    async def _pass_answers(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await there.read(65536):
                if not self.held_back:
                    writer.write(data)
                    await writer.drain()
            writer.close()
