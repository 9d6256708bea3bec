"""What the command says: lines on stderr, sizes and times for people."""

from __future__ import annotations

import os
import re

__all__ = ("one_line", "say", "size", "span")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def one_line(text: str) -> str:
    """Return a text on one line, without what could steer a terminal."""
    return _CONTROL.sub(" ", text).strip()


def say(text: str, *, before: str = "") -> None:
    """Write one line of our own to stderr, whoever may have closed it."""
    line = f"{before}ringfence: {one_line(text)}\n".encode("utf-8", "backslashreplace")
    try:
        os.write(2, line)
    except OSError:
        return  # nobody reads it; the exit code says it too


def size(count: int) -> str:
    """Return a number of bytes for people: `850 B`, `1.2 KiB`, `512 MiB`."""
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.3g} TiB"


def span(seconds: float) -> str:
    """Return a time for people: `850 ms`, `1.5 s`, `12 min`, `3 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86400:.0f} d"
