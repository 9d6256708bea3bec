"""Whose session is whose, and when it ends.

A client that keeps a connection (stdio, and HTTP of the generations before 2026-07-28) has one
session, which ends with the connection. A stateless client is given a *handle* with its first
answer, and passes it on; such a session ends on request or when it has not been used for a while.
A handle is a secret: who has it has the workspace. So it is random, it is good only for the token
that it was made for, and no name of the sandbox, no label and no log has anything of it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from ..errors import LimitError, SandboxError, ToolError
from ..sessions import Session, SessionManager
from .contexts import ClientContexts
from .new_images import NewImages
from .options import McpOptions

__all__ = ("Client", "Clients")

_log = logging.getLogger(__name__)

IDLE_SESSIONS = 16
"""How many sessions there may be for each that has a sandbox: a client may leave without a word."""

_LOOK_SECONDS = 1.0
_HANDLE_BYTES = 24
_HANDLE_TEXT = 200
_MOST_FORGOTTEN = 10_000
CONNECTION_IDLE = 1800.0
"""Seconds without a request after which an HTTP connection counts as left."""


@dataclass(eq=False)
class Client:
    """One client's session, as the server keeps it.

    Attributes:
        session: The session.
        contexts: Its code contexts.
        new_images: The images of its workspace that it has not had yet.
        handle: What a stateless client calls it; empty for a connection's.
        calls: How many calls are in it now.
        used: When it was last used, on the monotonic clock.
        gone_since: When its client was cut off in a call and has not come back, or None.
        known: The generation of the workspace that the client knows.
        is_again: Whether the client has had a session before that was forgotten.
    """

    session: Session
    contexts: ClientContexts
    new_images: NewImages
    handle: str = ""
    calls: int = 0
    used: float = field(default_factory=time.monotonic)
    gone_since: float | None = None
    known: int = 0
    is_again: bool = False

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a call, during which the session is not idle."""
        self.calls += 1
        self.touch()
        try:
            yield
        finally:
            self.calls -= 1
            self.used = time.monotonic()

    def touch(self) -> None:
        """Note that the client is there."""
        self.used, self.gone_since = time.monotonic(), None

    def is_new_workspace(self) -> bool:
        """Whether the workspace is not the one that the client knew; told once."""
        if self.session.generation == self.known:
            return False
        self.known = self.session.generation
        was_again, self.is_again = self.is_again, False
        return self.session.has_restarted or was_again


class Clients:
    """The sessions of all clients of a server.

    Args:
        sessions: Makes them; it must be open.
        options: How many there may be, and for how long.
    """

    def __init__(self, sessions: SessionManager, options: McpOptions) -> None:
        self._sessions = sessions
        self._options = options
        self._known: dict[tuple[str, str], Client] = {}
        self._streams: Counter[tuple[str, str]] = Counter()
        self._forgotten: dict[tuple[str, str], None] = {}
        self._tasks: TaskGroup | None = None

    def __len__(self) -> int:
        return len(self._known)

    def of_connection(self, owner: str, connection: str) -> Client:
        """Return the session of a client that keeps a connection.

        Raises:
            LimitError: There are as many sessions as may be.
        """
        key = _connection(owner, connection)
        return self._known.get(key) or self._open(key, "")

    def of_handle(self, owner: str, handle: str | None) -> Client:
        """Return the session of a handle, or a new one with a new handle.

        Raises:
            ToolError: There is none of this handle, or it is another token's.
            LimitError: There are as many sessions as may be.
        """
        if handle is None:
            made = secrets.token_urlsafe(_HANDLE_BYTES)
            return self._open((owner, f"handle {made}"), made)
        found = self._known.get((owner, f"handle {handle[:_HANDLE_TEXT]}"))
        if found is None:
            raise ToolError(
                "there is no such session: it has ended, or was never yours; leave `session` out "
                "to get a new one, with an empty workspace"
            )
        return found

    async def end(self, client: Client) -> None:
        """End a session and all that runs in it."""
        self._known = {key: one for key, one in self._known.items() if one is not client}
        await self._close(client)

    async def end_connection(self, owner: str, connection: str) -> None:
        """End the session of a connection, if it has one."""
        found = self._known.pop(_connection(owner, connection), None)
        if found is not None:
            await self._close(found)

    def touch_connection(self, owner: str, connection: str) -> None:
        """Note that a connection's client is there."""
        found = self._known.get(_connection(owner, connection))
        if found is not None:
            found.touch()

    @contextmanager
    def listening(self, owner: str, connection: str) -> Iterator[None]:
        """Note that a connection's client listens for as long as the block lasts: it is there."""
        key = _connection(owner, connection)
        self._streams[key] += 1
        try:
            yield
        finally:
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """End what is overdue while the block lasts, and all that there is when it is left."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._look_after)
            try:
                yield
            finally:
                self._tasks = None  # what would be started from here on would be told no end
                tasks.cancel_scope.cancel()
                known, self._known = list(self._known.values()), {}
                with anyio.CancelScope(shield=True):
                    async with anyio.create_task_group() as closing:
                        for client in known:
                            closing.start_soon(self._close, client)

    def _open(self, key: tuple[str, str], handle: str) -> Client:
        most = self._options.max_sessions
        live = sum(1 for one in self._known.values() if one.calls or one.session.is_live)
        if live >= most or len(self._known) >= most * IDLE_SESSIONS:
            raise LimitError(
                "sessions",
                f"this server has {most} sessions, which is all that it may have",
                hint="use the session that you have, end one with end_session, or try again later",
            )
        name = f"mcp-{secrets.token_hex(8)}"
        session = self._sessions.session(name, tenant_id=key[0], spec=self._options.spec)
        is_again = key in self._forgotten
        self._forgotten.pop(key, None)
        contexts = ClientContexts(session, self._options, lambda: self._tasks)
        images = NewImages(session, self._options)
        made = self._known[key] = Client(session, contexts, images, handle, is_again=is_again)
        return made

    async def _look_after(self) -> None:
        while True:
            await anyio.sleep(min(_LOOK_SECONDS, self._options.gone_timeout / 2))
            now = time.monotonic()
            for key, client in list(self._known.items()):
                if self._is_overdue(key, client, now):
                    self._remember(key)
                    await self.end(client)

    def _remember(self, key: tuple[str, str]) -> None:
        """Keep in mind whose session was ended, to tell a client that comes back."""
        self._forgotten[key] = None
        while len(self._forgotten) > _MOST_FORGOTTEN:
            del self._forgotten[next(iter(self._forgotten))]

    def _is_overdue(self, key: tuple[str, str], client: Client, now: float) -> bool:
        if client.calls or self._streams[key]:
            return False
        if client.gone_since is not None:
            return now - client.gone_since >= self._options.gone_timeout
        idle = now - client.used
        if client.handle:
            return idle >= self._options.idle_timeout and not client.session.background.running
        return idle >= max(CONNECTION_IDLE, self._options.idle_timeout) + _LOOK_SECONDS

    async def _close(self, client: Client) -> None:
        try:
            await client.session.aclose()
        except SandboxError as error:
            _log.warning("a client's sandbox did not end well: %s", error)
        finally:
            await client.contexts.aclose()  # of which nothing runs any more


def _connection(owner: str, connection: str) -> tuple[str, str]:
    return owner, f"connection {connection}"
