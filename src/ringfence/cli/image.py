"""`ringfence image`: the image that container sandboxes run."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ("app", "build", "ls")

app = typer.Typer(
    name="image", help="The image that container sandboxes run.", no_args_is_help=True
)

_Host = Annotated[
    str, typer.Option(metavar="URL", help="The engine: unix:///path or tcp://name:port.")
]


@app.command()
def build(
    tag: Annotated[str, typer.Option("--tag", "-t", metavar="NAME", help="Its name.")] = "",
    way: Annotated[
        str,
        typer.Option(
            metavar="WAY",
            help="dockerfile (by the engine, from a base image), debian (of packages, by "
            "mmdebstrap), or auto: the first that can work.",
        ),
    ] = "auto",
    with_data: Annotated[
        bool,
        typer.Option(
            "--with-data", metavar="", help="Put numpy, pandas, matplotlib, ipykernel in."
        ),
    ] = False,
    base: Annotated[
        str, typer.Option(metavar="IMAGE", help="What the Dockerfile starts from.")
    ] = "",
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Until it is given up: 30 (seconds), 20m.")
    ] = "30m",
    host: _Host = "",
) -> None:
    """Build it: Python with pip, Node, git, curl and the usual tools, for the user `sandbox`."""
    import anyio

    from ..image import DEFAULT_BASE, DEFAULT_TAG
    from ..settings import parse_seconds
    from .image_job import Order, build_one

    order = Order(
        tag=tag or DEFAULT_TAG,
        way=way,
        with_data=with_data,
        base=base or DEFAULT_BASE,
        timeout=parse_seconds(timeout),
        host=host,
    )
    raise typer.Exit(anyio.run(build_one, order))


@app.command()
def ls(
    json: Annotated[bool, typer.Option("--json", metavar="", help="Print a list.")] = False,
    host: _Host = "",
) -> None:
    """List those that the engine has, and which of them an older recipe made."""
    import anyio

    from .image_job import list_all

    anyio.run(list_all, host, json)
