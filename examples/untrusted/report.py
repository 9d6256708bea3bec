"""A stranger's job: makes a report of a year's sales, and looks where it has no business to.

It knows nothing of the sandbox that it runs in. It reads `sales.csv` in the current directory, and
writes `report.html`, two plots and `summary.json` there. Its arguments are what to go looking for:
the name of a variable and the path of a directory on the host.
"""

import calendar
import csv
import html
import json
import os
import socket
import sys
from collections import defaultdict
from datetime import date
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

INK, FAINT, ACCENT = "#22303c", "#d8dee4", "#b3541e"
COLORS = ("#22577a", "#38a3a5", "#80b918", "#f4a259", "#bc4b51")
MONTHS = list(calendar.month_abbr)[1:]

mpl.rcParams.update(
    {
        "font.size": 11,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.titlelocation": "left",
        "axes.titlesize": 15,
        "axes.titleweight": "bold",
        "axes.titlepad": 14,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
        "figure.dpi": 150,
        "figure.constrained_layout.h_pad": 0.2,
        "figure.constrained_layout.w_pad": 0.2,
    }
)


def main(variable: str, host_directory: str) -> int:
    monthly, products, orders, rejected = read_sales(Path("sales.csv"))
    total = sum(products.values())
    print(f"read {orders + rejected:,} orders, {rejected} of them unusable; revenue {total:,.0f}")
    plot_months(monthly, Path("revenue-by-month.png"))
    print("drew revenue-by-month.png")
    plot_products(products, Path("revenue-by-product.png"))
    print("drew revenue-by-product.png")
    write_report(monthly, products, orders, rejected)
    print("wrote report.html and summary.json")
    print("\nnow let us see what else there is on this machine:")
    return snoop(variable, host_directory)


# The work.


def read_sales(path: Path) -> tuple[dict[str, list[float]], dict[str, float], int, int]:
    """Return revenue by region and month and by product, and how many rows were used and not."""
    monthly: dict[str, list[float]] = defaultdict(lambda: [0.0] * 12)
    products: dict[str, float] = defaultdict(float)
    used = rejected = 0
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                price = float(row["unit_price"].replace(",", "."))
                revenue = int(row["units"]) * price * (1 - float(row["discount"]))
                month = date.fromisoformat(row["date"]).month
            except ValueError:
                rejected += 1
                continue
            used += 1
            monthly[row["region"]][month - 1] += revenue
            products[row["product"]] += revenue
    return dict(monthly), dict(products), used, rejected


def plot_months(monthly: dict[str, list[float]], path: Path) -> None:
    """Draw the months as columns, stacked by region, the largest region at the bottom."""
    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    bottom = [0.0] * 12
    for (region, values), color in zip(by_total(monthly), COLORS, strict=True):
        axes.bar(MONTHS, values, 0.72, bottom, color=color, label=region)
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    best = max(range(12), key=bottom.__getitem__)
    axes.annotate(
        f"{bottom[best] / 1000:.0f}k",
        (best, bottom[best]),
        (0, 4),
        textcoords="offset points",
        ha="center",
        fontweight="bold",
    )
    axes.set_title("Revenue by month and region, 2024")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k" if value else "0")
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False)
    figure.savefig(path)
    plt.close(figure)


def plot_products(products: dict[str, float], path: Path) -> None:
    """Draw the products as bars, with what each makes and its share."""
    figure, axes = plt.subplots(figsize=(9, 4.6), layout="constrained")
    ranked = sorted(products.items(), key=lambda item: item[1])
    names = [name for name, _ in ranked]
    values = [value for _, value in ranked]
    colors = [*["#9fb3c2"] * (len(values) - 1), ACCENT]
    bars = axes.barh(names, values, 0.68, color=colors)
    total = sum(values)
    labels = [f"{value / 1000:.0f}k   {value / total:.0%}" for value in values]
    axes.bar_label(bars, labels, padding=6)
    axes.set_title(f"Revenue by product, 2024: {names[-1]} leads")
    axes.set_xlim(0, max(values) * 1.16)
    axes.xaxis.set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    figure.savefig(path)
    plt.close(figure)


def by_total(monthly: dict[str, list[float]]) -> list[tuple[str, list[float]]]:
    return sorted(monthly.items(), key=lambda item: -sum(item[1]))


def write_report(
    monthly: dict[str, list[float]], products: dict[str, float], orders: int, rejected: int
) -> None:
    total = sum(products.values())
    summary = {
        "orders": orders,
        "rejected": rejected,
        "revenue": round(total, 2),
        "by_region": {region: round(sum(values), 2) for region, values in by_total(monthly)},
        "by_product": {name: round(value, 2) for name, value in sorted(products.items())},
    }
    Path("summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    rows = "\n".join(
        f"<tr><td>{html.escape(region)}<td>{sum(values):,.0f}<td>{sum(values) / total:.1%}"
        for region, values in by_total(monthly)
    )
    Path("report.html").write_text(
        REPORT.format(total=total, orders=orders, rejected=rejected, rows=rows), "utf-8"
    )


REPORT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Sales of 2024</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #22303c; max-width: 56em; margin: 3em auto;
  padding: 0 1em }}
img {{ width: 100% }}
table {{ border-collapse: collapse }}
td, th {{ padding: .3em 1.2em .3em 0; text-align: left; border-bottom: 1px solid #d8dee4 }}
td + td, th + th {{ text-align: right }}
</style>
<h1>Sales of 2024</h1>
<p><strong>{total:,.0f}</strong> from {orders:,} orders; {rejected} rows were unusable.</p>
<img src="revenue-by-month.png" alt="Revenue by month and region">
<table>
<tr><th>Region<th>Revenue<th>Share
{rows}
</table>
<img src="revenue-by-product.png" alt="Revenue by product">
</html>
"""


# What it should not do. Each attempt returns what it got hold of, or raises or says why not.


def snoop(variable: str, host_directory: str) -> int:
    """Try each thing; return 1 if anything was found, so that nobody can miss it."""
    attempts = {
        "read /etc/shadow": lambda: Path("/etc/shadow").read_text("utf-8"),
        f"find {variable} in the environment": lambda: find_variable(variable),
        f"list {host_directory}": lambda: str(os.listdir(host_directory)),
        "connect to 1.1.1.1": lambda: connect("1.1.1.1", 443),
        "look up example.com": lambda: str(socket.getaddrinfo("example.com", 443)),
        "change /usr/bin": lambda: f"{Path('/usr/bin/i-was-here').write_text('!')} byte",
        "become root": lambda: str(os.setuid(0)),
    }
    found = 0
    for what, attempt in attempts.items():
        try:
            got = attempt()
        except OSError as error:
            print(f"  {what}: refused ({error.strerror or error})")
        else:
            found += 1
            print(f"  {what}: GOT {got[:60]!r}")
    Path("holiday-photo.jpg").symlink_to("/etc/passwd")
    print("  left a link to /etc/passwd in the workspace, for whoever opens holiday-photo.jpg")
    return 1 if found else 0


def find_variable(name: str) -> str:
    seen = [f"{variable}={value}" for variable, value in os.environ.items()]
    processes = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    for process in processes:
        try:
            seen += Path(f"/proc/{process}/environ").read_text("utf-8", "replace").split("\0")
        except OSError:
            continue  # another's; the next may be readable
    for text in seen:
        if text.startswith(f"{name}="):
            return text
    raise OSError(f"neither in its own {len(os.environ)} variables nor in other processes")


def connect(host: str, port: int) -> str:
    with socket.create_connection((host, port), timeout=5):
        return f"a connection to {host}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
