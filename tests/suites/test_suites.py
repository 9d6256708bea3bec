"""What runs the frameworks' suites: its rows, its environments, and how it counts."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.suites import locks
from scripts.suites.__main__ import main
from scripts.suites.environments import environments
from scripts.suites.frameworks import FRAMEWORKS, Framework
from scripts.suites.locks import LOCKS, NEWEST, PINNED, lock_path, locked, requirements
from scripts.suites.npm import LOCK
from scripts.suites.running import Outcome, _counts
from scripts.suites.table import markdown, text
from scripts.suites.uv import SuiteError

PROJECT = Path(__file__).parent.parent.parent

REPORT = """
<testsuites><testsuite>
<testcase classname="tests.adapters.one.test_theirs.TestOne" name="a"/>
<testcase classname="tests.adapters.one.test_theirs.TestOne" name="b"><failure/></testcase>
<testcase classname="tests.adapters.one.test_theirs.TestOne" name="c">
  <skipped type="pytest.xfail" message="known"/></testcase>
<testcase classname="tests.adapters.one.test_ours" name="d"/>
<testcase classname="tests.adapters.one.test_ours" name="e"><error/></testcase>
<testcase classname="tests.adapters.one.test_ours" name="f"><skipped type="pytest.skip"/></testcase>
</testsuite></testsuites>
"""

ONE = Framework("inspect", extra="inspect", pins={"inspect-ai": "0.3.285"})


def outcome(**given: Any) -> Outcome:
    numbers = dict.fromkeys(
        ("passed", "failed", "skipped", "xfailed", "suite_passed", "suite_all"), 0
    )
    known = {"framework": "inspect", "version": "1", "kind": "pinned"}
    return Outcome(**{**known, **numbers, "types_ok": True, "seconds": 1.0, **given})


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=lambda one: one.name)
def test_each_framework_has_all_that_its_row_says(framework: Framework) -> None:
    with open(PROJECT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    wanted = [
        PROJECT / "src/ringfence/adapters" / f"{framework.name}.py",
        PROJECT / "tests/adapters" / framework.name / "__init__.py",
        *(PROJECT / "examples" / name for name in framework.examples),
    ]
    if framework.suite:
        wanted.append(PROJECT / "tests/adapters" / framework.name / f"{framework.suite}.py")
    assert [path for path in wanted if not path.is_file()] == []
    assert any(line.startswith(framework.distribution) for line in extras[framework.extra])
    assert set(framework.extras) <= set(extras)


def write_lock(framework: Framework, kind: str, version: str) -> None:
    asked = [f"# asked for: {line}" for line in requirements(framework, kind)]
    lock_path(framework, kind).write_text("\n".join([*asked, f"inspect-ai=={version} \\"]), "utf-8")


def test_one_environment_serves_both_if_the_pinned_version_is_the_newest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def kinds(wanted: Sequence[str]) -> list[tuple[str, tuple[str, ...], str]]:
        found = environments(ONE, wanted)
        return [(one.version, one.kinds, one.home.name) for one in found]

    monkeypatch.setattr(locks, "LOCKS", tmp_path)
    both = (PINNED, NEWEST)
    write_lock(ONE, PINNED, "0.3.285")
    assert kinds(both) == [("0.3.285", both, "inspect-pinned")]
    assert kinds([NEWEST]) == [("0.3.285", both, "inspect-pinned")]
    write_lock(ONE, NEWEST, "0.3.300")
    assert kinds(both) == [
        ("0.3.285", (PINNED,), "inspect-pinned"),
        ("0.3.300", (NEWEST,), "inspect-newest"),
    ]
    assert kinds([NEWEST]) == [("0.3.300", (NEWEST,), "inspect-newest")]


def test_a_lock_that_something_else_was_asked_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A new row or range with an old lock: what is tested would not be what is said."""
    monkeypatch.setattr(locks, "LOCKS", tmp_path)
    write_lock(ONE, PINNED, "0.3.285")
    assert locked(ONE, PINNED) == "0.3.285"
    newer = replace(ONE, pins={"inspect-ai": "0.3.286"})
    for one, kind in ((newer, PINNED), (ONE, NEWEST)):  # another than the lock's, and none at all
        with pytest.raises(SuiteError, match=r"python -m scripts\.suites lock inspect"):
            locked(one, kind)


def test_what_is_pinned_is_installed_at_that_version_and_the_rest_in_its_major() -> None:
    framework = replace(ONE, pins={"two": "1.0", "its-tests": "3.2.1"})
    pinned, newest = requirements(framework, PINNED), requirements(framework, NEWEST)
    assert {"two==1.0", "its-tests==3.2.1"} <= set(pinned)
    assert "its-tests>=3.2.1,<4" in newest
    assert not any(line.startswith("two") for line in newest)  # the extra's range, which is in both


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=lambda one: one.name)
def test_each_lock_is_what_is_asked_for_and_has_a_hash_for_everything(framework: Framework) -> None:
    assert locked(framework, PINNED) == framework.pins[framework.distribution]
    found = [kind for kind in (PINNED, NEWEST) if lock_path(framework, kind).is_file()]
    for kind in found:
        locked(framework, kind)
        text = lock_path(framework, kind).read_text("utf-8").replace("\\\n", "")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert [line for line in lines if "==" not in line or "--hash=sha256:" not in line] == []


def test_no_lock_says_where_a_package_comes_from() -> None:
    """An address would bind everybody to the registry of whoever made the lock."""
    assert not any("://" in path.read_text("utf-8") for path in LOCKS.iterdir())
    packages = json.loads(LOCK.read_text("utf-8"))["packages"]
    theirs = [package for name, package in packages.items() if name]
    assert theirs
    assert all("resolved" not in package and package["integrity"] for package in theirs)


def test_a_report_is_counted_as_it_is(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT, "utf-8")
    assert _counts(report, "test_theirs") == {
        "passed": 2, "failed": 2, "skipped": 1, "xfailed": 1, "suite_passed": 1, "suite_all": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [{"failed": 1}, {"skipped": 1}, {"types_ok": False}, {"passed": 0}],
    ids=["failed", "skipped", "types", "empty"],
)
def test_a_run_with_anything_wrong_is_not_ok(given: dict[str, Any]) -> None:
    assert outcome(passed=1, xfailed=1).ok
    assert not outcome(**{"passed": 1, **given}).ok


def test_tables_say_what_was_run() -> None:
    one = outcome(passed=9, xfailed=1, suite_passed=7, suite_all=8)
    assert "inspect    1        pinned  9" in text([one])
    assert "| inspect-ai | 1 | pinned | 7 of 8 | 1 |" in markdown([one])
    assert "none is published" in markdown([outcome(passed=1)])


def test_an_unknown_framework_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "inspct"])
    assert caught.value.code == 2
    assert "invalid choice: 'inspct'" in capsys.readouterr().err


def test_pytest_by_itself_leaves_the_adapters_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/adapters"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 5, done.stdout + done.stderr  # nothing was collected
