"""How a program ended: by itself, by a trap, or because it was stopped."""

from __future__ import annotations

import re
from typing import Any

import wasmtime

from ..errors import LimitError
from ..models import Exit, ExitReason
from ._wasm_engine import take_error, take_trap
from ._wasm_guest import Guest

__all__ = ("EXIT_TRAP", "ended", "stopped")

EXIT_TRAP = 134
"""The exit code of a program that the runtime ended for what it did, as abort() gives it."""

_EXIT_TIMED_OUT = 124
_TRAPS = {item.value: item.name for item in wasmtime.TrapCode}
_FRAMES_SHOWN = 8
"""Functions of the runtime's backtrace that a trap's message keeps."""

_FRAME = re.compile(r"\d+:\s+(0x|<unknown>)")


def ended(guest: Guest, error: Any, trap: Any, *, thrown: bool = False) -> Exit:
    """Say how a call ended that did not return, and free what the runtime says of it.

    Args:
        guest: Whose call.
        error: The runtime's error, if there is one.
        trap: The runtime's trap, if there is one.
        thrown: Whether an exception of the program's own is on its way.
    """
    code, message = take_trap(trap) if trap else (None, "")
    status = None
    if error:
        status, message = take_error(error)
    if guest.exit_code is not None:
        return Exit(guest.exit_code, ExitReason.EXITED)
    if guest.stopped:
        return stopped(guest)
    if status is not None:
        return Exit(status, ExitReason.EXITED)
    if code is None and "exceeds" in message and "limit" in message:
        raise LimitError(
            "memory_bytes", f"the module does not fit into its limits: {message}", backend="wasm"
        )
    return Exit(EXIT_TRAP, ExitReason.SIGNALED, message=_trap_text(code, message, thrown))


def _trap_text(code: int | None, message: str, thrown: bool) -> str:
    """Say which trap it was, what the runtime says of it, and in which functions."""
    name = _TRAPS.get(-1 if code is None else code, "UNCAUGHT_EXCEPTION" if thrown else "TRAP")
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    frames = [line for line in lines if _FRAME.match(line)]
    cause = lines[-1].partition("wasm trap: ")[2] if lines else ""
    text = f"wasm trap: {name}" + (f": {cause}\n" if cause else "\n")
    return text + "".join(f"  {frame}\n" for frame in frames[:_FRAMES_SHOWN])


def stopped(guest: Guest) -> Exit:
    if guest.stopped == "timeout":
        return Exit(_EXIT_TIMED_OUT, ExitReason.TIMED_OUT)
    kind, _, number = guest.stopped.partition(" ")
    return Exit(128 + int(number if kind == "signal" else 9), ExitReason.SIGNALED)
