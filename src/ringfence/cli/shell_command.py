"""What `ringfence shell` takes."""

from __future__ import annotations

from typing import Annotated

import typer

from .flags import (
    Chosen,
    Cpus,
    Env,
    File,
    Image,
    Memory,
    Mount,
    Network,
    Pull,
    Runtime,
    settings_given,
)

__all__ = ("shell",)


def shell(
    context: typer.Context,
    backend: Chosen = None,
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", metavar="COMMAND", help="Another program than bash or sh."),
    ] = None,
    memory: Memory = None,
    cpus: Cpus = None,
    env: Env = None,
    file: File = None,
    mount: Mount = None,
    image: Image = None,
    network: Network = None,
    runtime: Runtime = None,
    pull: Pull = None,
) -> None:
    """Work in a sandbox of your own on this terminal; its exit code is the shell's.

    The sandbox and its workspace are gone afterwards.
    """
    import anyio

    from ..settings import load_settings
    from .job import parse_copy
    from .shell import parse_command
    from .shell import shell as perform

    files = tuple(parse_copy(text) for text in file or [])
    argv = parse_command(command)
    raise typer.Exit(anyio.run(perform, load_settings(settings_given(context)), argv, files))
