"""What is noted of sandboxes, by whom, and what becomes of it when the owner dies."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence import inventory
from ringfence.errors import ConfigError, CreateError, SandboxClosedError
from ringfence.inventory import Entry, Owner
from ringfence.inventory.entries import boot_id, parse_entry
from ringfence.inventory.leftovers import work_dir_fault
from ringfence.inventory.slots import is_locked, lock, place, release

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no inventory on Windows")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="knows processes by /proc")
as_root = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0, reason="gives files to another uid"
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "state"
    monkeypatch.setenv("RINGFENCE_STATE_DIR", str(directory))
    return directory


@pytest.fixture
def owner(state: Path) -> Iterator[Owner]:
    made = Owner()
    yield made
    made.close()


@pytest.fixture
def work_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ringfence-test-"))
    yield path
    subprocess.run(["chmod", "-R", "u+rwx", path], stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", path], check=True)


def other_process(code: str) -> subprocess.Popen[str]:
    """Start a process in the same state directory; it is ready when it has printed a line."""
    prelude = "import os, sys, time\nfrom ringfence import inventory\n"
    return subprocess.Popen(
        [sys.executable, "-c", prelude + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def owner_process(code: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run an owner that does something, prints a line and waits; it is killed at the end."""
    process = other_process("owner = inventory.owner()\n" + code + "\nsys.stdin.read()\n")
    with process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def dead_owner(code: str) -> str:
    """Leave behind what an owner that is killed leaves; return the line that it printed."""
    with owner_process(code) as (_, line):
        return line


def until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


# The state directory.


