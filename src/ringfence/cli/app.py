"""The command line: what each command takes."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from .faults import print_fault, told
from .flags import Cpus, Env, File, Image, Memory, Mount, Network, Place, Pull, Runtime, variables
from .image import app as image_app
from .mcp_command import mcp
from .stdio import fill_missing_streams
from .wasm import app as wasm_app

__all__ = ("doctor", "main", "mcp", "ps", "reap", "run", "shell")

_INTERRUPTED = 130

app = typer.Typer(
    name="ringfence",
    help="Run code that you didn't write, in a sandbox.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _RunCommand(TyperCommand):
    """Keeps what typer drops: whether the program came after `--`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        program = ctx.params.get("program") or []
        before = given[: len(given) - len(program)]
        ctx.meta["is_literal"] = bool(program) and before[-1:] == ["--"]
        return rest


@app.command(
    cls=_RunCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
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
    backend: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="auto (the strongest that runs here), bubblewrap, ..."),
    ] = None,
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
        flags = {
            "backend": backend,
            "memory": memory,
            "cpus": cpus,
            "pids": pids,
            "open_files": open_files,
            "workspace_size": workspace_size,
            "tmp_size": tmp_size,
            "output_size": output_size,
            "timeout": timeout,
            "env": variables(env or []),
            "mounts": mount,
            "python": python,
            "root_dir": root_dir,
            "image": image,
            "network": network,
            "runtime": runtime,
            "pull": pull,
        }
        words = _Words(program, context.meta["is_literal"], file or [])
        code = _perform(words, flags, export=export, as_json=json, with_venv=with_venv)
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


@app.command()
def shell(
    backend: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="auto (the strongest that runs here), bubblewrap, ..."),
    ] = None,
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

    flags = {
        "backend": backend,
        "memory": memory,
        "cpus": cpus,
        "env": variables(env or []),
        "mounts": mount,
        "image": image,
        "network": network,
        "runtime": runtime,
        "pull": pull,
    }
    files = tuple(parse_copy(text) for text in file or [])
    argv = parse_command(command)
    raise typer.Exit(anyio.run(perform, load_settings(flags), argv, files))


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one object.")] = False,
) -> None:
    """Say what this machine can run, what holds each limit, and what is missing.

    Ends with 1 if no backend that isolates can run here.
    """
    import anyio

    from ..settings import load_settings
    from .doctor import doctor as examine

    settings = load_settings({})

    async def work() -> int:
        return await examine(settings, as_json=json)

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see the package's main()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    raise typer.Exit(anyio.run(work))


@app.command()
def ps(
    backend: Place = None,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print a list.")] = False,
) -> None:
    """List the sandboxes on this machine, live and left over."""
    from ..settings import load_settings
    from .leftovers import ps as show

    show(load_settings({"backend": backend}), as_json=json)


@app.command()
def reap(
    backend: Place = None,
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print one object.")] = False,
) -> None:
    """Remove what dead owners have left on this machine."""
    from ..settings import load_settings
    from .leftovers import reap as remove

    remove(load_settings({"backend": backend}), as_json=json)


app.command()(mcp)
app.add_typer(image_app)
app.add_typer(wasm_app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        print(f"ringfence {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_print_version, is_eager=True, help="Print it."
        ),
    ] = False,
) -> None:
    pass


def main() -> int:
    """Run the command and return its exit code. A fault of our own is one line on stderr."""
    fill_missing_streams()
    logging.basicConfig(format="ringfence: %(message)s", level=logging.WARNING)
    try:
        code = app(prog_name="ringfence", standalone_mode=False)
        if sys.stdout is not None:  # it was closed before we began
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001  # the last place where a fault can be told
        return told(error)
    return int(code or 0)
