"""The benchmarks of pods do what they claim; how fast they are is not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..unit.test_benchmarks import OF_CLUSTERS, PROJECT
from .conftest import PATIENCE, Cluster


@pytest.mark.timeout(5 * PATIENCE)
def test_a_quick_run_passes_its_own_checks(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    only = [word for name in sorted(OF_CLUSTERS) for word in ("--only", name)]
    command = [sys.executable, "-m", "benchmarks", "--quick", "--no-peers", "--json", str(path)]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "KUBECONFIG": cluster.kubeconfig,
    }
    done = subprocess.run(
        [*command, *only],
        cwd=PROJECT,
        env=env,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["name"]: row for row in json.loads(path.read_text("utf-8"))["rows"]}
    assert found.keys() == OF_CLUSTERS
    assert all(row["lines"] for row in found.values())
