"""`ringfence doctor`: what this machine can run, what holds each limit, and what is missing."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import anyio
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..config import CONFIGS, BackendConfig
from ..errors import BackendUnavailableError, ConfigError, SandboxError
from ..models import Capabilities, Enforced, Enforcement, Isolation, Probe
from ..registry import BACKENDS, PROBE_TIMEOUT, load_backend, open_backend
from ..settings import Settings

__all__ = ("Finding", "doctor", "examine")

_LIMITS = {
    "memory_bytes": "Memory",
    "cpus": "CPU",
    "pids": "Pids",
    "open_files": "Open\nfiles",
    "workspace_bytes": "Workspace",
    "workspace_files": "Files\nin it",
    "tmp_bytes": "Tmp",
}
_MARKS = {
    Enforcement.ENFORCED: ("yes", "green"),
    Enforcement.PER_PROCESS: ("each", "yellow"),
    Enforcement.NONE: ("no", "red"),
}
_LEGEND = (
    "Limits: yes, the kernel holds the sandbox as a whole to it; each, it holds each process to "
    "it and not their sum; no, nobody does."
)

assert list(_LIMITS) == [item.name for item in fields(Enforced)]


@dataclass(frozen=True)
class Finding:
    """What there is to say of one backend.

    Attributes:
        name: Its name.
        probe: Whether it can run here, and if not, why and what mends that.
        capabilities: What it promises here, or None where it can't be asked.
    """

    name: str
    probe: Probe
    capabilities: Capabilities | None = None

    @property
    def isolates(self) -> bool:
        """Whether it can run here and keeps a program from the rest of the machine."""
        able = self.capabilities
        return self.probe.ok and able is not None and able.isolation > Isolation.PROCESS

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON types."""
        found: dict[str, Any] = {
            "name": self.name,
            "can_run": self.probe.ok,
            "reason": self.probe.reason,
            "hint": self.probe.hint,
            "details": dict(self.probe.details),
        }
        if self.capabilities is not None:
            able = asdict(self.capabilities)
            able["isolation"] = self.capabilities.isolation.name.lower()
            able["limits"] = {name: value.value for name, value in able["limits"].items()}
            found["capabilities"] = able
        return found


async def examine(name: str, settings: Settings) -> Finding:
    """Find out about one backend, with the settings that it has of the user's."""
    try:
        load_backend(name)
        model = CONFIGS[name]
        own = settings.of_backend
        given = {key: value for key, value in own.items() if key in model.model_fields}
        backend = open_backend(model(**given))
    except BackendUnavailableError as error:
        return Finding(name, Probe(False, error.message, error.hint or ""))
    probe = Probe(False, f"no answer within {PROBE_TIMEOUT:g} s")
    with anyio.move_on_after(PROBE_TIMEOUT):
        probe = await backend.probe()
    if not probe.ok:
        return Finding(name, probe)
    try:
        async with backend:  # what it can promise is complete only then
            return Finding(name, probe, backend.capabilities)
    except ConfigError as error:  # it runs here, with settings that doctor does not have
        needs = {"needs": str(error)}
        return Finding(
            name, replace(probe, details={**probe.details, **needs}), backend.capabilities
        )
    except SandboxError as error:
        return Finding(name, Probe(False, error.message, error.hint or ""))


async def doctor(settings: Settings, *, as_json: bool) -> int:
    """Print what is found; return 0 if a backend that isolates can run here, else 1."""
    findings = [await examine(name, settings) for name in BACKENDS]
    able = {item.name for item in findings if item.isolates}
    auto = next((name for name in BackendConfig.AUTO_ORDER if name in able), None)
    if as_json:
        print(json.dumps(_document(findings, auto, settings), indent=2))
    else:
        _show(findings, auto, settings)
    return 0 if able else 1


def _machine() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _document(findings: list[Finding], auto: str | None, settings: Settings) -> dict[str, Any]:
    return {
        "version": __version__,
        "python": platform.python_version(),
        "machine": _machine(),
        "settings_file": settings.file,
        "auto": auto,
        "backends": [finding.to_dict() for finding in findings],
    }


def _show(findings: list[Finding], auto: str | None, settings: Settings) -> None:
    console = Console(highlight=False, markup=False)
    console.print(
        f"ringfence {__version__}, Python {platform.python_version()}, {_machine()}\n"
        f"settings: {settings.file or 'no file'}\n"
    )
    ordered = sorted(findings, key=_rank)
    console.print(_table(ordered))
    console.print(Text(f"\n{_LEGEND}", "dim"))
    for finding in ordered:
        if _is_here(finding):
            console.print()
            console.print(_details(finding))
    absent = ", ".join(finding.name for finding in ordered if not _is_here(finding))
    if absent:
        console.print(f"\nNot part of this version: {absent}")
    if not any(finding.isolates for finding in findings):
        console.print(Text("\nNo backend that isolates can run here.", "bold red"))
    elif auto is None:
        console.print("\nauto finds nothing to take here; a backend has to be named.")
    else:
        console.print(Text.assemble("\nWhat auto takes here: ", (auto, "bold green")))


def _is_here(finding: Finding) -> bool:
    return bool(BACKENDS[finding.name].path)


def _rank(finding: Finding) -> tuple[bool, bool, int]:
    """Sort what runs first, the strongest of it on top."""
    isolation = finding.capabilities.isolation if finding.capabilities else 0
    return not finding.probe.ok, not _is_here(finding), -isolation


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("Backend", "Runs", "Isolation", *_LIMITS.values()):
        table.add_column(title, no_wrap=True, vertical="bottom")
    for finding in findings:
        able = finding.capabilities
        runs = Text("yes", "green") if finding.probe.ok else Text("no", "red")
        row = [Text(finding.name, "bold" if finding.probe.ok else "dim"), runs]
        if able is not None:
            row.append(Text(able.isolation.name.lower()))
        if able is not None and able.isolation is not Isolation.NONE:  # else it runs nothing
            row += [Text(*_MARKS[getattr(able.limits, name)]) for name in _LIMITS]
        table.add_row(*row)
    return table


def _details(finding: Finding) -> Group:
    said = []
    if not finding.probe.ok:
        said.append(Text(finding.probe.reason, "red"))
        if finding.probe.hint:
            said.append(Text(f"What helps: {finding.probe.hint}"))
    elif finding.capabilities is not None:
        said += [Text(note) for note in finding.capabilities.notes]
    told = " ".join(finding.capabilities.notes) if finding.capabilities else ""
    for name, value in finding.probe.details.items():
        if value not in told:
            said.append(Text(f"{name}: {value}", "dim"))
    indented = (Padding(text, (0, 0, 0, 2), expand=False) for text in said)
    return Group(Text(finding.name, "bold"), *indented)
