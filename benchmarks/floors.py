"""The other sides: a bare process of the host, and a one-shot bwrap with equal hardening."""

from __future__ import annotations

import asyncio
import collections
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from ringfence import cgroups, inventory
from ringfence.backend import BASE_LIMITS
from ringfence.backends._jail import Jail, find_jail, jail_argv
from ringfence.backends.bubblewrap import DEFAULT_LIMITS
from ringfence.config import BubblewrapConfig
from ringfence.models import Enforced, Enforcement, new_sandbox_id
from ringfence.warden.order import Resources

from .measure import TOTAL, Times, check

__all__ = ("SPAWN", "OneShots", "one_shots", "run_on_host", "spawn_on_host")

_NATIVE = Path(__file__).parent.parent / "native" / "warden"


def run_on_host(argv: Sequence[str], stdout: bytes | None = None) -> Times:
    """Run a program bare, with `subprocess.run`; its output is caught only if there must be any."""
    began = time.perf_counter()
    done = subprocess.run(argv, capture_output=stdout is not None)
    took = time.perf_counter() - began
    check(done.returncode == 0, f"{argv[0]} on the host ended with {done.returncode}")
    check(done.stdout == stdout, f"{argv[0]} on the host wrote {done.stdout!r}")
    return {TOTAL: took}


SPAWN = "posix_spawn and waitpid alone"


def spawn_on_host(program: str, count: int = 1, at_once: int = 1) -> Times:
    """Start and reap a program so many times, without a pipe, an event loop or an object for it.

    What a system takes for the programs themselves, which is in all other times too.
    """
    running: collections.deque[int] = collections.deque()
    began = time.perf_counter()
    while count or running:
        if count and len(running) < at_once:
            running.append(os.posix_spawn(program, [program], os.environ))
            count -= 1
        else:
            _, status = os.waitpid(running.popleft(), 0)
            check(status == 0, f"{program} ended with status {status}")
    return {TOTAL: time.perf_counter() - began}


@dataclass(frozen=True)
class OneShots:
    """Runs programs in a bwrap of their own each, protected as our sandboxes are.

    The same launcher, namespaces, mounts, sized file systems, private uid, capabilities and
    rlimits; the program in the place of the warden. The cgroup is made once and only joined, and
    the filter comes ready-made on descriptor 0: both spare it work that our side does each time.

    Attributes:
        filter: The system call filter, or None where none could be built.
        no_filter: Why not.
    """

    jail: Jail
    held: Enforced
    resources: Resources
    filter: IO[bytes] | None
    no_filter: str

    def argv(self, command: Sequence[str], *, crowd: bool = False) -> list[str]:
        """Return the command line for one program.

        Args:
            command: The program.
            crowd: It is one of many at once: then without the cgroup, whose limits are for one.
        """
        limits = DEFAULT_LIMITS.over(BASE_LIMITS)
        resources = replace(self.resources, procs_files=()) if crowd else self.resources
        argv = jail_argv(self.jail, limits, (), self.held, resources)
        options = argv[: len(argv) - 1 - argv[::-1].index("--")]
        return [*options, *(("--seccomp", "0") if self.filter else ()), "--", *command]

    def opened(self) -> IO[bytes] | int:
        """Return what a bwrap gets as its stdin, ready to be read from the beginning."""
        if self.filter is None:
            return subprocess.DEVNULL
        self.filter.seek(0)
        return self.filter

    def run(self, command: Sequence[str]) -> tuple[Times, subprocess.CompletedProcess[bytes]]:
        """Run one program with `subprocess.run`, its output caught."""
        argv, stdin = self.argv(command), self.opened()
        began = time.perf_counter()
        done = subprocess.run(argv, stdin=stdin, capture_output=True, env={})
        return {TOTAL: time.perf_counter() - began}, done

    def run_true(self) -> Times:
        """Run `/bin/true`."""
        times, done = self.run(["/bin/true"])
        check(done.returncode == 0, f"a one-shot bwrap failed: {done.stderr.decode()}")
        return times

    async def start_true(self) -> None:
        """Run `/bin/true` beside others, on the event loop."""
        with _reopened(self.filter) as filter_file:
            process = await asyncio.create_subprocess_exec(
                *self.argv(["/bin/true"], crowd=True),
                stdin=filter_file or asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={},
            )
        _, said = await process.communicate()
        check(process.returncode == 0, f"a one-shot bwrap failed: {said.decode()}")


@contextmanager
def _reopened(file: IO[bytes] | None) -> Iterator[IO[bytes] | None]:
    """Open a file anew: two readers of one description would share its position."""
    if file is None:
        yield None
    else:
        with open(file.name, "rb") as again:
            yield again


@contextmanager
def one_shots() -> Iterator[OneShots]:
    """Find and make what one-shot bwraps need, and clear it away in the end."""
    jail, owner, name = find_jail(BubblewrapConfig()), inventory.owner(), new_sandbox_id()
    uid = owner.take_uid() if jail.stage else None
    group, held = _make_group(name)
    dirs, procs_files = (group.dirs, group.procs_files) if group else ((), ())
    owner.add(inventory.Entry(name, "benchmark", uid=uid, cgroups=dirs))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path, why_not = _build_filter(Path(scratch))
            with _opened(path) as filter_file:
                yield OneShots(jail, held, Resources(uid, procs_files), filter_file, why_not)
    finally:
        if group is not None:
            group.remove()
        owner.discard(name)
        if uid is not None:
            owner.free_uid(uid)


@contextmanager
def _opened(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
    else:
        with path.open("rb") as file:
            yield file


def _make_group(name: str) -> tuple[cgroups.Group | None, Enforced]:
    found = cgroups.probe()
    if not isinstance(found, cgroups.Hierarchy):
        return None, Enforced()
    limits = DEFAULT_LIMITS
    group = cgroups.Group.create(
        found,
        name,
        memory_bytes=limits.memory_bytes if "memory" in found.usable else None,
        cpus=limits.cpus if "cpu" in found.usable else None,
        pids=limits.pids if "pids" in found.usable else None,
    )
    held = Enforcement.ENFORCED if "memory" in found.usable else Enforcement.PER_PROCESS
    return group, Enforced(memory_bytes=held)


def _build_filter(scratch: Path) -> tuple[Path | None, str]:
    """Build the warden's filter with the system's C compiler; return it, or why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None, "there is no C compiler to build it with"
    source, program = Path(__file__).with_name("filter.c"), scratch / "filter"
    built = subprocess.run(
        [compiler, "-DWARDEN_HOSTED", f"-I{_NATIVE}", "-o", program, source], capture_output=True
    )
    if built.returncode:
        return None, f"{compiler} can't build it: {built.stderr.decode(errors='replace'):.200}"
    path = scratch / "filter.bpf"
    path.write_bytes(subprocess.run([program], capture_output=True, check=True).stdout)
    return path, ""
