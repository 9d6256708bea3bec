"""`ringfence ps` and `ringfence reap`: the sandboxes of this machine, and what dead owners left."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import anyio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import inventory
from ..settings import load_settings
from .container import reap_engine
from .words import span

__all__ = ("ps", "reap")


def ps(*, as_json: bool) -> None:
    """Print every sandbox that this user's processes hold or have left behind."""
    found = inventory.scan()
    if as_json:
        rows = [{**asdict(item.entry), "slot": item.slot, "alive": item.alive} for item in found]
        print(json.dumps(rows, indent=2))
        return
    console = Console(highlight=False)
    if not found:
        console.print("no sandboxes")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("Sandbox", "Backend", "State", "Age", "Pid", "Owner"):
        table.add_column(title, no_wrap=True)
    table.add_column("Labels", overflow="ellipsis", no_wrap=True)
    now = time.time()
    for item in found:
        entry = item.entry
        labels = " ".join(f"{key}={value}" for key, value in sorted(entry.labels.items()))
        table.add_row(
            entry.id,
            entry.backend,
            Text("live", "green") if item.alive else Text("left over", "red"),
            span(max(0.0, now - entry.created)),
            str(entry.pid or "-"),
            str(entry.owner_pid),
            Text(labels),
        )
    console.print(table)
    if not all(item.alive for item in found):
        console.print("\n`ringfence reap` removes what is left over")


def reap(*, as_json: bool) -> None:
    """Remove the sandboxes of dead owners and say how many that was."""
    reaped = inventory.reap()
    in_engine, fault = anyio.run(reap_engine, load_settings({}))
    reaped += in_engine
    left = sum(not item.alive for item in inventory.scan())
    if as_json:
        print(json.dumps({"reaped": reaped, "left": left, "fault": fault or None}))
        return
    print(f"removed {reaped} {'sandbox' if reaped == 1 else 'sandboxes'} of dead owners")
    if fault:
        print(f"the container engine could not be looked at: {fault}")
    if left:
        print(f"{left} can't be removed yet: a process of theirs does not end")
