"""Where cgroups are looked for and what is written into them, on a made-up cgroup tree."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from ringfence import cgroups
from ringfence.cgroups import files, places
from ringfence.cgroups import group as group_module
from ringfence.cgroups.places import Mount, own_dir, parse_membership, parse_mounts
from ringfence.cgroups.values import Setting, settings
from ringfence.errors import ConfigError, CreateError, LimitError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cgroups are a feature of Linux")

V2_MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
24 22 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw
35 24 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec shared:9 - cgroup2 cgroup2 rw,nsdelegate
"""
HYBRID_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw
33 31 0:30 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
34 31 0:31 / /sys/fs/cgroup/memory rw shared:15 - cgroup cgroup rw,memory
35 31 0:32 / /sys/fs/cgroup/cpu,cpuacct rw shared:16 - cgroup cgroup rw,cpu,cpuacct
36 31 0:33 / /sys/fs/cgroup/pids rw shared:17 - cgroup cgroup rw,pids
"""
CONTAINER_V1_MOUNTS = """\
40 39 0:34 /docker/4fe1 /sys/fs/cgroup/pids ro master:17 - cgroup cgroup rw,pids
41 39 0:35 /with\\040blank /mnt/a\\134b ro - cgroup cgroup rw,memory
"""

PAGE = os.sysconf("SC_PAGE_SIZE") if sys.platform == "linux" else 4096
V1_FILES = {
    "memory": {
        "memory.limit_in_bytes": "9223372036854771712\n",
        "memory.memsw.limit_in_bytes": "9223372036854771712\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        "memory.max_usage_in_bytes": "4096\n",
    },
    "cpu": {
        "cpu.cfs_period_us": "100000\n",
        "cpu.cfs_quota_us": "-1\n",
        "cpu.stat": "nr_periods 0\n",
    },
    "pids": {"pids.max": "max\n"},
}
V2_FILES = {
    "memory": {
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "memory.oom.group": "0\n",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
        "memory.peak": "8192\n",
    },
    "cpu": {"cpu.max": "max 100000\n", "cpu.stat": "usage_usec 2500000\nuser_usec 1\n"},
    "pids": {"pids.max": "max\n"},
}


class Kernel:
    """Fills new directories with a cgroup's files, and lets groups be removed with them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()
        self.mountinfo = ""
        self.refused: dict[str, int] = {}
        self.files: dict[Path, dict[str, str]] = {}
        self.real_mkdir, self.real_rmdir = os.mkdir, os.rmdir
        self.real_write = files.write
        monkeypatch.setattr(files, "write", self.write)
        monkeypatch.setattr(os, "mkdir", self.mkdir)
        monkeypatch.setattr(os, "rmdir", self.rmdir)

    def mount(self, name: str, kind: str, options: str, files: dict[str, str]) -> Path:
        point = self.root / name
        self.real_mkdir(point)
        self.files[point] = files
        self.fill(point)
        (point / "cgroup.type").unlink(missing_ok=True)
        self.mountinfo += f"31 23 0:28 / {point} rw shared:9 - {kind} {kind} {options}\n"
        return point

    def mount_v2(self, *controllers: str) -> Path:
        files = {"cgroup.type": "domain\n", "cgroup.subtree_control": ""}
        files["cgroup.controllers"] = " ".join(controllers) + "\n"
        for controller in controllers:
            files |= V2_FILES[controller]
        return self.mount("unified", "cgroup2", "rw", files)

    def mount_v1(self, *controllers: str) -> Path:
        files: dict[str, str] = {}
        for controller in controllers:
            files |= V1_FILES.get(controller, {})
        return self.mount(controllers[0], "cgroup", ",".join(("rw", *controllers)), files)

    def group(self, directory: Path, procs: str = "") -> Path:
        os.mkdir(directory)
        (directory / "cgroup.procs").write_text(procs)
        return directory

    def probe(self, membership: str) -> cgroups.Hierarchy | cgroups.Unavailable:
        (self.proc / "mountinfo").write_text(self.mountinfo)
        (self.proc / "cgroup").write_text(membership)
        return cgroups.probe(str(self.proc))

    def write(self, path: str, text: str) -> None:
        """Write as the kernel does into a file to which controllers are added one by one."""
        if path.endswith("/cgroup.subtree_control") and Path(path).exists():
            text = f"{Path(path).read_text()} {text.removeprefix('+')}"
        self.real_write(path, text)

    def mkdir(self, path: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        if str(path) in self.refused:
            raise OSError(self.refused[str(path)], os.strerror(self.refused[str(path)]), str(path))
        self.real_mkdir(path, mode)
        self.fill(Path(path))

    def fill(self, directory: Path) -> None:
        mount = next((item for item in self.files if directory.is_relative_to(item)), None)
        if mount is not None:
            for name, text in {"cgroup.procs": "", **self.files[mount]}.items():
                (directory / name).write_text(text)

    def rmdir(self, path: str | Path) -> None:
        directory = Path(path)
        entries = list(directory.iterdir()) if directory.exists() else []
        if any(entry.is_dir() for entry in entries) or (directory / "busy").exists():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        for entry in entries:
            entry.unlink()
        self.real_rmdir(path)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(places, "_parents", set())
    return Kernel(tmp_path, monkeypatch)


def hierarchy(found: cgroups.Hierarchy | cgroups.Unavailable) -> cgroups.Hierarchy:
    assert isinstance(found, cgroups.Hierarchy), found
    return found


# Reading what the kernel says.


def test_mounts_of_a_machine_with_v2_only() -> None:
    assert parse_mounts(V2_MOUNTS) == [Mount(2, "/", "/sys/fs/cgroup", frozenset())]


def test_mounts_of_a_hybrid_machine_are_told_apart() -> None:
    assert [(mount.version, mount.point) for mount in parse_mounts(HYBRID_MOUNTS)] == [
        (2, "/sys/fs/cgroup/unified"),
        (1, "/sys/fs/cgroup/systemd"),
        (1, "/sys/fs/cgroup/memory"),
        (1, "/sys/fs/cgroup/cpu,cpuacct"),
        (1, "/sys/fs/cgroup/pids"),
    ]
    assert {"cpu", "cpuacct"} <= parse_mounts(HYBRID_MOUNTS)[3].controllers


def test_mounts_in_a_container_keep_their_root_and_lose_their_escapes() -> None:
    pids, memory = parse_mounts(CONTAINER_V1_MOUNTS)
    assert (pids.root, pids.point) == ("/docker/4fe1", "/sys/fs/cgroup/pids")
    assert (memory.root, memory.point) == ("/with blank", "/mnt/a\\b")


def test_membership_is_by_controller_and_v2_has_no_name() -> None:
    text = "9:name=systemd:/init.scope\n4:cpu,cpuacct:/a\n3:memory:/b:c\n0::/user.slice\n"
    assert parse_membership(text) == {
        "name=systemd": "/init.scope",
        "cpu": "/a",
        "cpuacct": "/a",
        "memory": "/b:c",
        "": "/user.slice",
    }


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        ("/", "/", "/cg"),
        ("/", "/user.slice/a.scope", "/cg/user.slice/a.scope"),
        ("/docker/4fe1", "/docker/4fe1", "/cg"),
        ("/docker/4fe1", "/docker/4fe1/inner", "/cg/inner"),
        ("/docker/4fe1", "/docker/4fe12", "/cg"),
        ("/docker/4fe1", "/elsewhere", "/cg"),
        ("/", "/../outside", "/cg"),
    ],
)
def test_the_own_directory_is_found_below_the_mount(root: str, path: str, expected: str) -> None:
    assert own_dir(Mount(2, root, "/cg", frozenset()), path) == expected


