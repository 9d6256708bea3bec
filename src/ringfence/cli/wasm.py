"""`ringfence wasm`: interpreters compiled to WebAssembly."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ("app", "prepare")

app = typer.Typer(name="wasm", help="Interpreters compiled to WebAssembly.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    pass


@app.command()
def prepare(
    interpreters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INTERPRETER]...", help="python (the default), python-scientific, javascript"
        ),
    ] = None,
) -> None:
    """Compile interpreters now, once, so that the first run need not wait for it."""
    import anyio

    from .wasm_job import prepare_all

    anyio.run(prepare_all, interpreters or ["python"])
