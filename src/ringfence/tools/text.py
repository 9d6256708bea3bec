"""What a model reads: bounded, and never longer than it was told."""

from __future__ import annotations

from ..models import TIMEOUT_MARKER, Result

__all__ = ("MAX_TEXT", "command_text", "cut", "whole_characters")

MAX_TEXT = 30_000
"""Characters of a program's output that a model gets from one call."""

_HEAD = 2 / 3
_HOW_TO_GET_THE_REST = (
    "run it again with its output in a file, such as `command >out.txt 2>&1`, "
    "and read that in parts with read_file"
)


def command_text(result: Result, max_text: int = MAX_TEXT) -> str:
    """Return what a command did, as text for a model.

    Stdout comes first, then stderr under a line of its own, then what was cut, and last how the
    command ended: that line is always ours.
    """
    # What stdout does not need is stderr's, and each has a half in any case.
    half = max_text // 2
    err_length = min(len(result.stderr_text), half)
    out = cut(result.stdout_text, max_text - err_length)
    err = cut(result.stderr_text, max(half, max_text - len(result.stdout_text)))
    parts = [out] if out else []
    if err:
        parts.append(f"[stderr]\n{err}")
    if not parts:
        parts.append("(no output)")
    if lost := _what_is_cut(result, out, err):
        parts.append(f"[cut: {lost}; to get the rest, {_HOW_TO_GET_THE_REST}]")
    parts.append(_end(result))
    return "\n".join(part.removesuffix("\n") for part in parts)


def _what_is_cut(result: Result, out: str, err: str) -> str:
    told = []
    for name, shown, whole, kept, total in (
        ("stdout", out, result.stdout_text, len(result.stdout), result.stdout_bytes),
        ("stderr", err, result.stderr_text, len(result.stderr), result.stderr_bytes),
    ):
        if total > kept:
            told.append(f"of {total} bytes of {name} only the first {kept} were kept")
        if shown != whole:
            told.append(f"the middle of {name} is left out")
    return ", and ".join(told)


def _end(result: Result) -> str:
    if result.timed_out:
        return TIMEOUT_MARKER
    if result.out_of_memory:
        return f"[exit code: {result.exit_code}, ended by the memory limit]"
    return f"[exit code: {result.exit_code}]"


def cut(text: str, most: int) -> str:
    """Return at most about `most` characters: the beginning and the end, and what is between."""
    if len(text) <= most:
        return text
    head = int(most * _HEAD)
    tail = most - head
    return f"{text[:head]}\n[... {len(text) - most} characters left out ...]\n{text[-tail:]}"


def whole_characters(data: bytes) -> bytes:
    """Cut the beginning of a character from the end of UTF-8 that goes on."""
    for back in range(1, min(4, len(data))):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back else data
    return data