def test_the_oom_counter_of_both_versions() -> None:
    v1 = b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
    v2 = b"low 0\nhigh 0\nmax 12\noom 4\noom_kill 2\noom_group_kill 7\n"
    assert group_module.parse_oom_kills(v1) == 3
    assert group_module.parse_oom_kills(v2) == 2
    assert group_module.parse_oom_kills(b"oom_kill_disable 1\nunder_oom 0\n") == 0


# What is written.


def test_settings_of_v2() -> None:
    dirs = dict.fromkeys(("memory", "cpu", "pids"), "/g")
    assert settings(2, dirs, 1000, 0.5, 20) == [
        Setting("/g/memory.max", "1000"),
        Setting("/g/memory.swap.max", "0", errno.ENOENT),
        Setting("/g/memory.oom.group", "0", errno.ENOENT),
        Setting("/g/cpu.max", "50000 100000"),
        Setting("/g/pids.max", "20"),
    ]


def test_settings_of_v1_limit_memory_before_memory_and_swap() -> None:
    dirs = {"memory": "/m", "cpu": "/c", "pids": "/p"}
    assert settings(1, dirs, 1000, 2, 20) == [
        Setting("/m/memory.limit_in_bytes", "1000"),
        Setting("/m/memory.memsw.limit_in_bytes", "1000", errno.ENOENT),
        Setting("/c/cpu.cfs_period_us", "100000"),
        Setting("/c/cpu.cfs_quota_us", "200000", errno.EINVAL),
        Setting("/p/pids.max", "20"),
    ]


