"""`ringfence ps` and `ringfence reap`: the sandboxes of this machine, and what dead owners left.

Those of a cluster too, where the backend that was chosen is Kubernetes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import anyio
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import inventory
from ..settings import Settings
from . import cluster
from .container import reap_engine
from .words import one_line, span

__all__ = ("ps", "reap")


@dataclass(frozen=True)
class _Row:
    """One sandbox, as both ways of printing have it.

    Attributes:
        shown: What is known of it, as JSON.
        pid: Its outermost process here, or None.
        owner: The process that holds it: a pid, or `pid@host` in a cluster.
    """

    shown: Mapping[str, Any]
    pid: int | None
    owner: str

    @property
    def is_alive(self) -> bool:
        return bool(self.shown["alive"])


def ps(settings: Settings, *, as_json: bool) -> None:
    """Print every sandbox that this user's processes hold or have left behind.

    Raises:
        SandboxError: The cluster can't be looked at.
    """
    rows = _here()
    if cluster.is_asked_for(settings):
        known = {row.shown["id"] for row in rows}
        rows += [row for row in _in_cluster(settings) if row.shown["id"] not in known]
    if as_json:
        print(json.dumps([row.shown for row in rows], indent=2))
        return
    console = Console(highlight=False)
    if not rows:
        console.print("no sandboxes")
        return
    console.print(_table(rows))
    if not all(row.is_alive for row in rows):
        console.print("\n`ringfence reap` removes what is left over")


def _here() -> list[_Row]:
    return [
        _Row(
            {**asdict(item.entry), "slot": item.slot, "alive": item.alive},
            item.entry.pid,
            str(item.entry.owner_pid),
        )
        for item in inventory.scan()
    ]


def _in_cluster(settings: Settings) -> list[_Row]:
    where = {"backend": "kubernetes", "namespace": cluster.namespace(settings)}
    found = anyio.run(cluster.kept, settings)
    return [_Row({**asdict(item), **where}, None, item.owner or "-") for item in found]


def _table(rows: list[_Row]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("Sandbox", "Backend", "State", "Age", "Pid", "Owner"):
        table.add_column(title, no_wrap=True)
    table.add_column("Labels", overflow="ellipsis", no_wrap=True)
    now = time.time()
    for row in rows:
        shown = row.shown
        labels = " ".join(f"{key}={value}" for key, value in sorted(shown["labels"].items()))
        table.add_row(
            Text(one_line(shown["id"])),
            shown["backend"],
            Text("live", "green") if row.is_alive else Text("left over", "red"),
            span(max(0.0, now - shown["created"])),
            str(row.pid or "-"),
            Text(one_line(row.owner)),
            Text(one_line(labels)),
        )
    return table


def reap(settings: Settings, *, as_json: bool) -> None:
    """Remove the sandboxes of dead owners and say how many that was.

    Raises:
        SandboxError: The cluster can't be looked at; nothing was removed anywhere.
    """
    reaped = 0
    if cluster.is_asked_for(settings):
        reaped = anyio.run(cluster.reap_namespace, settings)
    reaped += inventory.reap()
    in_engine, fault = anyio.run(reap_engine, settings)
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