@pytest.mark.parametrize(
    ("environ", "uid", "expected"),
    [
        ({"RINGFENCE_STATE_DIR": "/srv/state/"}, 0, "/srv/state"),
        ({"RINGFENCE_STATE_DIR": "/srv/state", "XDG_RUNTIME_DIR": "/run/user/7"}, 7, "/srv/state"),
        ({"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/ringfence"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, 7, "/run/user/7/ringfence"),
        ({"XDG_RUNTIME_DIR": "user/7"}, 7, "/tmp/ringfence-7"),
        ({"RINGFENCE_STATE_DIR": ""}, 7, "/tmp/ringfence-7"),
    ],
)
def test_where_the_state_directory_is(environ: dict[str, str], uid: int, expected: str) -> None:
    assert place(environ, uid) == expected


def test_a_relative_state_directory_is_refused() -> None:
    with pytest.raises(ConfigError, match="RINGFENCE_STATE_DIR must be absolute, not 'here'"):
        place({"RINGFENCE_STATE_DIR": "here"}, 0)


def test_the_state_directory_is_private_and_root_lets_others_pass_through(state: Path) -> None:
    before = os.umask(0o077)
    try:
        assert inventory.state_dir() == str(state)
        stage = Path(inventory.stage_dir())
    finally:
        os.umask(before)
    assert stat.S_IMODE(state.stat().st_mode) == (0o755 if os.geteuid() == 0 else 0o700)
    assert stage == state / "stage"
    assert stat.S_IMODE(stage.stat().st_mode) == 0o755


@pytest.mark.parametrize("use", [inventory.state_dir, inventory.scan, inventory.reap, Owner])
def test_a_state_directory_that_others_can_write_to_is_refused(
    state: Path, use: Callable[[], object]
) -> None:
    """Catches a stranger who plants entries that make us kill and delete."""
    state.mkdir()
    state.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written to by others"):
        use()


@pytest.mark.parametrize("use", [inventory.state_dir, inventory.scan, inventory.reap, Owner])
def test_a_state_directory_that_is_a_link_is_refused(
    state: Path, tmp_path: Path, use: Callable[[], object]
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is not a directory"):
        use()


@as_root
@pytest.mark.parametrize("use", [inventory.state_dir, inventory.scan, inventory.reap, Owner])
def test_a_state_directory_of_another_user_is_refused(
    state: Path, use: Callable[[], object]
) -> None:
    state.mkdir(mode=0o700)
    os.chown(state, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        use()


def test_a_state_directory_that_cannot_be_made_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RINGFENCE_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(ConfigError, match=r"can't be made.*set RINGFENCE_STATE_DIR"):
        inventory.state_dir()


def test_looking_makes_nothing(state: Path) -> None:
    assert (inventory.scan(), inventory.reap()) == ([], 0)
    assert not state.exists()


# Slots.


def test_owners_take_the_lowest_free_slots(state: Path) -> None:
    first, second, third = Owner(), Owner(), Owner()
    assert [first.slot, second.slot, third.slot] == [0, 1, 2]
    second.close()
    again = Owner()
    assert again.slot == 1
    for made in (first, again, third):
        made.close()
    assert list((state / "owners").iterdir()) == []


def test_a_slot_is_held_until_its_process_is_killed(state: Path) -> None:
    with owner_process("print(owner.slot, flush=True)") as (process, line):
        path = f"{state}/owners/{line}"
        assert is_locked(path)
        assert lock(path) is None
        process.kill()
        process.wait(timeout=30)
        assert not is_locked(path)


def test_a_process_that_ends_in_order_leaves_no_slot(state: Path) -> None:
    code = (
        "owner = inventory.owner()\n"
        "owner.add(inventory.Entry('rf-1', 'process'))\n"
        "owner.discard('rf-1')\n"
    )
    with other_process(code) as process:
        assert process.wait(timeout=30) == 0
    assert list((state / "owners").iterdir()) == []


def test_a_process_that_ends_with_sandboxes_leaves_them_to_a_reaper(state: Path) -> None:
    with other_process("inventory.owner().add(inventory.Entry('rf-1', 'process'))") as process:
        assert process.wait(timeout=30) == 0
    assert [(found.entry.id, found.alive) for found in inventory.scan()] == [("rf-1", False)]
    assert inventory.reap() == 1


def test_a_slot_that_is_removed_in_the_moment_of_taking_is_made_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory.state_dir()
    path = state / "owners" / "0"
    path.mkdir(parents=True)
    real_open = os.open

    def open_and_remove(name: str, flags: int) -> int:
        monkeypatch.setattr(os, "open", real_open)
        descriptor = real_open(name, flags)
        path.rmdir()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_remove)
    descriptor = lock(str(path), make=True)
    assert descriptor is not None
    assert os.path.samestat(os.fstat(descriptor), path.stat())
    release(descriptor)


def test_no_free_slot_is_an_error(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.inventory.owners.SLOTS", 1)
    made = Owner()
    with pytest.raises(CreateError, match=r"all 1 slots .* are taken"):
        Owner()
    made.close()


def test_the_leftovers_in_a_slot_are_reaped_before_it_is_used_again(
    state: Path, work_dir: Path
) -> None:
    entry = f"inventory.Entry('rf-old', 'process', work_dir={str(work_dir)!r})"
    dead_owner(f"owner.add({entry}); print(owner.slot, flush=True)")
    made = Owner()
    assert made.slot == 0
    assert not work_dir.exists()
    assert inventory.scan() == []
    made.close()


@on_linux
def test_a_slot_in_which_something_stays_is_passed_over(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead_owner("owner.add(inventory.Entry('rf-stuck', 'process')); print(flush=True)")
    monkeypatch.setattr("ringfence.inventory.leftovers.cgroups.destroy", lambda dirs: False)
    made = Owner()
    assert made.slot == 1
    assert [found.entry.id for found in inventory.scan()] == ["rf-stuck"]
    made.close()


# Forks.


def test_a_child_gets_a_slot_of_its_own(state: Path) -> None:
    code = (
        "owner.add(inventory.Entry('rf-parent', 'process'))\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        owner.discard('rf-parent')\n"
        "    except inventory.owners.SandboxClosedError as error:\n"
        "        print(owner.slot, inventory.owner().slot, error.code, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    with owner_process(code) as (_, line):
        assert line == "0 1 sandbox_closed"
        assert [found.entry.id for found in inventory.scan()] == ["rf-parent"]


def test_a_child_does_not_keep_its_dead_parents_slot(state: Path) -> None:
    """Catches a lock that is inherited: the parent's sandboxes would never be reaped."""
    code = (
        "owner.add(inventory.Entry('rf-parent', 'process'))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    time.sleep(300)\n"
        "    os._exit(0)\n"
        "print(child, flush=True)\n"
    )
    child = int(dead_owner(code))
    try:
        # The child may not have run yet at all.
        assert until(lambda: [found.alive for found in inventory.scan()] == [False])
        assert inventory.reap() == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_fork_while_another_thread_takes_a_slot_inherits_no_lock(state: Path) -> None:
    code = (
        "import threading, warnings\n"
        "from ringfence.inventory import slots\n"
        "warnings.simplefilter('ignore')\n"
        "locked = threading.Event()\n"
        "real = slots._flock\n"
        "def slow(descriptor, *, shared):\n"
        "    done = real(descriptor, shared=shared)\n"
        "    if done:\n"
        "        locked.set()\n"
        "        time.sleep(0.2)\n"
        "    return done\n"
        "slots._flock = slow\n"
        "thread = threading.Thread(target=inventory.Owner)\n"
        "thread.start()\n"
        "locked.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    time.sleep(300)\n"
        "    os._exit(0)\n"
        "thread.join(30)\n"
        "other = threading.Thread(target=inventory.Owner, daemon=True)\n"
        "other.start()\n"
        "other.join(30)\n"
        "print(child, flush=True)\n"
    )
    child = int(dead_owner(code))
    try:
        assert sorted(path.name for path in (state / "owners").iterdir()) == ["0", "1", "2"]
        assert until(lambda: not is_locked(f"{state}/owners/1"))
        assert not is_locked(f"{state}/owners/0")
    finally:
        os.kill(child, signal.SIGKILL)


# Entries.


def test_an_entry_comes_back_as_it_was_noted(owner: Owner) -> None:
    entry = Entry(
        "rf-0123456789ab",
        "bubblewrap",
        pid=1234,
        start_time=99,
        uid=1_900_000_007,
        cgroups=("/sys/fs/cgroup/ringfence/rf-0123456789ab",),
        work_dir=f"{tempfile.gettempdir()}/ringfence-\udcff",
        labels={"session": "ä"},
        created=1700000000.25,
    )
    owner.add(entry)
    [found] = inventory.scan()
    assert found == inventory.Found(entry, slot=0, alive=True)
    assert found.entry.owner_pid == os.getpid()


def test_an_entry_is_for_its_owner_alone(owner: Owner, state: Path) -> None:
    owner.add(Entry("rf-1", "process"))
    assert stat.S_IMODE((state / "owners").stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "owners/0").stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "owners/0/rf-1.json").stat().st_mode) == 0o600


def test_update_replaces_and_discard_forgets(owner: Owner, state: Path) -> None:
    entry = Entry("rf-1", "process")
    owner.add(entry)
    owner.update(replace(entry, pid=77))
    assert [found.entry.pid for found in inventory.scan()] == [77]
    owner.discard("rf-1")
    owner.discard("rf-1")
    assert list((state / "owners/0").iterdir()) == []


def test_an_id_that_is_taken_is_an_error_and_its_entry_stays(owner: Owner) -> None:
    owner.add(Entry("rf-1", "process", pid=5))
    with pytest.raises(CreateError, match="there is a sandbox 'rf-1' already"):
        owner.add(Entry("rf-1", "process", pid=6))
    assert [found.entry.pid for found in inventory.scan()] == [5]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", ".hidden", "a\0b", "a" * 101, "a\n"]
)
def test_an_id_that_is_no_file_name_is_refused(owner: Owner, name: str) -> None:
    with pytest.raises(ConfigError):
        owner.add(Entry(name, "process"))
    owner.discard(name)


def test_a_full_disk_is_an_error_and_leaves_no_torn_entry(
    owner: Owner, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda descriptor, data: 10)
    with pytest.raises(CreateError, match=r"rf-1\.json can't be written: No space left"):
        owner.add(Entry("rf-1", "process"))
    with pytest.raises(CreateError, match=r"rf-1\.json can't be written: No space left"):
        owner.update(Entry("rf-1", "process"))
    assert list((state / "owners/0").iterdir()) == []


def test_a_state_directory_that_was_removed_is_an_error(owner: Owner, state: Path) -> None:
    subprocess.run(["rm", "-r", state], check=True)
    with pytest.raises(CreateError, match="can't be written"):
        owner.add(Entry("rf-1", "process"))


def test_a_closed_owner_is_of_no_use(state: Path) -> None:
    made = Owner()
    made.close()
    made.close()
    for use in (made.take_uid, lambda: made.add(Entry("a", "b")), lambda: made.discard("a")):
        with pytest.raises(SandboxClosedError):
            use()


@pytest.mark.parametrize(
    "change",
    [
        {"pid": "1"},
        {"cgroups": "x"},
        {"cgroups": [1]},
        {"labels": {"a": 1}},
        {"labels": None},
        {"work_dir": 7},
        {"created": "now"},
        {"id": None},
    ],
)
def test_a_file_that_is_not_an_entry_is_none(change: dict[str, object]) -> None:
    whole = json.loads(Entry("rf-1", "process").to_json())
    assert parse_entry(json.dumps({**whole, "later": 1}).encode()) is not None
    assert parse_entry(json.dumps({**whole, **change}).encode()) is None


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b"7", b"{}"])
def test_torn_bytes_are_no_entry(data: bytes) -> None:
    assert parse_entry(data) is None


