"""What runs the frameworks' suites: its rows, its environments, and how it counts."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.suites import environments
from scripts.suites.__main__ import main
from scripts.suites.environments import Environment
from scripts.suites.frameworks import FRAMEWORKS, Framework
from scripts.suites.running import Outcome, _counts
from scripts.suites.table import markdown, text

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


def test_one_environment_serves_both_if_the_pinned_version_is_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kinds(newest: str, wanted: Sequence[str]) -> list[tuple[str, tuple[str, ...], str]]:
        monkeypatch.setattr(environments, "_newest", lambda _: newest)
        made = environments.environments(ONE, wanted)
        return [(one.version, one.kinds, one.home.name) for one in made]

    both = ("pinned", "newest")
    assert kinds("0.3.285", both) == [("0.3.285", both, "inspect-pinned")]
    assert kinds("0.3.285", ("newest",)) == [("0.3.285", ("newest",), "inspect-pinned")]
    assert kinds("0.3.300", both) == [
        ("0.3.285", ("pinned",), "inspect-pinned"),
        ("0.3.300", ("newest",), "inspect-newest"),
    ]


def test_what_is_pinned_is_installed_at_that_version_and_the_rest_in_its_major() -> None:
    framework = Framework("two", extra="two", pins={"two": "1.0", "its-tests": "3.2.1"})
    pinned = environments._requirements(Environment(framework, "1.0", ("pinned",)))
    newest = environments._requirements(Environment(framework, "1.5", ("newest",)))
    assert pinned[:2] == ["two==1.0", "its-tests==3.2.1"]
    assert newest[:2] == ["two==1.5", "its-tests>=3.2.1,<4"]


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
