"""The framework's examples run as they stand, without a model and without a key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.suites.frameworks import FRAMEWORKS

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FRAMEWORKS[os.environ["RINGFENCE_SUITE"]].examples)
def test_it_runs_from_any_directory_and_prints_something(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
