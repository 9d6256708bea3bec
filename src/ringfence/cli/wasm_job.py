"""What `ringfence run --backend wasm` makes of a script or a module, and preparing for it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

from ..backend import Backend
from ..config import WasmConfig
from ..errors import ConfigError
from ..registry import load_backend
from ..settings import Settings
from . import words
from .job import Copy, Job

__all__ = ("as_program", "prepare", "prepare_all", "settings_for")

_SECONDS = {"python": 30, "python-scientific": 300, "javascript": 3}
"""About how long compiling takes, for the bar; it can't be known before."""


async def prepare_all(interpreters: Sequence[str]) -> None:
    """Compile interpreters, and say how long each took."""
    make = cast("Callable[[WasmConfig], Backend]", load_backend("wasm"))
    for name in interpreters:
        began = time.monotonic()
        was_there = await prepare(make(WasmConfig(interpreter=name)))
        took = words.span(time.monotonic() - began)
        print(f"{name}: {'was there' if was_there else f'compiled in {took}'}")


async def prepare(backend: Backend) -> bool:
    """Compile what a backend runs, with a bar if that takes long; returns if it was there."""
    wasm: Any = backend
    if wasm.is_prepared:
        await wasm.prepare()
        return True
    name = wasm.interpreter_name
    with _bar(name, _SECONDS.get(name, 30)):
        await wasm.prepare()
    return False


def _bar(name: str, seconds: int) -> AbstractContextManager[object]:
    """Show that something goes on, on stderr; a line where that is no terminal."""
    if not sys.stderr.isatty():
        words.say(f"compiling {name}, once; this takes about {words.span(seconds)}")
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn(f"of about {words.span(seconds)}"),
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task(f"compiling {name}, once", total=None)
    return progress


def settings_for(job: Job, settings: Settings) -> dict[str, Any]:
    """Return what a job needs of the backend: an interpreter, or its own module.

    Raises:
        ConfigError: It is a program of neither kind.
    """
    first = job.words[0]
    if job.kind in ("python", "stdin"):
        is_scientific = settings.python in ("scientific", "python-scientific")
        return {"interpreter": "python-scientific" if is_scientific else "python"}
    if job.kind == "command" and first.endswith(".js"):
        return {"interpreter": "javascript"}
    if job.kind == "command" and first.endswith(".wasm"):
        return {"wasm_path": first}
    raise ConfigError(
        f"{first!r} can't be run by the wasm backend",
        backend="wasm",
        hint="it runs .py and .js scripts, - and .wasm modules",
    )


def as_program(job: Job) -> Job:
    """Return the job with a script of JavaScript among its files, and a module by its name.

    Raises:
        ConfigError: The script does not exist.
    """
    first, *rest = job.words
    if job.kind != "command":
        return job
    if first.endswith(".wasm"):
        return replace(job, words=(os.path.basename(first), *rest))
    if not os.path.isfile(first):
        raise ConfigError(f"there is no script {first!r}")
    script = Copy(first, os.path.basename(first))
    return replace(job, words=("qjs", script.target, *rest), files=(*job.files, script))
