"""What `ringfence run` takes."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from .faults import print_fault
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

__all__ = ("RunCommand", "run")


class RunCommand(TyperCommand):
    """Keeps what typer drops: whether the program came after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        program = ctx.params.get("program") or []
        before = given[: len(given) - len(program)]
        ctx.meta["is_literal"] = bool(program) and before[-1:] == ["--"]
        return rest


def run(
    context: typer.Context,
    program: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="script.py or script.sh of this machine, - for Python from stdin, or a program "
            "of the sandbox; with its arguments. After -- it is always a program.",
        ),
    ],
    backend: Chosen = None,
    memory: Memory = None,
    cpus: Cpus = None,
    pids: Annotated[
        str | None, typer.Option(metavar="N", help="Processes and threads together.")
    ] = None,
    open_files: Annotated[
        str | None, typer.Option(metavar="N", help="Open files of each process.")
    ] = None,
    workspace_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of /workspace.")
    ] = None,
    tmp_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Size of /tmp.")] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Until all is killed: 30 (seconds), 5m.")
    ] = None,
    env: Env = None,
    file: File = None,
    mount: Mount = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The interpreter, shown with its installation."),
    ] = None,
    with_venv: Annotated[
        bool, typer.Option("--with-venv", metavar="", help="Use the active virtual environment.")
    ] = False,
    root_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="A root file system instead of this one's.")
    ] = None,
    image: Image = None,
    network: Network = None,
    runtime: Runtime = None,
    pull: Pull = None,
    export: Annotated[
        str | None, typer.Option(metavar="DIR", help="Copy the workspace there afterwards.")
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print one object with all that there is to say."),
    ] = False,
    output_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Kept of each stream with --json.")
    ] = None,
) -> None:
    """Run a script or a program; its output, stdin and exit code are this command's own."""
    from ..errors import ConfigError, SandboxError

    try:
        if with_venv and python:
            raise ConfigError("--with-venv and --python name two interpreters", hint="give one")
        words = _Words(program, context.meta["is_literal"], file or [])
        code = _perform(
            words, settings_given(context), export=export, as_json=json, with_venv=with_venv
        )
    except (SandboxError, ExceptionGroup) as error:
        if json:
            print_fault(error)
        raise
    raise typer.Exit(code)


class _Words(NamedTuple):
    program: list[str]
    is_literal: bool
    files: list[str]


def _perform(
    given: _Words, flags: dict[str, Any], *, export: str | None, as_json: bool, with_venv: bool
) -> int:
    import anyio

    from ..settings import load_settings
    from .job import parse_copy, parse_job
    from .run import Options
    from .run import run as perform

    files = [parse_copy(text) for text in given.files]
    job = parse_job(given.program, files, is_literal=given.is_literal)
    options = Options(job, export=export, as_json=as_json, with_venv=with_venv)
    return anyio.run(perform, load_settings(flags), options)
