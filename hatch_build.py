"""Builds the warden, the small static program that runs inside every sandbox, into the package.

As hatchling's build hook it runs for every wheel and every editable install; run as a script it
builds the binary in place for development. The result is `src/ringfence/warden/bin/warden-MACHINE`,
which is never committed.

On Linux the system's C compiler builds it for this machine, in a second. A compiler counts only if
it really turns our sources into a sound binary: one without kernel headers, or one for another
machine, does not. Where none does, zig does it, from its PyPI package, which is asked for only
then. Off Linux the wheel is pure Python and has no warden.

`RINGFENCE_WARDEN_TARGETS` ("x86_64 aarch64") names the machines to build for; zig then builds all
of them, whatever this machine is, into one wheel.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "native/warden"
OUTPUT = "src/ringfence/warden/bin"
TARGETS_VARIABLE = "RINGFENCE_WARDEN_TARGETS"

FLAGS = (
    *("-std=gnu11", "-Os", "-s"),
    # No libc at all: the program makes its own system calls and has its own entry point.
    *("-static", "-nostdlib", "-ffreestanding", "-fno-builtin", "-fno-stack-protector"),
    *("-fno-pie", "-no-pie"),
    # Small: no tables for unwinding, and nothing that is not called.
    *("-fno-asynchronous-unwind-tables", "-fno-unwind-tables"),
    *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections", "-Wl,--build-id=none"),
    "-Wl,-z,noexecstack",
    *("-Wall", "-Wextra", "-Werror"),
)

MAX_BYTES = 200_000
"""A sandbox starts as fast as its warden loads: one that has grown past this fails the build."""

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
"""The machines that the warden is written for, with the number in an ELF header that says so."""

ELF_EXECUTABLE = 2
ELF_LOADER_SEGMENTS = (2, 3)
"""What only a program that is linked at run time has: PT_DYNAMIC and PT_INTERP."""

WHEEL_PLATFORMS = ("manylinux2014", "musllinux_1_1")
"""The binary is static and free of libc, so it runs beside any."""

COMPILE_SECONDS = 600

ZIG_REQUIREMENT = "ziglang>=0.17"
ZIG_HEADERS = {"x86_64": "x86", "aarch64": "aarch64"}


class WardenBuildError(Exception):
    """The warden can't be built; the message says why and what to do."""


class _CompilerError(WardenBuildError):
    """This compiler can't build it; another may."""


class WardenBuildHook(BuildHookInterface[BuilderConfig]):
    """Adds the warden to a wheel, and zig to the build's needs where nothing else can build it."""

    def dependencies(self) -> list[str]:
        """Return what the build needs beyond hatchling."""
        return [ZIG_REQUIREMENT] if _needs_zig(Path(self.root)) else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the binaries and make the wheel one for their platforms.

        Raises:
            WardenBuildError: No compiler could build it.
        """
        binaries = build(Path(self.root))
        if not binaries:
            return
        platforms = sorted(f"{kind}_{name}" for name in binaries for kind in WHEEL_PLATFORMS)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{'.'.join(platforms)}"
        build_data["artifacts"] += [f"/{OUTPUT}/{path.name}" for path in binaries.values()]


def build(root: Path) -> dict[str, Path]:
    """Build the warden in place and return the binary of each machine; none off Linux.

    Raises:
        WardenBuildError: No compiler could build it.
    """
    cross = _cross_targets()
    binaries: dict[str, Path] = {}
    for machine in cross or _this_machine():
        compilers = [] if cross else _system_compilers()
        compilers += _zig(machine)
        binaries[machine] = root / OUTPUT / f"warden-{machine}"
        _build_one(compilers, _sources(root), machine, binaries[machine])
    return binaries


def _needs_zig(root: Path) -> bool:
    """Return whether only zig can build what is asked for, by trying the system's compilers."""
    if _cross_targets():
        return True
    with tempfile.TemporaryDirectory(prefix="warden-") as scratch:
        for machine in _this_machine():
            sources = _sources(root)
            try:
                _build_one(_system_compilers(), sources, machine, Path(scratch) / "warden")
            except _CompilerError as error:
                _say(f"{error}\nzig will build the warden instead (a download of 100 MB)")
                return True
    return False