def test_a_tiny_share_of_a_cpu_is_raised_to_what_the_kernel_takes() -> None:
    assert settings(2, {"cpu": "/g"}, None, 0.001, None) == [Setting("/g/cpu.max", "1000 100000")]


def test_nothing_is_written_without_a_limit() -> None:
    assert settings(2, {"memory": "/g"}, None, None, None) == []


# Finding a place.


def test_v2_below_the_own_group_if_it_holds_no_process(kernel: Kernel) -> None:
    point = kernel.mount_v2("memory", "cpu", "pids")
    own = kernel.group(point / "app.slice")
    found = hierarchy(kernel.probe("0::/app.slice\n"))
    assert found.version == 2
    assert found.parents == dict.fromkeys(("memory", "cpu", "pids"), f"{own}/ringfence")
    assert found.missing == {}
    assert found.usable == {"memory", "cpu", "pids"}
    assert [entry.name for entry in (own / "ringfence").iterdir() if entry.is_dir()] == []


def test_v2_moves_up_from_a_group_that_holds_processes(kernel: Kernel) -> None:
    point = kernel.mount_v2("memory", "cpu", "pids")
    above = kernel.group(point / "app.slice")
    own = kernel.group(above / "shell.scope", "1\n2\n")
    found = hierarchy(kernel.probe("0::/app.slice/shell.scope\n"))
    assert set(found.parents.values()) == {f"{above}/ringfence"}
    assert (own / "cgroup.subtree_control").read_text() == ""
    assert not (own / "ringfence").exists()


def test_v2_at_the_root_of_the_machine_where_every_group_below_is_taken(kernel: Kernel) -> None:
    point = kernel.mount_v2("memory", "cpu", "pids")
    (point / "cgroup.procs").write_text("1\n")
    kernel.group(point / "one.scope", "7\n")
    found = hierarchy(kernel.probe("0::/one.scope\n"))
    assert set(found.parents.values()) == {f"{point}/ringfence"}


def test_a_delegated_group_is_emptied_into_a_leaf(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = kernel.mount_v2("memory", "cpu", "pids")
    own = kernel.group(point / "mine.service", "7\n8\n")
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"1")
    moved: list[tuple[str, str]] = []

    def move(path: str, text: str) -> None:
        moved.append((path, text))
        left = [pid for pid in (own / "cgroup.procs").read_text().split() if pid != text]
        (own / "cgroup.procs").write_text("\n".join(left))

    monkeypatch.setattr(places, "write", move)
    found = hierarchy(kernel.probe("0::/mine.service\n"))
    assert set(found.parents.values()) == {f"{own}/ringfence"}
    leaf = f"{own}/ringfence-host/cgroup.procs"
    assert moved == [(leaf, "7"), (leaf, "8")]


def test_a_process_in_the_leaf_makes_groups_beside_it(kernel: Kernel) -> None:
    point = kernel.mount_v2("memory", "cpu", "pids")
    own = kernel.group(point / "mine.service")
    kernel.group(own / "ringfence-host", "7\n")
    found = hierarchy(kernel.probe("0::/mine.service/ringfence-host\n"))
    assert set(found.parents.values()) == {f"{own}/ringfence"}


def test_v2_without_a_controller_says_which_one(kernel: Kernel) -> None:
    point = kernel.mount_v2("memory", "pids")
    found = hierarchy(kernel.probe("0::/\n"))
    assert found.usable == {"memory", "pids"}
    assert found.missing == {"cpu": f"{point} does not have this controller"}


def test_an_empty_v2_beside_v1_is_passed_over(kernel: Kernel) -> None:
    point = kernel.mount_v2()
    parents = {name: kernel.mount_v1(name) / "ringfence" for name in ("memory", "pids")}
    parents["cpu"] = kernel.mount_v1("cpu", "cpuacct") / "ringfence"
    found = hierarchy(kernel.probe("5:cpu,cpuacct:/\n4:memory:/\n3:pids:/\n0::/\n"))
    assert found == cgroups.Hierarchy(1, {name: str(path) for name, path in parents.items()})
    assert not (point / "ringfence").exists()


