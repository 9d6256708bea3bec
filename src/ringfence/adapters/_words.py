"""What a framework is told in words, because its result has no field for it."""

from __future__ import annotations

from ..models import Result

__all__ = ("cut_note", "with_note")


def cut_note(result: Result) -> str:
    """Return a line that says what of the output was not kept, or nothing if all was."""
    told = [
        f"of {total} bytes of {name} only the first {len(kept)} were kept"
        for name, kept, total in (
            ("stdout", result.stdout, result.stdout_bytes),
            ("stderr", result.stderr, result.stderr_bytes),
        )
        if total > len(kept)
    ]
    return f"[cut: {', and '.join(told)}]\n" if told else ""


def with_note(text: str, note: str) -> str:
    """Return a text with a note as its last line."""
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{note}" if note else text
