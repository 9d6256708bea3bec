"""Every example runs as it stands; a stranger's code runs in the example that jails it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.suites.frameworks import FRAMEWORKS

PROJECT = Path(__file__).parent.parent


def uses_ringfence(script: Path) -> bool:
    """Tell an example from the code of a stranger, which must not run on this machine."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return any(name.partition(".")[0] == "ringfence" for name in names)


# It needs an endpoint, and has a test of its own.
ELSEWHERE = {"planner_executor_reviewer.py"}
# Those run where their framework is installed: tests/adapters/test_examples.py.
ELSEWHERE |= {name for framework in FRAMEWORKS.values() for name in framework.examples}

EXAMPLES = [
    path
    for path in sorted(filter(uses_ringfence, (PROJECT / "examples").glob("*.py")))
    if path.name not in ELSEWHERE
]
NEEDS = {"k8s_execution.py": [pytest.mark.kubernetes]}
ARGUMENTS = {"k8s_execution.py": ["ringfence-test:python"]}  # an image that the tests' cluster has
PARAMS = [pytest.param(path, marks=NEEDS.get(path.name, ()), id=path.name) for path in EXAMPLES]


def test_there_are_examples() -> None:
    assert PROJECT / "examples" / "main_job.py" in EXAMPLES


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("script", PARAMS)
def test_it_runs_from_any_directory_and_prints_something(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, script, *ARGUMENTS.get(script.name, ())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=190,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