def test_a_container_is_not_emptied_for_a_v2_that_has_no_controllers(kernel: Kernel) -> None:
    point = kernel.mount_v2()
    (point / "cgroup.type").write_text("domain\n")
    (point / "cgroup.procs").write_text("7\n")
    kernel.mount_v1("pids")
    assert hierarchy(kernel.probe("3:pids:/\n0::/\n")).version == 1
    assert [entry.name for entry in point.iterdir() if entry.is_dir()] == []


def test_v1_is_used_below_the_own_group_of_each_hierarchy(kernel: Kernel) -> None:
    memory = kernel.group(kernel.mount_v1("memory") / "job")
    pids = kernel.mount_v1("pids")
    found = hierarchy(kernel.probe("4:memory:/job\n3:pids:/\n0::/\n"))
    assert found.parents == {"memory": f"{memory}/ringfence", "pids": f"{pids}/ringfence"}
    assert found.missing == {"cpu": "no hierarchy with this controller is mounted"}


def test_v1_each_controller_is_usable_by_itself(kernel: Kernel) -> None:
    memory = kernel.mount_v1("memory")
    pids = kernel.mount_v1("pids")
    kernel.refused[f"{memory}/ringfence"] = errno.EROFS
    found = hierarchy(kernel.probe("4:memory:/\n3:pids:/\n"))
    assert found.parents == {"pids": f"{pids}/ringfence"}
    assert "Read-only file system" in found.missing["memory"]


def test_a_limit_that_does_not_hold_makes_its_controller_unusable(kernel: Kernel) -> None:
    memory = kernel.mount_v1("memory")
    kernel.mount_v1("pids")
    del kernel.files[memory]["memory.limit_in_bytes"]
    found = hierarchy(kernel.probe("4:memory:/\n3:pids:/\n"))
    assert found.usable == {"pids"}
    assert "memory.limit_in_bytes" in found.missing["memory"]
    assert not (memory / "ringfence").exists()


def test_no_place_is_said_with_the_reasons(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    point = kernel.mount_v2("memory", "cpu", "pids")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = kernel.probe("0::/\n")
    assert isinstance(found, cgroups.Unavailable)
    assert found.reason == f"v2 memory, cpu, pids: {point} is not writable"


def test_no_cgroup_file_system_at_all(kernel: Kernel) -> None:
    found = kernel.probe("0::/\n")
    assert found == cgroups.Unavailable("no cgroup file system is mounted")


def test_a_missing_proc_is_an_answer_and_no_error(tmp_path: Path) -> None:
    found = cgroups.probe(str(tmp_path))
    assert found == cgroups.Unavailable(f"{tmp_path}/mountinfo: No such file or directory")


# One group.


@pytest.fixture
def v1(kernel: Kernel) -> cgroups.Hierarchy:
    for name in ("memory", "cpu", "pids"):
        kernel.mount_v1(name)
    return hierarchy(kernel.probe("4:memory:/\n3:pids:/\n2:cpu:/\n"))


@pytest.fixture
def v2(kernel: Kernel) -> cgroups.Hierarchy:
    kernel.mount_v2("memory", "cpu", "pids")
    return hierarchy(kernel.probe("0::/\n"))


def test_a_group_of_v2_is_one_directory_with_its_limits(v2: cgroups.Hierarchy) -> None:
    made = cgroups.Group.create(v2, "rf-1", memory_bytes=PAGE * 10, cpus=1.5, pids=7)
    directory = Path(v2.parents["memory"]) / "rf-1"
    assert made.dirs == (str(directory),)
    assert made.procs_files == (f"{directory}/cgroup.procs",)
    assert (directory / "memory.max").read_text() == str(PAGE * 10)
    assert (directory / "memory.swap.max").read_text() == "0"
    assert (directory / "cpu.max").read_text() == "150000 100000"
    assert (directory / "pids.max").read_text() == "7"
    assert (made.peak_memory(), made.cpu_seconds()) == (8192, 2.5)
    made.attach(123)
    assert (directory / "cgroup.procs").read_text() == "123"
    assert made.remove()
    assert not directory.exists()


def test_a_group_of_v1_has_a_directory_for_each_controller(v1: cgroups.Hierarchy) -> None:
    made = cgroups.Group.create(v1, "rf-1", memory_bytes=PAGE * 10, cpus=1, pids=7)
    assert made.dirs == tuple(f"{v1.parents[name]}/rf-1" for name in ("memory", "cpu", "pids"))
    memory, cpu, pids = map(Path, made.dirs)
    assert (memory / "memory.limit_in_bytes").read_text() == str(PAGE * 10)
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(PAGE * 10)
    assert (cpu / "cpu.cfs_quota_us").read_text() == "100000"
    assert (pids / "pids.max").read_text() == "7"
    assert (made.peak_memory(), made.cpu_seconds()) == (4096, None)
    assert made.remove()


def test_v1_without_a_cpu_limit_needs_no_cpu_group(v1: cgroups.Hierarchy) -> None:
    made = cgroups.Group.create(v1, "rf-1")
    assert made.dirs == tuple(f"{v1.parents[name]}/rf-1" for name in ("memory", "pids"))
    assert made.remove()


def test_oom_kills_are_read_anew_and_kept_after_the_end(v2: cgroups.Hierarchy) -> None:
    made = cgroups.Group.create(v2, "rf-1", memory_bytes=PAGE)
    assert made.oom_kills() == 0
    events = Path(made.dirs[0]) / "memory.events"
    events.write_text("max 9\noom_kill 2\n")
    assert made.oom_kills() == 2
    events.write_text("max 9\noom_kill 3\n")
    assert made.remove()
    assert made.remove()
    assert made.oom_kills() == 3


def test_a_kernel_without_swap_accounting_is_fine(kernel: Kernel, v2: cgroups.Hierarchy) -> None:
    for names in kernel.files.values():
        del names["memory.swap.max"], names["memory.oom.group"]
    made = cgroups.Group.create(v2, "rf-1", memory_bytes=PAGE)
    assert made.remove()


def test_a_memory_limit_is_rounded_down_to_a_page_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch, v2: cgroups.Hierarchy
) -> None:
    monkeypatch.setattr(group_module, "read", lambda path: f"{PAGE * 2}\n")
    assert cgroups.Group.create(v2, "rf-1", memory_bytes=PAGE * 2 + 5).remove()


