"""Checks a finished wheel: check_wheel.py MACHINE... WHEEL.

It must hold a static, executable warden for each machine and for no other, be tagged for them, and
ship the marker that says the package is typed.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from pathlib import Path

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
BINARIES = "ringfence/warden/bin/"


def faults(wheel: Path, machines: list[str]) -> list[str]:
    """Return what is wrong with the wheel, in words."""
    found = []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        binaries = {name for name in names if name.startswith(BINARIES)}
        wanted = {f"{BINARIES}warden-{machine}" for machine in machines}
        found += [f"{name} is missing" for name in sorted(wanted - binaries)]
        found += [f"{name} should not be there" for name in sorted(binaries - wanted)]
        for name in sorted(wanted & binaries):
            if not archive.getinfo(name).external_attr >> 16 & 0o111:
                found.append(f"{name} is not executable")
            kind, machine = struct.unpack_from("<HH", archive.read(name), 16)
            if kind != 2 or machine != ELF_MACHINES[name.rpartition("-")[2]]:
                found.append(f"{name} is not a static program for that machine")
    if "ringfence/py.typed" not in names:
        found.append("ringfence/py.typed is missing")
    return found + [f"no tag for {name}" for name in machines if name not in wheel.name]


def main() -> int:
    *machines, wheel = sys.argv[1:]
    found = faults(Path(wheel), machines)
    for fault in found:
        print(f"{wheel}: {fault}", file=sys.stderr)
    if not found:
        print(f"{wheel}: holds the warden for {' and '.join(machines)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
