"""Mutations of real modules: a typed error or a result each time, and the host lives."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import wasmtime

DATA = Path(__file__).parent / "data"
WORDS = DATA / "words.wasm"


def census(tmp_path: Path) -> Path:
    """Return a small module, of which a change more often meets something that runs."""
    path = tmp_path / "census.wasm"
    path.write_bytes(bytes(wasmtime.wat2wasm((DATA / "census.wat").read_text())))
    return path


def fuzz(module: Path, count: int, seeds: Sequence[int]) -> Counter[str]:
    """Try so many mutations of each seed, the seeds side by side, and count what became of them."""
    here = Path(__file__).parent.parent.parent
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.wasm.fuzz_worker", module, str(count), str(seed)],
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
    found = fuzz(WORDS, 150, [1])
    assert found["ConfigError"] > 10
    assert found["exited"] > 10


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_mutations_never_end_the_host(tmp_path: Path) -> None:
    found = fuzz(WORDS, 1_000, [7, 8]) + fuzz(census(tmp_path), 4_000, [7, 8])
    print(found)
    assert found.total() == 10_000
    assert set(found) <= {"ConfigError", "LimitError", "exited", "signaled", "timed_out"}
    assert found["exited"] > 1000
    assert found["signaled"] > 100
