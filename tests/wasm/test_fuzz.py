"""Mutations of a real module: a typed error or a result each time, and the host lives."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

WORDS = Path(__file__).parent / "data" / "words.wasm"


def fuzz(count: int, seeds: Sequence[int]) -> Counter[str]:
    """Try so many mutations of each seed, the seeds side by side, and count what became of them."""
    here = Path(__file__).parent.parent.parent
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.wasm.fuzz_worker", WORDS, str(count), str(seed)],
                    cwd=here,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for seed in seeds
        ]
        for worker in workers:
            stack.callback(worker.kill)
        return sum((_counted(worker, count) for worker in workers), Counter())


def _counted(worker: subprocess.Popen[str], count: int) -> Counter[str]:
    stdout, stderr = worker.communicate(timeout=3000)
    assert worker.returncode == 0, stderr[-2000:]
    found: Counter[str] = Counter(ast.literal_eval(stdout))
    assert found.pop("unmutated: exited") == 1
    assert found.total() == count
    return found


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_some_mutations_never_end_the_host() -> None:
    found = fuzz(150, [1])
    assert found["ConfigError"] > 10
    assert found["exited"] > 10


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_mutations_never_end_the_host() -> None:
    found = fuzz(5_000, [7, 8])
    print(found)
    assert set(found) <= {"ConfigError", "LimitError", "exited", "signaled", "timed_out"}
    assert found["exited"] > 1000
    assert found["signaled"] > 100