def test_a_memory_limit_that_is_not_kept_is_an_error(
    monkeypatch: pytest.MonkeyPatch, v2: cgroups.Hierarchy
) -> None:
    monkeypatch.setattr(group_module, "read", lambda path: "max\n")
    with pytest.raises(CreateError, match=r"memory\.max: says max when"):
        cgroups.Group.create(v2, "rf-1", memory_bytes=PAGE)
    assert not (Path(v2.parents["memory"]) / "rf-1").exists()


def test_a_failure_on_the_way_leaves_nothing(kernel: Kernel, v1: cgroups.Hierarchy) -> None:
    kernel.refused[f"{v1.parents['pids']}/rf-1"] = errno.ENOSPC
    with pytest.raises(
        CreateError, match=r"could not be made: .*/pids/ringfence/rf-1: No space left"
    ):
        cgroups.Group.create(v1, "rf-1", memory_bytes=PAGE, cpus=1, pids=7)
    assert list(kernel.root.rglob("rf-1")) == []


def test_a_name_that_is_taken_is_an_error_and_its_holder_stays(v1: cgroups.Hierarchy) -> None:
    first = cgroups.Group.create(v1, "rf-1", pids=7)
    with pytest.raises(CreateError, match="File exists"):
        cgroups.Group.create(v1, "rf-1", pids=8)
    assert [os.path.isdir(directory) for directory in first.dirs] == [True, True]


def test_the_directory_above_is_made_again_if_another_process_removed_it(
    kernel: Kernel, v2: cgroups.Hierarchy
) -> None:
    os.rmdir(v2.parents["memory"])
    assert cgroups.Group.create(v2, "rf-1", pids=7).remove()


def test_no_group_is_made_before_the_one_above_hands_down_its_controllers(
    kernel: Kernel, v2: cgroups.Hierarchy
) -> None:
    """Catches a group without limit files, in a directory that another has only just made."""
    parent = Path(v2.parents["memory"])
    (parent / "cgroup.subtree_control").write_text("")
    made = cgroups.Group.create(v2, "rf-1", pids=7)
    assert (parent / "cgroup.subtree_control").read_text().split() == ["memory", "cpu", "pids"]
    assert made.remove()


