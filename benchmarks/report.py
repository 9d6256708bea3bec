"""What a run found, as values: lines with their limits, rows of lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .measure import Summary, Times, ratios, summarize, totals

__all__ = ("Line", "RowReport", "compare")


@dataclass(frozen=True)
class Line:
    """One thing that was measured.

    Attributes:
        what: It, in words.
        ours: Our side.
        against: The other side's name; empty where there is none.
        other: The other side.
        ratio: Ours over the other, round by round: below 1 is better than the other.
        unit: Of `ours` and `other`: `s` or `MiB`.
        limit: The most that the median ratio may be, or `ours` at its most if there is no ratio.
        parts: Of our side, where it has some.
        note: What a reader must know to read the line right.
    """

    what: str
    ours: Summary
    against: str = ""
    other: Summary | None = None
    ratio: Summary | None = None
    unit: str = "s"
    limit: float | None = None
    parts: Mapping[str, Summary] = field(default_factory=dict)
    note: str = ""

    @property
    def judged(self) -> float:
        """The number that the limit is for."""
        return self.ratio.median if self.ratio else self.ours.most

    @property
    def reached(self) -> bool | None:
        """Whether the limit was kept; None if there is none."""
        return None if self.limit is None else self.judged <= self.limit


@dataclass(frozen=True)
class RowReport:
    """What came of one row.

    Attributes:
        name: The row's.
        title: What it is about.
        lines: What was measured.
        fault: What its check found wrong; empty if nothing.
        not_run: Why it, or a part of it, was not run on this machine.
    """

    name: str
    title: str
    lines: Sequence[Line] = ()
    fault: str = ""
    not_run: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        lines = [{**asdict(line), "reached": line.reached} for line in self.lines]
        return {**asdict(self), "lines": lines}


def compare(
    what: str,
    taken: Mapping[str, Sequence[Times]],
    *,
    limit: float | None = None,
    note: str = "",
) -> Line:
    """Make a line of two sides that ran in turn; the first is ours."""
    (_, ours), (against, other) = taken.items()
    parts = [part for part in ours[0] if part != "total"]
    return Line(
        what=what,
        ours=summarize(totals(ours)),
        against=against,
        other=summarize(totals(other)),
        ratio=summarize(ratios(totals(ours), totals(other))),
        limit=limit,
        parts={part: summarize(totals(ours, part)) for part in parts},
        note=note,
    )
