"""Runs the benchmarks: python -m benchmarks [--quick] [--only NAME] [--json FILE] ..."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from ringfence.errors import BackendUnavailableError, SandboxError

from . import machine, table
from .measure import CheckError
from .report import RowReport
from .rows import ROWS, Row
from .settings import Settings

_JSON = Path("build/benchmarks.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for, print it, and return 1 only if a check failed."""
    asked = _parse(argv)
    settings = Settings(quick=asked.quick, peers=asked.peers)
    facts = machine.facts()
    for name, value in facts.items():
        print(f"{name}: {value}")
    reports = [_measured(row, settings) for row in _chosen(asked.only)]
    print(table.text(reports))
    found = {"machine": facts, "quick": asked.quick, "rows": [one.to_dict() for one in reports]}
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    if asked.document is not None:
        table.write_block(asked.document, table.markdown(reports, facts))
    print(_verdict(reports), f"All figures are in {asked.json}.", sep="\n")
    return 1 if any(report.fault for report in reports) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it works")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=[row.name for row in ROWS],
        help="this row alone (may be repeated): " + ", ".join(row.name for row in ROWS),
    )  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE", type=Path, default=_JSON, help="default: %(default)s"
    )
    parser.add_argument(
        "--document", metavar="FILE", type=Path, help="write the tables into this page's block"
    )
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="install no other packages"
    )
    asked = parser.parse_args(argv)
    if asked.document and (asked.only or asked.quick):
        parser.error("--document takes a whole run: leave --only and --quick out")
    return asked


def _chosen(names: Sequence[str] | None) -> list[Row]:
    return [row for row in ROWS if not names or row.name in names]


def _measured(row: Row, settings: Settings) -> RowReport:
    """Measure one row; what goes wrong in it ends it alone."""
    began = time.perf_counter()
    print(f"... {row.title}", end="", flush=True, file=sys.stderr)
    not_run: list[str] = []
    try:
        lines = anyio.run(row.run, settings, not_run)
        report = RowReport(row.name, row.title, lines, not_run=not_run)
    except BackendUnavailableError as error:
        report = RowReport(row.name, row.title, not_run=[*not_run, str(error)])
    except (CheckError, SandboxError) as error:
        report = RowReport(row.name, row.title, fault=str(error), not_run=not_run)
    except BaseExceptionGroup as group:  # from tasks that ran at once: the first says it
        faults, others = group.split((CheckError, SandboxError))
        if others is not None or faults is None:
            raise
        report = RowReport(row.name, row.title, fault=str(_first(faults)), not_run=not_run)
    print(f" ({time.perf_counter() - began:.0f} s)", file=sys.stderr)
    return report


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _verdict(reports: Sequence[RowReport]) -> str:
    lines = [line for report in reports for line in report.lines if line.reached is not None]
    missed = [line for line in lines if not line.reached]
    said = f"{len(lines) - len(missed)} of {len(lines)} limits were kept."
    return said + "".join(
        f"\nmissed: {line.what}: {line.judged:.2f}, not {line.limit:g}" for line in missed
    )


if __name__ == "__main__":
    sys.exit(main())
