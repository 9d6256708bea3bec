"""The protocol's own conformance suite, of both generations, against our server.

The suite needs a newer Node.js than many machines have: see scripts/suites/npm.py. Every scenario
that a revision requires has to pass; those that are not scored (extensions, and drafts for later
revisions) are run by the suite and don't count.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from scripts.suites import npm

from .serving import environment

PROJECT = Path(__file__).parent.parent.parent

SECONDS = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(npm.SECONDS + 2 * SECONDS + 60)]


def suite(*words: str) -> str:
    """Run the suite's command and return what it printed."""
    done = subprocess.run(
        [*npm.conformance(), *words],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


@cache
def required(revision: str) -> set[str]:
    """Return the names of the scenarios that a revision requires of a server."""
    listed = suite("list", "--server", "--requirements", revision)
    part = listed.partition("Server scenarios")[2].partition("Client scenarios")[0]
    return set(re.findall(r"^  - (\S+)$", part, re.MULTILINE))


@contextmanager
def address(backend: str) -> Iterator[str]:
    """Serve, and return the address of the endpoint."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.mcp.conformance_server", backend],
        cwd=PROJECT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate(timeout=30)
    assert server.returncode == 0


@pytest.mark.parametrize(
    "backend", ["bubblewrap", pytest.param("container", marks=pytest.mark.container)]
)
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_every_required_scenario_passes(revision: str, backend: str) -> None:
    wanted = required(revision)
    with address(backend) as url:
        told = suite("server", "--url", url, "--requirements", revision)
    summary = told.rpartition("=== SUMMARY ===")[2]
    passed = set(re.findall(r"^✓ (\S+): [1-9]\d* passed, 0 failed", summary, re.MULTILINE))
    assert len(wanted) >= 30
    assert wanted - passed == set()
