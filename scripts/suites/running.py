"""One environment's checks: types, tests, examples; and what became of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from .environments import CACHE, Environment
from .locks import PROJECT
from .uv import SuiteError

SUITE_VARIABLE = "RINGFENCE_SUITE"
"""Names to tests/adapters the framework whose tests can be collected in this environment."""

TESTS_SECONDS = 900


@dataclass(frozen=True)
class Outcome:
    """What became of one environment's checks.

    Attributes:
        framework, version, kind: What was run; the kind is `pinned`, `newest` or `pinned, newest`.
        passed, failed, skipped, xfailed: Numbers of tests; an error counts as failed.
        suite_passed, suite_all: Of the framework's own suite, on all backends together.
        types_ok: Whether mypy had nothing to say.
        seconds: How long it all took.
    """

    framework: str
    version: str
    kind: str
    passed: int
    failed: int
    skipped: int
    xfailed: int
    suite_passed: int
    suite_all: int
    types_ok: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything that was run is as it should be."""
        return self.types_ok and self.failed == self.skipped == 0 and self.passed > 0

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON types."""
        return asdict(self)


def check(environment: Environment, options: Sequence[str] = ()) -> Outcome:
    """Run the checks of one environment.

    Args:
        environment: It must have been made.
        options: More for pytest. With any, types are not checked and the output comes as it is
            made; else it comes at the end, and only if something is wrong.

    Raises:
        SuiteError: The tests did not come to an end.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        log = None
        if not options:
            path = CACHE / f"{environment.home.name}.log"
            log = stack.enter_context(open(path, "w+", encoding="utf-8"))
        types_ok = bool(options) or _types(environment, log)
        counts = _tests(environment, options, log)
        outcome = Outcome(
            framework=environment.framework.name,
            version=environment.version,
            kind=", ".join(environment.kinds),
            types_ok=types_ok,
            seconds=round(time.monotonic() - began, 1),
            **counts,
        )
        if log is not None and not outcome.ok:
            log.seek(0)
            print(log.read(), flush=True)
    return outcome


def _types(environment: Environment, log: IO[str] | None) -> bool:
    """Check the adapter, its tests and its examples against the framework that is installed."""
    framework = environment.framework
    files = [
        *sorted(map(str, PROJECT.glob(f"src/ringfence/adapters/{framework.name}*.py"))),
        *sorted(map(str, (PROJECT / "tests/adapters" / framework.name).glob("*.py"))),
        *(f"examples/{name}" for name in framework.examples),
    ]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--python-executable", environment.python),
            # What lies around is checked where its own requirements are installed.
            *("--follow-imports", "silent", "--disable-error-code", "unused-ignore"),
            *("--python-version", framework.python),
            *(() if framework.is_typed else ("--follow-untyped-imports",)),
            *("--no-warn-unused-configs", "--cache-dir", CACHE / f"mypy-{environment.home.name}"),
            *files,
        ],
        cwd=PROJECT,
        stdout=log,
        stderr=log,
    )
    return done.returncode == 0


def _tests(environment: Environment, options: Sequence[str], log: IO[str] | None) -> dict[str, int]:
    framework = environment.framework
    report = CACHE / f"{environment.home.name}.xml"
    report.unlink(missing_ok=True)
    process = subprocess.Popen(
        [
            *(environment.python, "-m", "pytest", "--junitxml", report, "-q", "-r", "fExX"),
            # A framework's newest version may warn of what is to come; ours may not.
            *("-o", "filterwarnings=default\nerror:::ringfence\nerror::ResourceWarning"),
            *("-o", "asyncio_default_fixture_loop_scope=function"),
            *("-o", f"cache_dir={CACHE / 'pytest'}"),
            *framework.options,
            *options,
            f"tests/adapters/{framework.name}",
            *(["tests/adapters/test_examples.py"] if framework.examples else []),
        ],
        cwd=PROJECT,
        stdout=log,
        stderr=log,
        env={**os.environ, SUITE_VARIABLE: framework.name, "VIRTUAL_ENV": str(environment.home)},
    )
    try:
        process.wait(TESTS_SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        raise SuiteError(f"{environment.home.name}: not done in {TESTS_SECONDS} s") from None
    if not report.is_file():
        raise SuiteError(f"{environment.home.name}: pytest has left no report")
    return _counts(report, framework.suite)


def _counts(report: Path, suite: str) -> dict[str, int]:
    names = ("passed", "failed", "skipped", "xfailed", "suite_passed", "suite_all")
    counts = dict.fromkeys(names, 0)
    for case in ET.parse(report).getroot().iter("testcase"):
        before = counts["passed"]
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
        elif skipped is not None:
            is_expected = skipped.get("type") == "pytest.xfail"
            counts["xfailed" if is_expected else "skipped"] += 1
        else:
            counts["passed"] += 1
        if suite and suite in case.get("classname", "").split("."):
            counts["suite_all"] += 1
            counts["suite_passed"] += counts["passed"] - before
    return counts
