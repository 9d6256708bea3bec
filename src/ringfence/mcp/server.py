"""The server: which client a call is of, whether it may run, and what becomes of an error.

Theory of operation. A call's arguments are checked before anything else happens. Then it gets a
place among those that may run, and the session of its client: of the only client on stdio, of the
connection on HTTP before 2026-07-28, of the handle that it passes after that. The tool's function
does the work, and whatever `SandboxError` comes of it is an answer that a model can act on. A call
that is cancelled, by the client or because its client is gone, kills its command on the way out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import UnexpectedToolError
from mcp_types import CallToolResult, InputRequiredResult
from mcp_types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from .. import __version__
from ..errors import SandboxError, ToolError
from ..sessions import SessionManager
from ..tools.calling import check_arguments
from .admission import Admission
from .answers import Answer, as_result, error_result
from .calls import Call, Report
from .clients import Client, Clients
from .definitions import ServedTool, served_tools
from .guard import GUARD, Guard
from .options import McpOptions

__all__ = ("SESSION_HEADER", "SandboxServer", "open_server")

_log = logging.getLogger(__name__)

SESSION_HEADER = "mcp-session-id"

_ONLY = "only"
"""The owner where there is one client, and where there are no tokens."""

_INSTRUCTIONS = (
    "Commands and code run in an isolated sandbox with a workspace of its own, /workspace. Files "
    "in it stay from one call to the next; give a command's files relative names."
)

_by_handle: ContextVar[bool] = ContextVar("by_handle", default=False)


class SandboxServer(MCPServer[Any]):
    """An MCP server whose tools work in sandboxes; made by `open_server`.

    Tools, resources and prompts of your own can be added as to any `MCPServer`.

    Attributes:
        clients: The sessions of its clients.
        options: How it serves.
        guards: Of the HTTP requests that it is serving now.
    """

    def __init__(self, sessions: SessionManager, options: McpOptions, *, one_client: bool) -> None:
        super().__init__(
            "ringfence",
            title="ringfence sandboxes",
            version=__version__,
            instructions=_INSTRUCTIONS,
            log_level="WARNING",
            middleware=[_note_generation],
        )
        able = sessions.backend.capabilities
        self.clients = Clients(sessions, options)
        self.options = options
        self.guards: set[Guard] = set()
        self._one_client = one_client
        self._admission = Admission(options.calls_at_once, options.calls_waiting)
        self._tools = {
            by_handle: served_tools(able, options, by_handle=by_handle)
            for by_handle in (False, True)
        }

    async def list_tools(self) -> list[McpTool]:
        tools = self._tools[_by_handle.get() and not self._one_client]
        return [tool.definition() for tool in tools.values()] + await super().list_tools()

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        by_handle = not self._one_client and _is_stateless(context)
        tools = self._tools[by_handle]
        tool = tools.get(name)
        if tool is None:
            others = [one.name for one in await super().list_tools()]
            if name in others:
                return await super().call_tool(name, arguments, context)
            known = ", ".join([*tools, *others])
            return error_result(ToolError(f"there is no tool {name!r:.80}; there are {known}"))
        try:
            given = check_arguments(name, tool.parameters, arguments)
            async with self._admission.place():
                return await self._in_session(tool, given, context, by_handle)
        except SandboxError as error:
            _log.info("%s was refused: %s", name, error.code)
            return error_result(error)
        except Exception as error:
            # The library logs it, and shows the client this text and not the error's own.
            raise UnexpectedToolError(f"{name} failed: a fault of the server itself") from error

    async def serve_streams(self, read: Any, write: Any) -> None:
        """Serve one connection over a pair of the SDK's streams, until it ends."""
        inner = self._lowlevel_server
        await inner.run(read, write, inner.create_initialization_options())

    async def _in_session(
        self,
        tool: ServedTool,
        given: dict[str, Any],
        context: Context[Any, Any] | None,
        by_handle: bool,
    ) -> CallToolResult:
        request = None if context is None else context.request_context.request
        guard: Guard | None = None if request is None else request.scope.get(GUARD)
        owner = _ONLY if guard is None else guard.owner
        if by_handle:
            asked = given.pop("session", None)
            client = self.clients.of_handle(owner, asked)
            is_told = asked is not None
        else:
            connection = _ONLY if request is None else request.headers.get(SESSION_HEADER, _ONLY)
            client = self.clients.of_connection(owner, connection)
            is_told = True
        report = None if context is None else _report(context)
        result: CallToolResult | None = None
        try:
            with client.busy():
                work = self._perform(tool, given, client, report)
                result = await (work if guard is None else guard.over(work))
            is_told = is_told or result is not None
        finally:
            await self._settle(client, guard, is_told)
        if result is None:  # and nobody reads this
            return error_result(ToolError("the client has gone"))
        return result

    async def _perform(
        self, tool: ServedTool, given: Mapping[str, Any], client: Client, report: Report | None
    ) -> CallToolResult:
        call = Call(client.session, self.options, client.contexts, client.new_images, report)
        try:
            answer: Answer = await tool.handler(call, **given)
        except SandboxError as error:
            _log.info("%s failed: %s", tool.name, error.code)
            is_new = client.is_new_workspace()
            return error_result(error, is_new=is_new, handle=client.handle)
        if client.session.is_closed:
            return as_result(answer, is_new=False, handle="")
        return as_result(answer, is_new=client.is_new_workspace(), handle=client.handle)

    async def _settle(self, client: Client, guard: Guard | None, is_told: bool) -> None:
        """End a session that is closed, or whose handle nobody was told; mind one that is left."""
        if client.session.is_closed or not is_told:
            with anyio.CancelScope(shield=True):
                await self.clients.end(client)
        elif guard is not None and guard.gone and not client.handle:
            client.gone_since = time.monotonic()


@asynccontextmanager
async def open_server(
    sessions: SessionManager, options: McpOptions | None = None, *, one_client: bool = True
) -> AsyncIterator[SandboxServer]:
    """Make a server, and end its clients' sessions when the block is left.

    Args:
        sessions: Makes the clients' sessions; it must be open, and stays so.
        options: How to serve.
        one_client: Whether all calls are of one client, as on stdio. Else each HTTP connection is
            one, and a client of the stateless generation passes a session handle.
    """
    server = SandboxServer(sessions, options or McpOptions(), one_client=one_client)
    async with server.clients.kept():
        yield server


async def _note_generation(
    ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    """Let the list of tools know what generation asks for it."""
    token = _by_handle.set(ctx.protocol_version in MODERN_PROTOCOL_VERSIONS)
    try:
        return await call_next(ctx)
    finally:
        _by_handle.reset(token)


def _is_stateless(context: Context[Any, Any] | None) -> bool:
    return context is not None and context.protocol_version in MODERN_PROTOCOL_VERSIONS


def _report(context: Context[Any, Any]) -> Report | None:
    meta = context.request_context.meta
    if not meta or meta.get("progress_token") is None:
        return None
    return context.report_progress
