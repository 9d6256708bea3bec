"""Serving over streamable HTTP: who may come in, and what happens when they are cut off."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .access import HttpAccess, listen
from .clients import CONNECTION_IDLE, IDLE_SESSIONS
from .guard import GUARD, Guard
from .server import SESSION_HEADER, SandboxServer

__all__ = ("http_app", "serve_http", "serve_listening")

MAX_BODY = 8 << 20
"""Bytes of one request; a larger one is answered with 413."""

_DRAIN_SECONDS = 2
_CONNECTIONS = 4096
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_ANYBODY = "anybody"
_BROWSER_HEADERS = (
    "Authorization", "Content-Type", "Last-Event-ID", "Mcp-Method", "Mcp-Name",
    "Mcp-Protocol-Version", "Mcp-Session-Id",
)  # fmt: skip


def http_app(server: SandboxServer, access: HttpAccess | None = None) -> ASGIApp:
    """Return the server as an ASGI application, with its checks around it.

    Args:
        server: Made for many clients.
        access: Who may come in; default: everybody on this machine.
    """
    given = access or HttpAccess()
    hosts = [*_LOCAL, *(f"{name}:*" for name in _LOCAL), *given.hosts]
    origins = [f"http://{name}{port}" for name in _LOCAL for port in ("", ":*")]
    app = server.streamable_http_app(
        streamable_http_path=given.path,
        max_request_body_size=MAX_BODY,
        session_idle_timeout=CONNECTION_IDLE,
        max_sessions=server.options.max_sessions * IDLE_SESSIONS,
        transport_security=TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[*origins, *given.origins]
        ),
    )
    doorway: ASGIApp = _Doorway(app, server, given)
    if not given.origins:
        return doorway
    # A browser asks first, without a token, and shows its page only what it is told to.
    return CORSMiddleware(
        doorway,
        allow_origins=list(given.origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=_BROWSER_HEADERS,
        expose_headers=["Mcp-Session-Id"],
    )


class _Doorway:
    """Lets in who has a token, notes who is cut off, and ends the session of who leaves."""

    def __init__(self, app: ASGIApp, server: SandboxServer, access: HttpAccess) -> None:
        self._app = app
        self._clients = server.clients
        self._guards = server.guards
        # Compared as bytes, which may be anything in a header.
        self._tokens = [(token.encode(), name) for token, name in (access.tokens or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        owner = self._owner(headers.get(b"authorization", b""))
        if owner is None:
            refusal = Response("a token is needed\n", 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        if self._tokens:
            # By this the library keeps one token's connections from another's.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=owner, scopes=[]))
        connection = headers.get(SESSION_HEADER.encode(), b"").decode("latin-1")
        self._clients.touch_connection(owner, connection)
        await self._served(scope, receive, send, Guard(owner), connection)

    async def _served(
        self, scope: Scope, receive: Receive, send: Send, guard: Guard, connection: str
    ) -> None:
        status, is_open = 0, False

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                guard.leave()
            return message

        async def watched_send(message: Message) -> None:
            nonlocal status, is_open
            status = message.get("status", status)
            is_open = message.get("more_body", message["type"] == "http.response.start")
            await send(message)

        scope[GUARD] = guard
        self._guards.add(guard)
        try:
            if scope["method"] != "GET":
                await self._app(scope, watched_receive, watched_send)
            else:  # a stream that nothing but the client's end, or ours, would end
                with self._clients.listening(guard.owner, connection):
                    await guard.over(self._app(scope, watched_receive, watched_send))
        finally:
            self._guards.discard(guard)
        if is_open:
            await send({"type": "http.response.body", "body": b""})
        if scope["method"] == "DELETE" and connection and 200 <= status < 300:
            await self._clients.end_connection(guard.owner, connection)

    def _owner(self, header: bytes) -> str | None:
        """Return whose token it is; each is compared, in the same time whatever it is."""
        if not self._tokens:
            return _ANYBODY
        kind, _, given = header.partition(b" ")
        found = None
        for token, name in self._tokens:
            if hmac.compare_digest(token, given.strip()):
                found = name
        return found if kind.lower() == b"bearer" else None


async def serve_http(
    server: SandboxServer, host: str, port: int, access: HttpAccess | None = None
) -> None:
    """Serve over HTTP until this is cancelled.

    Args:
        server: Made for many clients.
        host: The address to listen on.
        port: The port; 0 for any, which is told in the log.
        access: Who may come in.

    Raises:
        ConfigError: The address is reachable from other machines and there is no token, or nobody
            can listen on it.
    """
    given = access or HttpAccess()
    with listen(host, port, given) as listener:
        await serve_listening(server, listener, given)


async def serve_listening(
    server: SandboxServer, listener: socket.socket, access: HttpAccess
) -> None:
    """Serve over HTTP on a socket of `listen`, until this is cancelled."""
    config = uvicorn.Config(
        http_app(server, access),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    runner, stopped = _Runner(config), anyio.Event()

    async def run() -> None:
        # It can't be cancelled without leaving requests behind; it is told to stop instead.
        with anyio.CancelScope(shield=True):
            await runner.serve(sockets=[listener])
        stopped.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            await stopped.wait()
        finally:
            runner.should_exit = True
            for guard in list(server.guards):
                guard.leave()


class _Runner(uvicorn.Server):
    """Leaves signals to whoever runs the program."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
