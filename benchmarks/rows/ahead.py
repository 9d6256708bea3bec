"""A Python program in a session whose sandbox has an interpreter waiting, and bare on the host."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.interpreter import find_interpreter
from ringfence.leases import MemoryLeases
from ringfence.models import Command, SandboxSpec
from ringfence.sessions import Session, SessionManager

from ..hardening import check_sandbox
from ..machine import real_python
from ..measure import TOTAL, Side, Times, alternate, check
from ..report import Line, compare
from ..settings import Settings
from .live import host_side

__all__ = ("run",)

_LIMIT = 1 / 3
_BETWEEN = 0.1
"""Seconds from one program to the next, of which an agent leaves more: the next one starts."""

_LOOK = "import os; print(open('/proc/self/status').read() + os.readlink('/proc/self/ns/net'))"


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure `print(1)`, by the same interpreter on all sides."""
    python = find_interpreter(real_python())
    path = f"{Path(python.path).parent}:/usr/bin:/bin"
    spec = SandboxSpec(mounts=python.mounts, env={"PATH": path})
    async with (
        BubblewrapBackend() as backend,
        SessionManager(backend, leases=MemoryLeases(), python_ahead=True) as ahead,
        SessionManager(backend, leases=MemoryLeases()) as plain,
    ):
        waits, ever = ahead.session("waits", spec=spec), plain.session("ever", spec=spec)
        taken = await alternate(
            {
                "ours": _side(waits),
                "subprocess.run": host_side([real_python(), "-c", "print(1)"], b"1\n"),
                "a session without it": _side(ever),
            },
            settings.rounds(100),
            pause=_BETWEEN,
            warm_up=2,
        )
        await check_sandbox(waits, _program(_LOOK))
        inside = (await waits.exec(_program("import sys; print(sys.version)"))).stdout_text
        check(inside.strip() == sys.version, f"it is {inside!r} inside")
    others = {name: times for name, times in taken.items() if name != "ours"}
    what = "print(1) by a Python that waited for it"
    return [
        compare(
            what,
            {"ours": taken["ours"], name: times},
            limit=_LIMIT if name == "subprocess.run" else None,
        )
        for name, times in others.items()
    ]


def _program(code: str) -> Command:
    return Command(("python3", "-"), stdin=code)


def _side(session: Session) -> Side:
    async def side() -> Times:
        began = time.perf_counter()
        result = await session.exec(_program("print(1)"))
        took = time.perf_counter() - began
        check(result.stdout == b"1\n", f"it wrote {result.stdout!r}")
        return {TOTAL: took}

    return side
