"""Reports as a table for a terminal, and as Markdown in a marked block of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .measure import Summary
from .report import Line, RowReport

__all__ = ("BEGIN", "END", "amount", "markdown", "text", "write_block")

BEGIN = "<!-- benchmarks: begin, written by `python -m benchmarks --document` -->"
END = "<!-- benchmarks: end -->"

HEAD = ("what", "ours", "against", "theirs", "ratio", "n", "limit", "")


def amount(value: float, unit: str) -> str:
    """Return a number of seconds or MiB with a unit that suits its size."""
    if unit == "MiB":
        return f"{value:.2f} MiB"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"
    return f"{value:.2f} s"


def _spread(summary: Summary | None, unit: str) -> str:
    """Return `median (p95)`."""
    if summary is None:
        return ""
    if summary.n == 1:
        return amount(summary.median, unit)
    return f"{amount(summary.median, unit)} ({amount(summary.p95, unit)})"


def _ratio(summary: Summary | None) -> str:
    if summary is None:
        return ""
    return f"{summary.median:.2f}" + (f" ({summary.p95:.2f})" if summary.n > 1 else "")


def _verdict(line: Line) -> str:
    return {None: "", True: "reached", False: "missed"}[line.reached]


def _limit(line: Line) -> str:
    if line.limit is None:
        return ""
    return f"{line.limit:g}" if line.ratio else amount(line.limit, line.unit)


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.what,
        _spread(line.ours, line.unit),
        line.against,
        _spread(line.other, line.unit),
        _ratio(line.ratio),
        str(line.ours.n),
        _limit(line),
        _verdict(line),
    )


def _remarks(row: RowReport) -> list[str]:
    """Return what a row has to say beside its numbers, a sentence each."""
    remarks = [f"{line.what}: {line.note}" for line in row.lines if line.note]
    for line in row.lines:
        parts = [f"{name} {_spread(part, line.unit)}" for name, part in line.parts.items()]
        if parts:
            remarks.append(f"{line.what}, in parts: {', '.join(parts)}")
    remarks += [f"not run: {reason}" for reason in row.not_run]
    if row.fault:
        remarks.append(f"FAILED: {row.fault}")
    return remarks


def text(reports: Sequence[RowReport]) -> str:
    """Return the reports as a table of plain text."""
    cells = [[HEAD, *map(_cells, row.lines)] for row in reports]
    widths = [max(len(row[i]) for table in cells for row in table) for i in range(len(HEAD))]
    out = []
    for row in reports:
        out.append(f"\n{row.title} [{row.name}]")
        shown = (HEAD, *map(_cells, row.lines)) if row.lines else ()
        out += ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in shown]
        out += [f"  {remark}" for remark in _remarks(row)]
    return "\n".join(out)


def markdown(reports: Sequence[RowReport], facts: Mapping[str, str]) -> str:
    """Return the machine and the reports as Markdown."""
    out = ["| machine | |", "|---|---|"]
    out += [f"| {name} | {_escape(value)} |" for name, value in facts.items()]
    for row in reports:
        out += ["", f"### {row.title}", ""]
        if row.lines:
            out += ["| " + " | ".join(HEAD).strip() + " |", "|---" * len(HEAD) + "|"]
            out += ["| " + " | ".join(map(_escape, _cells(line))) + " |" for line in row.lines]
            out.append("")
        out += [f"- {_escape(remark)}" for remark in _remarks(row)]
    return "\n".join(out) + "\n"


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def write_block(page: Path, block: str) -> None:
    """Replace what stands between a page's two marks.

    Raises:
        ValueError: The page does not have both marks, once each and in order.
    """
    content = page.read_text("utf-8")
    before, begin, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"{page} needs the line {BEGIN!r}, and after it {END!r}, once each")
    page.write_text(f"{before}{BEGIN}\n\n{block.strip()}\n\n{END}{after}", "utf-8")
