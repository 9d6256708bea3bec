"""What becomes of an error: a line on stderr, an object for `--json`, an exit code."""

from __future__ import annotations

import os
import traceback
from typing import Any, cast

import typer

from . import words

__all__ = ("FAULT", "print_fault", "told")

FAULT = 125
"""Our exit code where it was not the program that failed, as `timeout` and Docker have it."""

_BROKEN_PIPE = 141  # what a shell says of a program that wrote to a pipe nobody reads

# typer exports this one class of its usage errors; what all of them are is above it.
_UsageError = cast("type[Exception]", typer.BadParameter.__base__)


def told(error: Exception) -> int:
    """Say what went wrong, and return the exit code for it."""
    from ..errors import SandboxError

    error = _leaf(error)
    if os.environ.get("RINGFENCE_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):
        # What Python would still flush when it ends has no reader either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    if isinstance(error, _UsageError):
        message = cast("Any", error).format_message()
        if message:  # there is none where the help has been printed already
            words.say(f"{message} (see ringfence --help)")
    elif isinstance(error, SandboxError):
        words.say(str(error))
    elif isinstance(error, OSError):
        words.say(f"reading or writing failed: {error}")
    else:
        words.say(
            f"a fault of ringfence itself: {type(error).__name__}: {error} "
            "(RINGFENCE_DEBUG=1 shows where)"
        )
    return FAULT


def print_fault(error: Exception) -> None:
    """Print the object that stands for a result where there is none."""
    import json

    from ..errors import SandboxError
    from .run import fault

    cause = _leaf(error)
    if isinstance(cause, SandboxError):
        print(json.dumps(fault(cause), indent=2))


def _leaf(error: Exception) -> Exception:
    """Return the error that a group of them is about: the first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