def test_every_cut_of_an_entry_is_no_entry() -> None:
    whole = Entry("rf-1", "process", cgroups=("/a",), labels={"x": "y"}).to_json()
    assert [end for end in range(len(whole)) if parse_entry(whole[:end]) is not None] == []


# Private uids.


def test_uids_are_private_to_the_slot(state: Path) -> None:
    first, second = Owner(), Owner()
    one = {first.take_uid() for _ in range(50)}
    two = {second.take_uid() for _ in range(50)}
    assert len(one) == len(two) == 50
    assert all(1_900_000_000 <= uid < 1_900_004_096 for uid in one)
    assert all(1_900_004_096 <= uid < 1_900_008_192 for uid in two)
    first.close()
    second.close()


def test_the_last_slots_uids_fit_into_what_every_kernel_takes() -> None:
    last = inventory.BASE_UID + inventory.SLOTS * inventory.UIDS_PER_SLOT - 1
    assert last == 1_904_194_303 < 2**31 - 1


def test_a_freed_uid_comes_round_last(owner: Owner) -> None:
    taken = [owner.take_uid() for _ in range(4095)]
    assert len(set(taken)) == 4095
    owner.free_uid(taken[-1])
    last, again = owner.take_uid(), owner.take_uid()
    assert last not in taken
    assert again == taken[-1]
    with pytest.raises(CreateError, match="all 4096 private uids"):
        owner.take_uid()
    owner.free_uid(taken[7])
    owner.free_uid(taken[7])
    assert owner.take_uid() == taken[7]