def test_a_parent_that_goes_while_the_group_is_made_is_made_again(
    kernel: Kernel, v2: cgroups.Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = v2.parents["memory"]
    gone = 0
    hands_down = files.hands_down

    def look_and_lose(above: int, controllers: Collection[str]) -> bool:
        nonlocal gone
        answer = hands_down(above, controllers)
        if answer and gone < 3:
            os.rmdir(parent)
            gone += 1
        return answer

    monkeypatch.setattr(files, "hands_down", look_and_lose)
    made = cgroups.Group.create(v2, "rf-1", pids=7)
    assert gone == 3
    assert made.remove()


def test_a_parent_that_is_always_gone_is_an_error(kernel: Kernel, v1: cgroups.Hierarchy) -> None:
    kernel.refused[f"{v1.parents['pids']}/rf-1"] = errno.ENOENT
    with pytest.raises(CreateError, match="removed again and again"):
        cgroups.Group.create(v1, "rf-1", pids=7)
    assert list(kernel.root.rglob("rf-1")) == []


def test_a_file_of_a_group_that_was_removed_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.procs").write_text("1")

    def refuse(descriptor: int, size: int) -> bytes:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(os, "read", refuse)
    with pytest.raises(FileNotFoundError, match=r"cgroup\.procs"):
        files.read(f"{tmp_path}/cgroup.procs")


def test_a_limit_without_its_controller_is_refused_by_name() -> None:
    only_pids = cgroups.Hierarchy(1, {"pids": "/nowhere"}, {"memory": "not mounted"})
    with pytest.raises(LimitError, match="no memory cgroup: not mounted") as caught:
        cgroups.Group.create(only_pids, "rf-1", memory_bytes=PAGE)
    assert caught.value.limit == "memory_bytes"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_a_name_that_is_no_path_component_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        cgroups.Group.create(cgroups.Hierarchy(2, {"pids": "/nowhere"}), name)


def test_remove_waits_for_a_busy_group_and_says_if_it_stays(v2: cgroups.Hierarchy) -> None:
    made = cgroups.Group.create(v2, "rf-1", pids=7)
    (Path(made.dirs[0]) / "busy").write_text("")
    assert made.remove(timeout=0.05) is False
    later = threading.Timer(0.05, (Path(made.dirs[0]) / "busy").unlink)
    later.start()
    assert made.remove(timeout=10) is True
    later.join()


def test_kill_ends_the_forks_first_and_gives_the_limit_back(
    monkeypatch: pytest.MonkeyPatch, v1: cgroups.Hierarchy
) -> None:
    made = cgroups.Group.create(v1, "rf-1", pids=7)
    pids_dir = Path(made.dirs[1])
    (pids_dir / "cgroup.procs").write_text("4000001\n")
    killed: list[tuple[int, str]] = []

    def kill(pid: int, number: int) -> None:
        killed.append((pid, (pids_dir / "pids.max").read_text()))
        (pids_dir / "cgroup.procs").write_text("")

    monkeypatch.setattr(os, "kill", kill)
    assert made.kill() is True
    assert killed == [(4000001, "0")]
    assert (pids_dir / "pids.max").read_text() == "7"


def test_kill_never_hits_itself_or_what_it_cannot_name(
    monkeypatch: pytest.MonkeyPatch, v2: cgroups.Hierarchy
) -> None:
    made = cgroups.Group.create(v2, "rf-1")
    (Path(made.dirs[0]) / "cgroup.procs").write_text(f"0\n{os.getpid()}\n")
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    assert made.kill(timeout=0.01) is False
    assert killed == []


def test_kill_uses_the_kernels_own_where_there_is_one(v2: cgroups.Hierarchy) -> None:
    made = cgroups.Group.create(v2, "rf-1")
    switch = Path(made.dirs[0]) / "cgroup.kill"
    switch.write_text("")
    assert made.kill() is True
    assert switch.read_text() == "1"


def test_destroy_removes_groups_and_an_empty_parent(v1: cgroups.Hierarchy) -> None:
    one = cgroups.Group.create(v1, "rf-1", pids=7)
    two = cgroups.Group.create(v1, "rf-2", pids=7)
    assert cgroups.destroy(one.dirs) is True
    assert [os.path.isdir(directory) for directory in (*one.dirs, *two.dirs)] == [False] * 2 + [
        True
    ] * 2
    assert cgroups.destroy(two.dirs) is True
    assert not os.path.exists(v1.parents["pids"])
    assert cgroups.destroy(two.dirs) is True


def test_destroy_leaves_a_directory_alone_that_is_no_cgroup(tmp_path: Path) -> None:
    (tmp_path / "ringfence").mkdir()
    stranger = tmp_path / "ringfence" / "stranger"
    stranger.mkdir()
    assert cgroups.destroy([str(stranger)]) is True
    assert stranger.is_dir()
