"""Timing in rounds, and the statistics of what was timed."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import anyio

__all__ = (
    "TOTAL",
    "CheckError",
    "Side",
    "Summary",
    "Times",
    "alternate",
    "check",
    "percentile",
    "ratios",
    "summarize",
    "totals",
)

TOTAL = "total"

Times = dict[str, float]
"""Seconds of one go: `total`, which ratios are made of, and whatever parts a side tells apart."""

Side = Callable[[], Awaitable[Times]]
"""Does a thing once, checks that it was done, and returns how long it took without the check."""


class CheckError(Exception):
    """What was timed was not done, or not with the protection that it must have."""


def check(holds: bool, otherwise: str) -> None:
    """Raise a `CheckError` that says what is wrong, unless it holds."""
    if not holds:
        raise CheckError(otherwise)


@dataclass(frozen=True)
class Summary:
    """A sample in a few numbers, in the unit of its values."""

    n: int
    median: float
    p95: float
    p99: float
    least: float
    most: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarize(values: Sequence[float]) -> Summary:
    """Return the summary of at least one value."""
    return Summary(
        n=len(values),
        median=median(values),
        p95=percentile(values, 0.95),
        p99=percentile(values, 0.99),
        least=min(values),
        most=max(values),
    )


async def alternate(
    sides: Mapping[str, Side], rounds: int, *, pause: float = 0.0, warm_up: int = 1
) -> dict[str, list[Times]]:
    """Run every side once in each round, in turn, and return what each took.

    Args:
        sides: By name; they run in this order.
        rounds: How many count.
        pause: Seconds to wait before each, so that what the kernel still clears away of the one
            before (namespaces above all) is not charged to the next.
        warm_up: Rounds before those that count.
    """
    taken: dict[str, list[Times]] = {name: [] for name in sides}
    for number in range(-warm_up, rounds):
        for name, side in sides.items():
            if pause:
                await anyio.sleep(pause)
            times = await side()
            if number >= 0:
                taken[name].append(times)
    return taken


def totals(taken: Sequence[Times], part: str = TOTAL) -> list[float]:
    """Return one part of each go."""
    return [times[part] for times in taken]


def ratios(ours: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return ours over the other, round by round."""
    return [a / b for a, b in zip(ours, other, strict=True)]