# Reaping.


@on_linux
def test_a_process_is_known_by_its_start_and_not_by_its_pid_alone() -> None:
    with subprocess.Popen(["sleep", "30"]) as sleeper:
        entry = Entry("rf-1", "process").started(sleeper.pid)
        assert inventory.is_running(entry)
        assert entry.start_time is not None
        assert not inventory.is_running(replace(entry, start_time=entry.start_time - 1))
        assert not inventory.is_running(replace(entry, start_time=None))
        assert not inventory.is_running(replace(entry, boot_id="another"))
        sleeper.kill()
        assert until(lambda: not inventory.is_running(entry))  # a zombie, not waited for yet
        assert inventory.process_start_time(sleeper.pid) is None


@on_linux
def test_a_process_with_an_odd_name_is_read_right(tmp_path: Path) -> None:
    program = tmp_path / ") S 1 2 (x"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "30"]) as odd, subprocess.Popen(["sleep", "30"]) as plain:
        times = [inventory.process_start_time(process.pid) for process in (odd, plain)]
        assert None not in times
        assert abs((times[0] or 0) - (times[1] or 0)) < 500
        odd.kill()
        plain.kill()


@on_linux
def test_what_a_killed_owner_left_is_removed(state: Path, work_dir: Path) -> None:
    (work_dir / "deep" / "er").mkdir(parents=True)
    (work_dir / "deep" / "er" / "file").write_text("x")
    line = dead_owner(
        "import subprocess\n"
        "sleeper = subprocess.Popen(['sleep', '60'])\n"
        "entry = inventory.Entry('rf-1', 'process', work_dir=" + repr(str(work_dir)) + ")\n"
        "owner.add(entry)\n"
        "owner.update(entry.started(sleeper.pid))\n"
        "print(sleeper.pid, flush=True)\n"
    )
    assert inventory.process_start_time(int(line)) is not None
    assert [found.alive for found in inventory.scan()] == [False]
    assert inventory.reap() == 1
    assert inventory.process_start_time(int(line)) is None
    assert not work_dir.exists()
    assert list((state / "owners").iterdir()) == []
    assert inventory.reap() == 0


