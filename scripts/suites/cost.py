"""What an adapter adds to a call, measured in the framework's own environment.

    python -m scripts.suites cost strands        every pair of that framework

`tests/adapters/NAME/cost.py` has `pairs()`, a context manager: for each operation a call by the
adapter and the same call without it. The two are made in turns, and the medians are compared.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from statistics import median
from typing import Any

import anyio

from .environments import Environment
from .locks import PROJECT

__all__ = ("Pairs", "measure")

Call = Callable[[], Awaitable[Any]]
Pairs = Mapping[str, tuple[Call, Call]]
"""By the operation's name: with the adapter, and without it."""

ROUNDS = 300
WARM_UP = 20


def measure(environment: Environment) -> dict[str, float]:
    """Return the milliseconds that the adapter adds, by operation."""
    done = subprocess.run(
        [environment.python, "-m", "scripts.suites.cost", environment.framework.name],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


async def _added(ours: Call, plain: Call) -> float:
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM_UP + ROUNDS):
        for times, call in zip(taken, (ours, plain), strict=True):
            began = time.perf_counter()
            await call()
            if number >= WARM_UP:
                times.append(time.perf_counter() - began)
    return round((median(taken[0]) - median(taken[1])) * 1e3, 3)


async def _main(name: str) -> dict[str, float]:
    module = importlib.import_module(f"tests.adapters.{name}.cost")
    async with module.pairs() as pairs:
        return {operation: await _added(*calls) for operation, calls in pairs.items()}


if __name__ == "__main__":
    print(json.dumps(anyio.run(_main, sys.argv[1])))
