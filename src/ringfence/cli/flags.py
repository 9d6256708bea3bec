"""The options that several commands take."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

__all__ = (
    "Chosen", "Cpus", "Env", "File", "Image", "Memory", "Mount", "Network", "Place", "Pull",
    "Runtime", "settings_given",
)  # fmt: skip

_SETTINGS = (
    *("backend", "memory", "cpus", "pids", "open_files", "workspace_size", "tmp_size"),
    *("output_size", "timeout", "python", "root_dir", "image", "network", "runtime", "pull"),
)

Chosen = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="auto (the strongest that runs here), bubblewrap, ...",
    ),
]

Memory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of all processes: 512m, 2g.")
]
Cpus = Annotated[str | None, typer.Option(metavar="N", help="CPU cores: 0.5, 2.")]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable; alone, as it is here."),
]
File = Annotated[
    list[str] | None,
    typer.Option("--file", "-f", metavar="SRC[:DEST]", help="Copy a file into the workspace."),
]
Mount = Annotated[
    list[str] | None,
    typer.Option(metavar="SRC[:DEST]", help="Show a file or directory, read-only."),
]
Image = Annotated[
    str | None, typer.Option(metavar="NAME", help="The image, for containers and pods.")
]
Network = Annotated[
    str | None, typer.Option(metavar="NAME", help="none, or bridge to reach out (container).")
]
Runtime = Annotated[
    str | None, typer.Option(metavar="NAME", help="The OCI runtime (container): runsc.")
]
Place = Annotated[
    str | None,
    typer.Option(
        "--backend", metavar="NAME", help="kubernetes: look into the cluster's namespace too."
    ),
]
Pull = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Fetch the image: never, missing, always.")
]


def settings_given(context: typer.Context) -> dict[str, Any]:
    """Return what a command was given of the options that stand for settings.

    Raises:
        ConfigError: A variable is to be passed on and is not set here.
    """
    given = context.params
    found = {name: given[name] for name in _SETTINGS if name in given}
    return {**found, "env": _variables(given["env"] or []), "mounts": given["mount"]}


def _variables(texts: list[str]) -> dict[str, str] | None:
    """Return the variables that `--env` gave, or None if it gave none."""
    from ..errors import ConfigError

    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            if name not in os.environ:
                raise ConfigError(f"--env {name}: there is no such variable here to pass on")
            value = os.environ[name]
        found[name] = value
    return found or None
