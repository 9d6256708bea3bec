"""Serves sandboxes to clients of the Model Context Protocol, over stdio and streamable HTTP.

`ringfence mcp` is its command. In a program of one's own::

    async with open_backend("auto") as backend, SessionManager(backend) as sessions:
        async with open_server(sessions) as server:
            await serve_stdio(server)

The extra `mcp` brings the official SDK; docs/mcp.md says what is served, and when it ends.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import MissingDependencyError

if find_spec("mcp") is None or find_spec("mcp_types") is None:
    raise MissingDependencyError(
        "serving MCP needs the package mcp, version 2", hint="pip install 'ringfence[mcp]'"
    )

from .access import HttpAccess, read_tokens
from .answers import ERROR_META
from .http import http_app, serve_http
from .options import McpOptions
from .server import SandboxServer, open_server
from .stdio import serve_stdio

__all__ = (
    "ERROR_META",
    "HttpAccess",
    "McpOptions",
    "SandboxServer",
    "http_app",
    "open_server",
    "read_tokens",
    "serve_http",
    "serve_stdio",
)
