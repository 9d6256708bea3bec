"""What is measured, a module for each kind, and the list of all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..report import Line
from ..settings import Settings
from . import (
    ahead,
    container,
    contexts,
    exports,
    files,
    imports,
    interactive,
    kubernetes,
    leftovers,
    live,
    many,
    mcp,
    memory,
    new,
    output,
    peers,
    pool,
    process,
    sessions,
    wasm,
)

__all__ = ("ROWS", "Row")


@dataclass(frozen=True)
class Row:
    """Something to measure.

    Attributes:
        name: For `--only`.
        title: What it is about.
        run: Measures it; what could not be run here is added to the second argument, in words.
    """

    name: str
    title: str
    run: Callable[[Settings, list[str]], Awaitable[list[Line]]]


ROWS = (
    Row("live", "A command in a live bubblewrap sandbox", live.run),
    Row("new", "A new bubblewrap sandbox for one command", new.run),
    Row("process", "The process backend", process.run),
    Row("output", "1 GB of output", output.run),
    Row("memory", "Memory of an idle live sandbox", memory.run),
    Row("many", "200 sandboxes at once", many.run),
    Row("leftovers", "1,000 sandboxes in a row", leftovers.run),
    Row("interactive", "Time to first command done", interactive.run),
    Row("files", "A file written and read back", files.run),
    Row("exports", "A workspace exported", exports.run),
    Row("imports", "Many small files imported", imports.run),
    Row("sessions", "A command through a session", sessions.run),
    Row("ahead", "A Python program in a live session", ahead.run),
    Row("contexts", "Code that finds what earlier code has defined", contexts.run),
    Row("mcp", "A command over MCP", mcp.run),
    Row("container", "Containers", container.run),
    Row("pool", "A pool of containers", pool.run),
    Row("kubernetes", "Pods of a cluster", kubernetes.run),
    Row("wasm", "Programs in WASM", wasm.run),
    Row("peers", "Other packages, /bin/true", peers.run),
)
