"""The benchmarks' statistics, tables and verdicts; and one short run of all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from benchmarks import __main__ as program
from benchmarks import table
from benchmarks.hardening import parse_protection
from benchmarks.measure import (
    TOTAL,
    CheckError,
    Side,
    Times,
    alternate,
    check,
    percentile,
    ratios,
    summarize,
)
from benchmarks.report import Line, RowReport, compare
from benchmarks.rows import ROWS, Row
from benchmarks.settings import Settings
from ringfence.errors import BackendUnavailableError, SandboxLostError

PROJECT = Path(__file__).parent.parent.parent
OF_ENGINES = {"container", "pool"}
OF_CLUSTERS = {"kubernetes"}


def times(*seconds: float) -> list[Times]:
    return [{TOTAL: value} for value in seconds]


def line(ratio: float = 0.5, limit: float | None = 1.0) -> Line:
    return Line(
        "a thing",
        summarize([ratio]),
        against="another",
        other=summarize([1.0]),
        ratio=summarize([ratio]),
        limit=limit,
    )


# Statistics.


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 10), (0.95, 19), (0.99, 20), (1.0, 20), (0.0, 1)]
)
def test_a_percentile_is_a_value_of_the_sample(share: float, expected: int) -> None:
    assert percentile(list(range(20, 0, -1)), share) == expected


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 0.95) == 7.0


def test_a_summary_does_not_hang_on_the_order() -> None:
    found = summarize([3.0, 1.0, 2.0, 100.0])
    assert (found.n, found.median, found.least, found.most) == (4, 2.5, 1.0, 100.0)
    assert found.p95 == found.p99 == 100.0


def test_ratios_are_made_round_by_round() -> None:
    """A median over a median would hide that both sides slowed down together."""
    taken = {"ours": times(1, 2, 40), "theirs": times(2, 4, 20)}
    found = compare("it", taken)
    assert ratios([1, 2, 40], [2, 4, 20]) == [0.5, 0.5, 2.0]
    assert found.ratio is not None
    assert found.ratio.median == 0.5
    assert found.against == "theirs"


def test_rounds_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratios([1.0], [1.0, 2.0])


def test_parts_are_told_beside_the_total() -> None:
    ours: list[Times] = [{TOTAL: 3.0, "create": 2.0}, {TOTAL: 5.0, "create": 4.0}]
    found = compare("it", {"ours": ours, "theirs": times(1, 1)})
    assert {name: part.median for name, part in found.parts.items()} == {"create": 3.0}


def test_sides_run_in_turn_and_the_warm_up_does_not_count() -> None:
    ran = []

    def side(name: str) -> Side:
        async def run() -> Times:
            ran.append(name)
            return {TOTAL: float(len(ran))}

        return run

    taken = anyio.run(lambda: alternate({"a": side("a"), "b": side("b")}, 2, warm_up=1))
    assert "".join(ran) == "ababab"
    assert taken == {"a": times(3, 5), "b": times(4, 6)}


def test_a_check_says_what_is_wrong() -> None:
    check(True, "fine")
    with pytest.raises(CheckError, match="is wrong"):
        check(False, "this is wrong")


# Lines and their limits.


@pytest.mark.parametrize(("ratio", "reached"), [(0.5, True), (1.0, True), (1.01, False)])
def test_the_median_ratio_is_what_is_judged(ratio: float, reached: bool) -> None:
    assert line(ratio).reached is reached


def test_without_a_ratio_the_worst_value_is_judged() -> None:
    found = Line("memory", summarize([1.0, 1.0, 30.0]), unit="MiB", limit=20.0)
    assert (found.judged, found.reached) == (30.0, False)


def test_without_a_limit_nothing_is_judged() -> None:
    assert line(limit=None).reached is None


# Protection.

STATUS = """\
Name:\tcat
Uid:\t65534\t65534\t65534\t65534
CapInh:\t0000000000000000
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t0000000000000000
CapAmb:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
Seccomp_filters:\t1
net:[4026532999]
"""


def test_the_look_from_inside_is_understood() -> None:
    found = parse_protection(STATUS)
    assert (found.uid, found.capabilities, found.no_new_privs) == (65534, 0, True)
    assert found.seccomp
    assert found.network == "net:[4026532999]"


@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_a_capability_in_any_set_is_seen(name: str) -> None:
    said = STATUS.replace(f"{name}:\t0000000000000000", f"{name}:\t0000000000000400")
    assert parse_protection(said).capabilities == 0x400


@pytest.mark.parametrize("mode", ["0", "1"])
def test_only_a_filter_counts_as_seccomp(mode: str) -> None:
    assert not parse_protection(STATUS.replace("Seccomp:\t2", f"Seccomp:\t{mode}")).seccomp


# Tables.


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.0009512, "s", "0.951 ms"),
        (0.01234, "s", "12.3 ms"),
        (0.4321, "s", "432 ms"),
        (0.9996, "s", "1.00 s"),
        (75.0, "s", "75.00 s"),
        (0.381, "MiB", "0.38 MiB"),
    ],
)
def test_an_amount_has_a_unit_that_suits_it(value: float, unit: str, shown: str) -> None:
    assert table.amount(value, unit) == shown


def test_a_table_shows_medians_ratio_limit_and_verdict() -> None:
    shown = table.text([RowReport("row", "A row", [line(0.5), line(2.0)])])
    assert "A row [row]" in shown
    kept, missed = [part for part in shown.splitlines() if "a thing" in part]
    assert " ".join(kept.split()) == "a thing 500 ms another 1.00 s 0.50 1 1 reached"
    assert missed.endswith("missed")


def test_a_table_tells_what_was_not_run_and_what_failed() -> None:
    shown = table.text([RowReport("row", "A row", fault="it broke", not_run=["no daemon"])])
    assert "not run: no daemon" in shown
    assert "FAILED: it broke" in shown


def test_markdown_has_a_row_for_each_line_and_keeps_its_columns() -> None:
    odd = Line("a | b", summarize([1.0]), note="one\ntwo")
    shown = table.markdown([RowReport("row", "A row", [odd, line()])], {"kernel": "6 | x"})
    rows = [part for part in shown.splitlines() if part.startswith("| a ")]
    assert len(rows) == 2
    assert {part.replace("\\|", "").count("|") for part in rows} == {len(table.HEAD) + 1}
    assert "| kernel | 6 \\| x |" in shown
    assert "- a \\| b: one two" in shown


def test_only_the_marked_block_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{table.BEGIN}\nold\n{table.END}\n\nafter\n", "utf-8")
    table.write_block(page, "new\n")
    table.write_block(page, "newer\n")
    assert page.read_text("utf-8") == (
        f"before\n\n{table.BEGIN}\n\nnewer\n\n{table.END}\n\nafter\n"
    )


@pytest.mark.parametrize(
    "content",
    [
        "no marks",
        table.BEGIN,
        f"{table.END}\n{table.BEGIN}",
        f"{table.BEGIN}\n{table.END}\n{table.END}",
        f"{table.BEGIN}\n{table.BEGIN}\n{table.END}",
    ],
)
def test_a_page_without_its_two_marks_is_left_alone(tmp_path: Path, content: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(content, "utf-8")
    with pytest.raises(ValueError, match="needs the line"):
        table.write_block(page, "new")
    assert page.read_text("utf-8") == content


def test_the_page_of_this_project_has_the_block() -> None:
    content = (PROJECT / "docs" / "performance.md").read_text("utf-8")
    assert content.count(table.BEGIN) == content.count(table.END) == 1
    assert "not run yet" not in content


# The program.


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    """Stand in for the real rows, with what the test puts in."""
    found: list[Row] = []
    monkeypatch.setattr(program, "ROWS", found)
    return found


def giving(*lines: Line, error: BaseException | None = None, not_run: Sequence[str] = ()) -> Row:
    async def run(_settings: Settings, reasons: list[str]) -> list[Line]:
        reasons += not_run
        if error is not None:
            raise error
        return list(lines)

    return Row("row", "A row", run)


def test_a_slow_machine_does_not_fail_a_run(
    rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.append(giving(line(99.0)))
    assert program.main(["--json", str(tmp_path / "found.json")]) == 0
    said = capsys.readouterr().out
    assert "0 of 1 limits were kept." in said
    assert "missed: a thing: 99.00, not 1" in said


@pytest.mark.parametrize(
    "error",
    [
        CheckError("wrong output"),
        SandboxLostError("wrong output"),
        ExceptionGroup("tasks", [ExceptionGroup("inner", [CheckError("wrong output")])]),
    ],
)
def test_a_check_that_fails_fails_the_run_and_no_other_row(
    rows: list[Row], tmp_path: Path, error: BaseException
) -> None:
    rows += [giving(error=error), giving(line())]
    path = tmp_path / "found.json"
    assert program.main(["--json", str(path)]) == 1
    broken, fine = json.loads(path.read_text("utf-8"))["rows"]
    assert broken["fault"] == "wrong output"
    assert len(fine["lines"]) == 1


def test_a_fault_of_the_benchmark_itself_is_not_hidden(rows: list[Row], tmp_path: Path) -> None:
    group = ExceptionGroup("tasks", [CheckError("wrong output"), KeyError("ours")])
    rows.append(giving(error=group))
    with pytest.raises(ExceptionGroup):
        program.main(["--json", str(tmp_path / "found.json")])


def test_what_this_machine_lacks_is_told_and_is_no_failure(
    rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.append(giving(error=BackendUnavailableError("no namespaces"), not_run=["a part"]))
    assert program.main(["--json", str(tmp_path / "found.json")]) == 0
    said = capsys.readouterr().out
    assert "not run: a part" in said
    assert "not run: no namespaces" in said


def test_the_json_file_holds_all_figures(rows: list[Row], tmp_path: Path) -> None:
    rows.append(giving(line(0.5)))
    path = tmp_path / "deeper" / "found.json"
    program.main(["--quick", "--json", str(path)])
    found = json.loads(path.read_text("utf-8"))
    assert found["quick"] is True
    assert {"processor", "kernel", "cgroups", "python", "bwrap"} <= found["machine"].keys()
    [row] = found["rows"]
    [shown] = row["lines"]
    assert shown["ratio"] == {
        "n": 1, "median": 0.5, "p95": 0.5, "p99": 0.5, "least": 0.5, "most": 0.5,
    }  # fmt: skip
    assert (shown["limit"], shown["reached"]) == (1.0, True)


def test_a_page_is_written_from_a_whole_run_alone(
    rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows.append(giving(line()))
    page = tmp_path / "page.md"
    page.write_text(f"{table.BEGIN}\n{table.END}\n", "utf-8")
    asked = ["--document", str(page), "--json", str(tmp_path / "found.json")]
    with pytest.raises(SystemExit):
        program.main([*asked, "--quick"])
    assert "--document takes a whole run" in capsys.readouterr().err
    assert program.main(asked) == 0
    assert "### A row" in page.read_text("utf-8")


def test_rows_have_names_of_their_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.slow
@pytest.mark.timeout(330)  # half a minute where nothing else runs
@pytest.mark.skipif(sys.platform != "linux", reason="the bubblewrap backend is Linux's alone")
def test_a_quick_run_of_everything_passes_its_own_checks(tmp_path: Path) -> None:
    """Of all that needs no engine or cluster; the tests of those have the rest."""
    path = tmp_path / "found.json"
    names = {row.name for row in ROWS} - OF_ENGINES - OF_CLUSTERS
    only = [word for name in names for word in ("--only", name)]
    command = [sys.executable, "-m", "benchmarks", "--quick", "--no-peers", "--json", str(path)]
    command += only
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["name"]: row for row in json.loads(path.read_text("utf-8"))["rows"]}
    assert found.keys() == names
    empty = {name for name, row in found.items() if not row["lines"]}
    assert empty == ({"peers"} if os.geteuid() == 0 else {"peers", "memory"})
    assert found["peers"]["not_run"] == ["all of them: --no-peers was given"]
