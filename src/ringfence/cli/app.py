"""The command line: what each command takes."""

from __future__ import annotations

import logging
import signal
import sys
from typing import Annotated

import typer

from .faults import told
from .flags import Place
from .image import app as image_app
from .mcp_command import mcp
from .run_command import RunCommand, run
from .shell_command import shell
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


app.command(
    cls=RunCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)(run)
app.command()(shell)


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