@on_linux
def test_a_process_that_only_has_the_pid_is_left_alone(state: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as stranger:
        start = inventory.process_start_time(stranger.pid)
        assert start is not None
        dead_owner(
            f"owner.add(inventory.Entry('rf-1', 'process', pid={stranger.pid},"
            f" start_time={start - 1}))\n"
            f"owner.add(inventory.Entry('rf-2', 'process', pid={stranger.pid},"
            f" start_time={start}, boot_id='another'))\n"
            "print(flush=True)"
        )
        assert inventory.reap() == 2
        assert stranger.poll() is None
        stranger.kill()


@on_linux
def test_nothing_of_a_live_owner_is_touched(state: Path, work_dir: Path, owner: Owner) -> None:
    with subprocess.Popen(["sleep", "30"]) as ours:
        owner.add(Entry("rf-1", "process", work_dir=str(work_dir)).started(ours.pid))
        code = (
            "owner.add(inventory.Entry('rf-2', 'process', work_dir="
            + repr(str(work_dir))
            + ")); print(flush=True)"
        )
        with owner_process(code):
            assert inventory.reap() == 0
            with other_process("print(inventory.reap())") as other:
                assert other.communicate(timeout=30)[0] == "0\n"
            assert [found.alive for found in inventory.scan()] == [True, True]
        assert work_dir.exists()
        assert ours.poll() is None
        ours.kill()


def test_a_torn_file_of_a_dead_owner_goes_and_is_not_counted(state: Path) -> None:
    dead_owner("owner.add(inventory.Entry('rf-1', 'process')); print(flush=True)")
    slot = state / "owners/0"
    (slot / "rf-2.json").write_bytes(b'{"id": "rf-')
    (slot / ".rf-3.new").write_bytes(b"")
    (slot / "rf-4.json").write_bytes(Entry("rf-5", "process").to_json())
    assert [found.entry.id for found in inventory.scan()] == ["rf-1"]
    assert inventory.reap() == 1
    assert not slot.exists()


def test_what_cannot_be_removed_stays_in_the_inventory(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead_owner("owner.add(inventory.Entry('rf-1', 'process')); print(flush=True)")
    with monkeypatch.context() as patch:
        patch.setattr("ringfence.inventory.leftovers.cgroups.destroy", lambda dirs: False)
        with caplog.at_level(logging.WARNING):
            assert inventory.reap() == 0
    assert "sandbox rf-1 of a dead owner can't be removed yet" in caplog.text
    assert [found.entry.id for found in inventory.scan()] == ["rf-1"]
    assert inventory.reap() == 1


def test_two_reapers_at_once_reap_each_sandbox_once(state: Path) -> None:
    for _ in range(2):
        many = "\n".join(f"owner.add(inventory.Entry('rf-{n}', 'process'))" for n in range(40))
        owner_code = many + "\nprint(flush=True)"
        with owner_process(owner_code), owner_process(owner_code):
            assert len(inventory.scan()) == 80
        reapers = [other_process("sys.stdin.read(); print(inventory.reap())") for _ in range(4)]
        for reaper in reapers:
            assert reaper.stdin is not None
            reaper.stdin.close()
            reaper.stdin = None
        counts = [int(reaper.communicate(timeout=30)[0]) for reaper in reapers]
        assert sum(counts) == 80
        assert list((state / "owners").iterdir()) == []


def test_scan_and_reap_bear_owners_that_come_and_go(state: Path) -> None:
    code = (
        "end = time.monotonic() + 1\n"
        "while time.monotonic() < end:\n"
        "    owner = inventory.Owner()\n"
        "    for n in range(5): owner.add(inventory.Entry(f'rf-{n}', 'process'))\n"
        "    for n in range(5): owner.update(inventory.Entry(f'rf-{n}', 'process', pid=n))\n"
        "    for n in range(5): owner.discard(f'rf-{n}')\n"
        "    owner.close()\n"
    )
    busy = [other_process(code) for _ in range(3)]
    seen = 0
    while any(process.poll() is None for process in busy):
        found = inventory.scan()
        assert inventory.reap() == 0
        seen += len(found)
    for process in busy:
        with process:
            assert process.wait(timeout=30) == 0
    assert seen > 0
    assert list((state / "owners").iterdir()) == []


# Work directories.


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/tmp/ringfence-x", None),
        ("/var/tmp/ringfence-x", None),
        ("/tmp/some/where/ringfence-x", None),
        ("/tmp/other", "is not named ringfence-..."),
        ("/tmp", "is not named ringfence-..."),
        ("/tmp/ringfence-x/inner", "is not named ringfence-..."),
        ("/tmp/ringfence-x/", "is not a plain absolute path"),
        ("/tmp/a/../ringfence-x", "is not a plain absolute path"),
        ("/tmp/../home/ringfence-x", "is not a plain absolute path"),
        ("tmp/ringfence-x", "is not a plain absolute path"),
        ("", "is not a plain absolute path"),
        ("/home/me/ringfence-x", "is not below a temporary directory or the state directory"),
        ("/tmpfoo/ringfence-x", "is not below a temporary directory or the state directory"),
        ("/ringfence-x", "is not below a temporary directory or the state directory"),
    ],
)
def test_which_directories_may_be_deleted(path: str, fault: str | None) -> None:
    assert work_dir_fault(path) == fault


