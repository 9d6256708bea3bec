"""What a run came to, for a terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from .frameworks import FRAMEWORKS
from .running import Outcome

COLUMNS = ("framework", "version", "is", "passed", "failed", "skipped", "xfailed", "types", "s")


def text(outcomes: Sequence[Outcome]) -> str:
    """Return a table for a terminal."""
    rows = [COLUMNS, *(_cells(outcome) for outcome in outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def markdown(outcomes: Sequence[Outcome]) -> str:
    """Return the table of the documentation: what was run, and how much of it passed."""
    lines = [
        "| framework | version | which is | its own suite: passed | expected to fail |",
        "|---|---|---|---|---|",
    ]
    for one in outcomes:
        suite = f"{one.suite_passed} of {one.suite_all}" if one.suite_all else "none is published"
        lines.append(
            f"| {FRAMEWORKS[one.framework].distribution} | {one.version} | {one.kind} | {suite} "
            f"| {one.xfailed} |"
        )
    return "\n".join(lines)


def _cells(one: Outcome) -> tuple[str, ...]:
    numbers = (one.passed, one.failed, one.skipped, one.xfailed)
    types = "ok" if one.types_ok else "wrong"
    return (one.framework, one.version, one.kind, *map(str, numbers), types, str(one.seconds))
