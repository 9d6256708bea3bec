"""A second net under hostile tests: this process and all that it starts, in a cgroup of its own.

What gets away from a sandbox under test is held by it, and killed at the end. A conftest takes it
with `from ..second_net import second_net`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import cgroups

PIDS = 4000
MEMORY_BYTES = 8 << 30

_held: list[cgroups.Group] = []


@pytest.fixture(scope="session", autouse=True)
def second_net() -> Iterator[None]:
    """Hold the whole test run. Without cgroups there is none, and CI says that it must be there."""
    if _held:  # several conftests take it
        yield
        return
    found = cgroups.probe()
    if isinstance(found, cgroups.Unavailable) or not {"pids", "memory"} <= found.usable:
        if os.environ.get("RINGFENCE_REQUIRE_CGROUPS"):
            pytest.fail("hostile tests need a cgroup of their own for pids and memory")
        yield
        return
    homes = [Path(path).parent for path in found.parents.values()]
    net = cgroups.Group.create(
        found,
        f"tests-{os.getpid()}",
        memory_bytes=MEMORY_BYTES,
        pids=PIDS,
        cpus=float(os.cpu_count() or 1) if "cpu" in found.usable else None,  # in one there too
    )
    net.attach(os.getpid())
    _held.append(net)
    try:
        yield
    finally:
        _held.clear()
        for home in homes:
            with (home / "cgroup.procs").open("r+") as file:
                file.write(str(os.getpid()))
        left = _left_in(net)
        deadline = time.monotonic() + 30  # what was killed last takes its time to go
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = _left_in(net)
        net.kill()
        for directory in net.dirs:
            for below in sorted(Path(directory).rglob("*/"), reverse=True):
                below.rmdir()
        assert net.remove(timeout=30)
        assert not left, f"the tests left processes behind: {left}"


def _left_in(net: cgroups.Group) -> set[str]:
    """Return the processes in the net, with their command lines to find where they come from."""
    found = set()
    for directory in net.dirs:
        for pid in Path(f"{directory}/cgroup.procs").read_text().split():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            found.add(f"{pid} {line.decode(errors='replace')}")
    return found
