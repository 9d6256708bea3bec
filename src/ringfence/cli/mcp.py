"""`ringfence mcp`: sandboxes for clients of the Model Context Protocol."""

from __future__ import annotations

import codecs
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace

from ..errors import ConfigError
from ..mcp import HttpAccess, McpOptions, open_server, read_tokens, serve_stdio
from ..mcp.access import listen, parse_address
from ..mcp.http import serve_listening
from ..models import Network, SandboxSpec
from ..policy import Plan, Policy
from ..sessions import SessionManager
from ..settings import Settings
from . import words
from .container import show_fetching
from .interrupts import unless_interrupted
from .job import Job
from .run import choose, no_isolation
from .stdio import Writer, read_stdin

__all__ = ("HttpFlags", "Wire", "serve")

MAX_LINE = 16 << 20
"""Bytes of one message on stdin; a longer one ends the connection."""

_PLAN = "local"


@dataclass(frozen=True)
class HttpFlags:
    """What `--http` goes with.

    Attributes:
        address: `HOST:PORT`, or None for stdio.
        token_env: The variable that has the token.
        token_file: The file that has the tokens.
        hosts: More names by which it may be called.
        origins: More origins from which browsers may call it.
    """

    address: str | None = None
    token_env: str | None = None
    token_file: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def access(self) -> HttpAccess:
        """Return who may come in.

        Raises:
            ConfigError: A token can't be had, or one of these goes with HTTP and there is none.
        """
        if self.address is None and self != HttpFlags():
            raise ConfigError("tokens, hosts and origins go with HTTP", hint="give --http too")
        named = self.token_env is not None or self.token_file is not None
        tokens = read_tokens(self.token_env, self.token_file) if named else None
        return HttpAccess(tokens, self.hosts, self.origins)


async def serve(
    settings: Settings, options: McpOptions, http: HttpFlags, python_ahead: bool = False
) -> int:
    """Serve until the client has gone or a signal comes, and return the exit code.

    Args:
        settings: Of the sandboxes.
        options: Of the server.
        http: What `--http` goes with.
        python_ahead: As `SessionManager` takes it.

    Raises:
        ConfigError: Something that was asked for can't be.
        SandboxError: The backend can't be opened.
    """
    access = http.access()
    with ExitStack() as stack:
        listener = None
        if http.address is not None:
            listener = stack.enter_context(listen(*parse_address(http.address), access))

        async def work() -> int:
            await _serve(settings, options, access, listener, python_ahead)
            return 0

        return await unless_interrupted(work)


async def _serve(
    settings: Settings,
    options: McpOptions,
    access: HttpAccess,
    listener: socket.socket | None,
    python_ahead: bool,
) -> None:
    backend = await choose(settings, Job("command", ("mcp",), ()), shows_host=False)
    if backend.name == "container":
        show_fetching(backend)
    if warning := no_isolation(settings, backend):
        words.say(warning)
    options = replace(options, spec=_spec(settings))
    # Who starts it on a machine of their own sets the limits by flags, and no plan is above them.
    networks = ("none", settings.network) if settings.network else ("none",)
    plan = Plan(_PLAN, networks=networks, max_sandboxes=options.max_sessions)
    policy = Policy({_PLAN: plan}, default_plan=_PLAN)
    idle = options.idle_timeout
    async with (
        backend,
        SessionManager(
            backend, policy=policy, idle_timeout=idle, python_ahead=python_ahead
        ) as sessions,
        open_server(sessions, options, one_client=listener is None) as server,
    ):
        if listener is None:
            wire = Wire()
            await serve_stdio(server, wire, wire)
        else:
            words.say(f"serving {backend.name} sandboxes at {_url(listener, access)}")
            await serve_listening(server, listener, access)


def _url(listener: socket.socket, access: HttpAccess) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}{access.path}"


def _spec(settings: Settings) -> SandboxSpec:
    return SandboxSpec(
        limits=settings.limits,
        network=Network(settings.network) if settings.network else None,
        env=settings.env,
        mounts=settings.mounts,
        labels={"command": "mcp"},
    )


class Wire:
    """Stdin and stdout as lines of text, in a way that holds up no signal and no exit.

    What anything else in this process writes to stdout goes to stderr instead: the client would
    take it for a message.
    """

    def __init__(self) -> None:
        self._writer = Writer()
        self._out = os.dup(1)
        os.dup2(2, 1)

    async def __aiter__(self) -> AsyncIterator[str]:
        # What is not UTF-8 is no message, and the protocol's library says so.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        waiting = ""
        async with aclosing(read_stdin()) as parts:
            async for part in parts:
                *lines, waiting = (waiting + decoder.decode(part)).split("\n")
                for line in lines:
                    yield line
                if len(waiting) > MAX_LINE:
                    words.say(f"a message has more than {MAX_LINE} bytes; the connection ends")
                    return
        if waiting:
            yield waiting

    async def write(self, text: str) -> None:
        """Send a text.

        Raises:
            BrokenPipeError: The client has gone.
        """
        await self._writer.write(self._out, text.encode("utf-8", "replace"))

    async def flush(self) -> None:
        """Do nothing: what is written is sent."""