def test_a_directory_below_the_state_directory_may_be_deleted(state: Path) -> None:
    assert work_dir_fault(f"{state}/work/ringfence-x") is None


def test_a_link_on_the_way_to_the_work_dir_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/usr")
    fault = work_dir_fault(f"{tmp_path}/link/ringfence-x")
    assert fault == "is not below a temporary directory or the state directory"


def test_a_work_dir_that_is_none_to_delete_is_refused_when_noted(owner: Owner) -> None:
    with pytest.raises(ConfigError, match=r"work directory '/home/me' is not named ringfence-"):
        owner.add(Entry("rf-1", "process", work_dir="/home/me"))
    with pytest.raises(ConfigError):
        owner.update(Entry("rf-1", "process", work_dir="/home/me"))
    assert inventory.scan() == []


def leave(state: Path, entry: Entry) -> None:
    """Write an entry as a dead owner's, without the checks of `add`."""
    slot = state / "owners/0"
    slot.mkdir(parents=True, exist_ok=True)
    (slot / f"{entry.id}.json").write_bytes(entry.to_json())


@pytest.fixture
def private_state(state: Path) -> Path:
    state.mkdir(mode=0o700)
    return state


def test_a_forged_work_dir_is_not_deleted_and_said(
    private_state: Path, work_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = work_dir / "other"
    other.mkdir()
    leave(private_state, Entry("rf-1", "process", work_dir=str(other)))
    with caplog.at_level(logging.WARNING):
        assert inventory.reap() == 1
    assert other.is_dir()
    assert f"work directory {str(other)!r} of sandbox rf-1 stays" in caplog.text


def test_a_work_dir_that_became_a_link_is_not_followed(private_state: Path, work_dir: Path) -> None:
    (work_dir / "precious").mkdir()
    (work_dir / "precious" / "file").write_text("x")
    link = work_dir / "ringfence-link"
    link.symlink_to(work_dir / "precious")
    leave(private_state, Entry("rf-1", "process", work_dir=str(link)))
    assert inventory.reap() == 1
    assert (work_dir / "precious" / "file").read_text() == "x"
    assert link.is_symlink()


@as_root
def test_a_work_dir_of_a_stranger_stays_and_one_of_the_sandbox_goes(
    private_state: Path, work_dir: Path
) -> None:
    strange, own = work_dir / "ringfence-strange", work_dir / "ringfence-own"
    for path, uid in ((strange, 12345), (own, 1_900_000_001)):
        path.mkdir()
        os.chown(path, uid, uid)
        entry = Entry(f"rf-{uid}", "bubblewrap", uid=1_900_000_001, work_dir=str(path))
        leave(private_state, entry)
    assert inventory.reap() == 2
    assert strange.is_dir()
    assert not own.exists()


def test_links_in_a_work_dir_are_removed_and_not_followed(
    private_state: Path, work_dir: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    (work_dir / "to-dir").symlink_to(outside)
    (work_dir / "inner").mkdir()
    (work_dir / "inner" / "to-dir").symlink_to(outside)
    (work_dir / "dangling").symlink_to("/nowhere")
    leave(private_state, Entry("rf-1", "process", work_dir=str(work_dir)))
    assert inventory.reap() == 1
    assert not work_dir.exists()
    assert (outside / "file").read_text() == "x"


def test_directories_without_permissions_are_removed(private_state: Path, work_dir: Path) -> None:
    (work_dir / "a" / "b" / "c").mkdir(parents=True)
    (work_dir / "a" / "b" / "file").write_text("x")
    for path in (work_dir / "a" / "b" / "c", work_dir / "a" / "b", work_dir / "a", work_dir):
        path.chmod(0)
    leave(private_state, Entry("rf-1", "process", work_dir=str(work_dir)))
    assert inventory.reap() == 1
    assert not work_dir.exists()


def test_a_very_deep_tree_is_removed(private_state: Path, work_dir: Path) -> None:
    here = os.open(work_dir, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    leave(private_state, Entry("rf-1", "process", work_dir=str(work_dir)))
    assert inventory.reap() == 1
    assert not work_dir.exists()


def test_there_is_no_inventory_and_no_fault_on_windows() -> None:
    code = (
        "import os, sys, ringfence, ringfence.inventory\n"
        "for name in [name for name in sys.modules if name.split('.')[1:2] in\n"
        "             (['inventory'], ['cgroups'])]:\n"
        "    del sys.modules[name]\n"
        "sys.platform, sys.modules['fcntl'] = 'win32', None\n"
        "for name in ('register_at_fork', 'geteuid', 'O_DIRECTORY', 'O_NOFOLLOW', 'O_CLOEXEC'):\n"
        "    delattr(os, name)\n"
        "import ringfence.cgroups as cgroups, ringfence.inventory as inventory\n"
        "print(inventory.scan(), inventory.reap(), cgroups.probe().reason)\n"
        "try: inventory.owner()\n"
        "except ringfence.UnsupportedError as error: print(error.code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == (
        "[] 0 cgroups are a feature of Linux\nunsupported\n",
        "",
    )


def test_this_boot_has_an_id_where_the_kernel_gives_one() -> None:
    expected = ""
    with suppress(OSError):
        expected = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot_id() == expected
