"""Much output: how fast it is drained, and what it costs this process in memory."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from ringfence.backend import Sandbox
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.models import DEFAULT_OUTPUT_BYTES, Command, ExitReason

from ..hardening import check_sandbox
from ..measure import TOTAL, Side, Times, alternate, check, summarize, totals
from ..report import Line, compare
from ..settings import Settings

__all__ = ("PeakMemory", "run")

_GB = 10**9
_MIB = 1 << 20
_GROWTH_LIMIT = 20.0  # MiB
_PIPED = "the program into cat >/dev/null"


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure a program whose output is cut at the default cap, and one that is read whole."""
    size = _GB // 20 if settings.quick else _GB
    rounds = settings.rounds(5, 2)
    async with BubblewrapBackend() as backend, await backend.create() as sandbox:
        await check_sandbox(sandbox)
        capped = await alternate(
            {"ours": capped_side(sandbox, size), _PIPED: piped_side(size)}, rounds, warm_up=0
        )
        whole = await alternate(
            {"ours": whole_side(sandbox, size), _PIPED: piped_side(size)}, rounds, warm_up=0
        )
    lines = [
        _line("drained past the cap", capped, size, 3.0),
        _line("read whole, by start() and receive()", whole, size, None),
    ]
    if not PeakMemory.works():
        not_run.append("this process's growth: /proc/self/clear_refs can't be written")
        return lines
    for name, taken in (("drained", capped), ("read whole", whole)):
        growth = summarize(totals(taken["ours"], "growth"))
        lines.append(
            Line(f"growth of this process, {name}", growth, unit="MiB", limit=_GROWTH_LIMIT)
        )
    return lines


def _line(what: str, taken: dict[str, list[Times]], size: int, limit: float | None) -> Line:
    """Make a line of times alone, with the rates as its note."""
    seconds = {name: [{TOTAL: times[TOTAL]} for times in side] for name, side in taken.items()}
    rates = [
        f"{name} {size / summarize(totals(side)).median / 1e6:,.0f} MB/s"
        for name, side in seconds.items()
    ]
    return compare(f"{size / 1e6:,.0f} MB {what}", seconds, limit=limit, note=", ".join(rates))


def _program(size: int) -> list[str]:
    return ["head", "-c", str(size), "/dev/zero"]


def capped_side(sandbox: Sandbox, size: int) -> Side:
    """Return a side that keeps the first MiB and drains the rest."""

    async def side() -> Times:
        peak = PeakMemory()
        began = time.perf_counter()
        result = await sandbox.exec(Command(_program(size), timeout=300))
        took = time.perf_counter() - began
        growth = peak.growth()
        check(result.ok, f"the program ended with {result.exit_code}, {result.exit_reason}")
        check(result.stdout_bytes == size, f"{result.stdout_bytes} bytes of {size} were counted")
        check(result.stdout == bytes(DEFAULT_OUTPUT_BYTES), "what was kept is not what was written")
        return {TOTAL: took, "growth": growth}

    return side


def whole_side(sandbox: Sandbox, size: int) -> Side:
    """Return a side that hands every byte to this process."""

    async def side() -> Times:
        peak = PeakMemory()
        began = time.perf_counter()
        process = await sandbox.start(Command(_program(size), timeout=300))
        seen = 0
        while (chunk := await process.receive()) is not None:
            seen += len(chunk.data)
        end = await process.wait()
        took = time.perf_counter() - began
        growth = peak.growth()
        check(end.code == 0 and end.reason is ExitReason.EXITED, f"the program ended with {end}")
        check(seen == size, f"{seen} bytes of {size} arrived")
        return {TOTAL: took, "growth": growth}

    return side


def piped_side(size: int) -> Side:
    """Return a side that pipes the same program into `cat` on the host."""
    script = f"{' '.join(_program(size))} | cat >/dev/null"

    async def side() -> Times:
        began = time.perf_counter()
        done = subprocess.run(["/bin/sh", "-c", script])
        took = time.perf_counter() - began
        check(done.returncode == 0, f"the pipe on the host ended with {done.returncode}")
        return {TOTAL: took}

    return side


class PeakMemory:
    """The most resident memory that this process has from now on, above what it has now."""

    def __init__(self) -> None:
        self._before = 0
        if self.works():
            self._before = self._read("VmRSS")

    @staticmethod
    def works() -> bool:
        """Reset the peak, where that is allowed."""
        try:
            Path("/proc/self/clear_refs").write_text("5", "ascii")
        except OSError:
            return False
        return True

    @staticmethod
    def _read(name: str) -> int:
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        return 0

    def growth(self) -> float:
        """Return MiB."""
        return max(0.0, (self._read("VmHWM") - self._before) / _MIB)
