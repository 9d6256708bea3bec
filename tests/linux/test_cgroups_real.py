"""Limits that a real kernel holds. Needs a cgroup that this user may write to.

With RINGFENCE_REQUIRE_CGROUPS set, a machine without one fails these tests instead of skipping.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringfence import cgroups, inventory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cgroups are a feature of Linux")

MIB = 1024 * 1024

# Joins before anything else, so that all of the program is held.
JOIN = """
import os, sys
for path in sys.argv[1].split(":"):
    with open(path, "w") as file:
        file.write("0")
"""
HOG = JOIN + "data = bytearray(200 * 1024 * 1024)\nprint(len(data))\n"
BOMB = (
    JOIN
    + """
import time
made = 0
for _ in range(50):
    try:
        pid = os.fork()
    except OSError:
        continue
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    made += 1
print(made, flush=True)
time.sleep(30)
"""
)
FORKING = (
    JOIN + "print('on', flush=True)\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
)


@pytest.fixture(scope="module")
def hierarchy() -> cgroups.Hierarchy:
    found = cgroups.probe()
    if isinstance(found, cgroups.Unavailable):
        missing = pytest.fail if os.environ.get("RINGFENCE_REQUIRE_CGROUPS") else pytest.skip
        missing(f"no writable cgroup: {found.reason}")
    return found


@pytest.fixture
def groups() -> Iterator[list[cgroups.Group]]:
    made: list[cgroups.Group] = []
    yield made
    for group in made:
        group.kill(30)
        assert group.remove(30)


@contextmanager
def running(group: cgroups.Group, program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program in the group; what is left of it in the end is killed."""
    argv = [sys.executable, "-c", program, ":".join(group.procs_files)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            group.kill(30)
            process.kill()


def test_a_program_over_its_memory_is_killed_and_counted(
    hierarchy: cgroups.Hierarchy, groups: list[cgroups.Group]
) -> None:
    group = cgroups.Group.create(hierarchy, f"hog-{os.getpid()}", memory_bytes=64 * MIB)
    groups.append(group)
    assert group.oom_kills() == 0
    with running(group, HOG) as hog:
        output, _ = hog.communicate(timeout=50)
    assert (hog.returncode, output) == (-9, "")
    assert group.oom_kills() == 1
    peak = group.peak_memory()
    assert peak is None or 32 * MIB < peak <= 64 * MIB
    assert group.remove(30)
    assert group.oom_kills() == 1


def test_a_program_within_its_memory_is_left_alone(
    hierarchy: cgroups.Hierarchy, groups: list[cgroups.Group]
) -> None:
    group = cgroups.Group.create(hierarchy, f"fits-{os.getpid()}", memory_bytes=400 * MIB)
    groups.append(group)
    with running(group, HOG) as hog:
        output, _ = hog.communicate(timeout=50)
    assert (hog.returncode, output) == (0, f"{200 * MIB}\n")
    assert group.oom_kills() == 0


@pytest.mark.hostile
def test_no_more_processes_than_the_limit(
    hierarchy: cgroups.Hierarchy, groups: list[cgroups.Group]
) -> None:
    group = cgroups.Group.create(hierarchy, f"bomb-{os.getpid()}", memory_bytes=256 * MIB, pids=20)
    groups.append(group)
    with running(group, BOMB) as bomb:
        assert bomb.stdout is not None
        assert bomb.stdout.readline() == "19\n"
        assert group.kill(30)
        assert bomb.wait(timeout=30) == -9
    assert [Path(path).read_text() for path in group.procs_files] == [""] * len(group.dirs)


@pytest.mark.hostile
def test_kill_ends_a_program_that_forks_without_end(
    hierarchy: cgroups.Hierarchy, groups: list[cgroups.Group]
) -> None:
    for number in range(5):
        group = cgroups.Group.create(
            hierarchy, f"endless-{os.getpid()}-{number}", memory_bytes=256 * MIB, cpus=0.5, pids=40
        )
        groups.append(group)
        with running(group, FORKING) as bomb:
            assert bomb.stdout is not None
            assert bomb.stdout.readline() == "on\n"
            assert group.kill(30)
            assert bomb.wait(timeout=30) == -9
        assert group.remove(30)


def test_the_cpu_limit_is_held(hierarchy: cgroups.Hierarchy, groups: list[cgroups.Group]) -> None:
    group = cgroups.Group.create(hierarchy, f"spin-{os.getpid()}", cpus=0.05)
    groups.append(group)
    spin = JOIN + "import time\nwhile time.process_time() < 0.15: pass\nprint('done')\n"
    with running(group, spin) as program:
        assert program.communicate(timeout=50)[0] == "done\n"
    # A share of a busy machine can be small without a limit: the kernel says who held it back.
    [stat] = [path for path in (Path(place, "cpu.stat") for place in group.dirs) if path.exists()]
    counts = dict(line.split() for line in stat.read_text().splitlines())
    assert int(counts["nr_throttled"]) > 0


def test_a_running_process_can_be_put_in(
    hierarchy: cgroups.Hierarchy, groups: list[cgroups.Group]
) -> None:
    group = cgroups.Group.create(hierarchy, f"attach-{os.getpid()}", pids=5)
    groups.append(group)
    with subprocess.Popen(["sleep", "300"]) as sleeper:
        group.attach(sleeper.pid)
        assert group.remove(timeout=0.05) is False
        assert cgroups.destroy(group.dirs) is True
        assert sleeper.wait(timeout=30) == -9


def test_fifty_groups_at_once_leave_nothing(hierarchy: cgroups.Hierarchy) -> None:
    made: list[cgroups.Group] = []

    def make(number: int) -> None:
        name = f"many-{os.getpid()}-{number}"
        made.append(cgroups.Group.create(hierarchy, name, memory_bytes=64 * MIB, cpus=1, pids=20))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(made) == 50
    assert all(group.remove(30) for group in made)
    assert [path for group in made for path in group.dirs if os.path.exists(path)] == []


def test_what_a_killed_owner_had_in_a_group_is_reaped(
    hierarchy: cgroups.Hierarchy,
    groups: list[cgroups.Group],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches a reaper that knows only the outermost process and not those that left it."""
    monkeypatch.setenv("RINGFENCE_STATE_DIR", str(tmp_path / "state"))
    group = cgroups.Group.create(hierarchy, f"reaped-{os.getpid()}", pids=20)
    groups.append(group)
    owner = (
        "import os, subprocess, sys\n"
        "from ringfence import inventory\n"
        "entry = inventory.Entry('rf-1', 'test', cgroups=tuple(sys.argv[1].split(':')))\n"
        "inventory.owner().add(entry)\n"
        "inside = 'for f in $0; do echo 0 > $f; done; setsid sleep 60 & echo $!'\n"
        "files = ' '.join(f'{path}/cgroup.procs' for path in entry.cgroups)\n"
        "subprocess.run(['sh', '-c', inside, files], stderr=subprocess.DEVNULL, check=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", owner, ":".join(group.dirs)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        stray = int(process.stdout.readline())
        assert inventory.reap() == 0
        process.kill()
        process.wait(timeout=30)
        assert inventory.process_start_time(stray) is not None
        assert inventory.reap() == 1
    assert inventory.process_start_time(stray) is None
    assert [path for path in group.dirs if os.path.exists(path)] == []


def test_probing_and_ending_leaves_nothing(
    hierarchy: cgroups.Hierarchy, groups: list[cgroups.Group]
) -> None:
    code = (
        "from ringfence import cgroups\n"
        "found = cgroups.probe()\n"
        "group = cgroups.Group.create(found, 'rf-last', pids=5)\n"
        "assert group.remove(30)\n"
        "print(*set(found.parents.values()))\n"
    )
    if hierarchy.version == 1:
        # In a group of its own, so that no other process uses the same directories.
        name = f"probe-in-{os.getpid()}"
        groups.append(cgroups.Group.create(hierarchy, name, cpus=1, pids=50))
        with running(groups[0], JOIN + code) as probing:
            parents = probing.communicate(timeout=50)[0].split()
        assert sorted(parents) == sorted(f"{own}/ringfence" for own in groups[0].dirs)
    else:
        argv = [sys.executable, "-c", code]
        parents = subprocess.check_output(argv, text=True, timeout=30).split()
        assert len(parents) == 1
    assert [parent for parent in parents if os.path.exists(parent)] == []