def _cross_targets() -> tuple[str, ...]:
    targets = tuple(dict.fromkeys(os.environ.get(TARGETS_VARIABLE, "").replace(",", " ").split()))
    for target in targets:
        if target not in ELF_MACHINES:
            raise WardenBuildError(
                f"{TARGETS_VARIABLE} names {target!r}; it can name {' and '.join(ELF_MACHINES)}"
            )
    return targets


def _this_machine() -> tuple[str, ...]:
    """Return the machine to build for here, or nothing where there is no warden."""
    machine = platform.machine()
    if sys.platform != "linux":
        return ()
    if machine not in ELF_MACHINES:
        _say(f"there is no warden for {machine}: this build can do without isolation only")
        return ()
    return (machine,)


def _sources(root: Path) -> list[str]:
    sources = sorted(map(str, (root / SOURCES).glob("*.c")))
    if not sources:
        raise WardenBuildError(f"there are no C sources in {root / SOURCES}")
    return sources


def _system_compilers() -> list[list[str]]:
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return [shlex.split(name) for name in names if name.strip()]


def _zig(machine: str) -> list[list[str]]:
    """Return zig's command if its package is installed."""
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        return []
    # Without a libc zig leaves out the kernel's headers too, though it has them.
    headers = Path(package.origin).parent / "lib/libc/include"
    names = (f"{ZIG_HEADERS[machine]}-linux-any", "any-linux-any")
    include = [word for name in names for word in ("-isystem", str(headers / name))]
    return [[sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-musl", *include]]


def _build_one(
    compilers: Sequence[Sequence[str]], sources: Sequence[str], machine: str, output: Path
) -> None:
    """Build with the first compiler that can, and put the binary in place in one step."""
    complaints: list[str] = []
    output.parent.mkdir(parents=True, exist_ok=True)
    for compiler in compilers:
        with tempfile.TemporaryDirectory(prefix=".build-", dir=output.parent) as scratch:
            built = Path(scratch) / "warden"
            try:
                _compile([*compiler, *FLAGS, "-o", str(built), *sources], scratch)
                _check(built, machine)
            except _CompilerError as error:
                complaints.append(str(error).strip())
            else:
                built.chmod(0o755)
                built.replace(output)
                return
    raise _CompilerError(
        "\n".join(complaints) + f"\nno compiler here can build the warden for {machine}: install "
        "gcc or clang with the kernel's headers (gcc and libc6-dev), or the PyPI package ziglang"
    )


def _compile(command: Sequence[str], scratch: str) -> None:
    # zig would leave its cache in the home directory of whoever builds.
    caches = {f"ZIG_{kind}_CACHE_DIR": f"{scratch}/zig" for kind in ("GLOBAL", "LOCAL")}
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMPILE_SECONDS,
            env={**os.environ, **caches},
        )
    except OSError as error:
        raise _CompilerError(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _CompilerError(f"{command[0]}: not done in {COMPILE_SECONDS} s") from error
    if done.returncode != 0:
        raise _CompilerError(f"{shlex.join(command)}\n{done.stdout}")


def _check(binary: Path, machine: str) -> None:
    """Refuse a binary for another machine, one that needs a loader, and one that is too large."""
    image = binary.read_bytes()
    if image[:6] != b"\x7fELF\x02\x01":
        raise _CompilerError("the compiler made no 64-bit little-endian ELF program")
    if struct.unpack_from("<HH", image, 16) != (ELF_EXECUTABLE, ELF_MACHINES[machine]):
        raise _CompilerError(f"the compiler made no static program for {machine}")
    (table,) = struct.unpack_from("<Q", image, 32)
    entry_size, count = struct.unpack_from("<HH", image, 54)
    for index in range(count):
        (kind,) = struct.unpack_from("<I", image, table + index * entry_size)
        if kind in ELF_LOADER_SEGMENTS:
            raise _CompilerError("the compiler made a program that needs a dynamic loader")
    if len(image) > MAX_BYTES:
        raise WardenBuildError(f"the warden is {len(image)} bytes; it may be {MAX_BYTES}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> int:
    """Build the warden in place, for development; return 1 with the reason if it can't be."""
    try:
        binaries = build(Path(__file__).resolve().parent)
    except WardenBuildError as error:
        _say(str(error))
        return 1
    for path in binaries.values():
        _say(f"{path} ({path.stat().st_size} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
