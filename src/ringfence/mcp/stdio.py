"""Serving over stdin and stdout: one client, and its session ends with the pipe."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

from mcp.server.stdio import stdio_server

from .server import SandboxServer

__all__ = ("TextReader", "TextWriter", "serve_stdio")


class TextReader(Protocol):
    """What lines are read from."""

    def __aiter__(self) -> AsyncIterator[str]: ...


class TextWriter(Protocol):
    """What lines are written to."""

    async def write(self, text: str) -> Any: ...

    async def flush(self) -> Any: ...


async def serve_stdio(
    server: SandboxServer, reader: TextReader | None = None, writer: TextWriter | None = None
) -> None:
    """Serve one client until its pipe ends.

    Args:
        server: Made for one client.
        reader: What it sends, line by line; default: stdin.
        writer: What goes to it; default: stdout, and what else is printed goes to stderr then.
    """
    async with AsyncExitStack() as stack:
        given: dict[str, Any] = {"stdin": reader, "stdout": writer}
        read, write = await stack.enter_async_context(stdio_server(**given))
        await server.serve_streams(read, write)
