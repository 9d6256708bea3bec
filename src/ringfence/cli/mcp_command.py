"""What `ringfence mcp` takes."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from .flags import Chosen, Cpus, Env, Image, Memory, Mount, Network, Pull, Runtime, settings_given

__all__ = ("mcp",)


def mcp(
    context: typer.Context,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve streamable HTTP there instead of stdio."),
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The variable that holds the bearer token (HTTP)."),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="A file of bearer tokens, one in a line (HTTP)."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:PORT]", help="A name by which it may be called (HTTP)."),
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="An origin from which browsers may call it (HTTP)."),
    ] = None,
    export: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Let clients export their workspaces below it."),
    ] = None,
    idle_timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Until an unused session ends.")
    ] = "10m",
    max_sessions: Annotated[
        int, typer.Option(metavar="N", min=1, help="Sandboxes of all clients at a time.")
    ] = 64,
    context_python: Annotated[
        str,
        typer.Option(
            metavar="PYTHON",
            help="The sandbox's Python for code contexts, a name or a path; it has ipykernel.",
        ),
    ] = "python3",
    python_ahead: Annotated[
        bool,
        typer.Option(
            "--python-ahead",
            help="Have a Python up in each sandbox before run_code needs it; takes its memory.",
        ),
    ] = False,
    backend: Chosen = None,
    memory: Memory = None,
    cpus: Cpus = None,
    env: Env = None,
    mount: Mount = None,
    image: Image = None,
    network: Network = None,
    runtime: Runtime = None,
    pull: Pull = None,
) -> None:
    """Serve sandboxes to agents over the Model Context Protocol, on stdio or HTTP.

    Each client has a session of its own, with one sandbox and its workspace.
    """
    import anyio

    from ..mcp import McpOptions
    from ..settings import load_settings, parse_seconds
    from .mcp import HttpFlags, serve

    options = McpOptions(
        export_dir=os.path.abspath(export) if export else None,
        idle_timeout=parse_seconds(idle_timeout),
        max_sessions=max_sessions,
        python=context_python,
    )
    access = HttpFlags(
        http, token_env, token_file, tuple(allowed_host or ()), tuple(allowed_origin or ())
    )
    raise typer.Exit(
        anyio.run(serve, load_settings(settings_given(context)), options, access, python_ahead)
    )
