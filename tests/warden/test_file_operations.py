"""The warden's file operations, on trees that were made to trip them."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from . import wire
from .wire import Ended, RawWarden

NOT_A_FILE = 200
ENTRY = struct.Struct("<QqII")


class Files:
    """File operations of one warden."""

    def __init__(self, warden: RawWarden) -> None:
        self.warden = warden
        self._channel = 0

    def __call__(self, operation: int, *paths: bytes, **options: object) -> Ended:
        self._channel += 1
        return self.warden.run(self._channel, paths, env=(), operation=operation, **options)

    def write(self, path: bytes, data: bytes, mode: int = wire.NO_MODE, append: int = 0) -> int:
        flags = wire.HAS_STDIN | wire.STDIN_COMPLETE
        end = self(wire.WRITE, path, flags=flags, stdin=data, numbers=(mode, append))
        return end.value

    def read(self, path: bytes, offset: int = 0, most: int = 1 << 30) -> tuple[int, int, bytes]:
        end = self(wire.READ, path, numbers=(offset, most))
        size = struct.unpack_from("<Q", end.stdout)[0] if end.stdout else -1
        return end.value, size, end.stdout[8:]

    def read_many(self, *paths: bytes, most: int = 1 << 30) -> list[int | bytes]:
        """Return each file's errno or content."""
        end = self(wire.READ_MANY, *paths, numbers=(most, 0))
        assert end.value == 0
        data, found = end.stdout, []
        while data:
            status, length = struct.unpack_from("<II", data)
            assert not (status and length)
            found.append(status or data[8 : 8 + length])
            data = data[8 + length :]
        assert len(found) == len(paths)
        return found

    def write_many(self, *files: tuple[bytes, bytes], mode: int = wire.NO_MODE) -> list[int]:
        """Write files and return each one's errno."""
        data = b"".join(wire.new_file(content, mode) for _, content in files)
        flags = wire.HAS_STDIN | wire.STDIN_COMPLETE
        end = self(wire.WRITE_MANY, *(path for path, _ in files), flags=flags, stdin=data)
        assert end.value == 0
        return list(struct.unpack(f"<{len(files)}I", end.stdout))

    def entries(self, operation: int, path: bytes) -> dict[bytes, tuple[int, int, int]]:
        end = self(operation, path)
        assert end.value == 0
        data, found = end.stdout, {}
        while data:
            size, mtime, mode, length = ENTRY.unpack_from(data)
            found[data[ENTRY.size : ENTRY.size + length]] = (size, mtime, mode)
            data = data[ENTRY.size + length :]
        return found


@pytest.fixture
def files(warden: RawWarden) -> Files:
    return Files(warden)


def test_writing_and_reading(files: Files, workspace: Path) -> None:
    assert files.write(b"a/b/c", b"one") == 0
    assert files.write(b"a/b/c", b"two", append=1) == 0
    assert files.read(b"a/b/c") == (0, 6, b"onetwo")
    assert files.read(b"a/b/c", 4, 1) == (0, 6, b"w")
    assert files.read(b"a/b/c", 100) == (0, 6, b"")
    assert files.read(b"a/b/c", 0, 0) == (0, 6, b"")
    assert files.write(b"a/b/c", b"3", mode=0o751) == 0
    assert (workspace / "a/b/c").read_bytes() == b"3"
    assert (workspace / "a/b/c").stat().st_mode & 0o7777 == 0o751
    assert (workspace / "a").stat().st_mode & 0o7777 == 0o755


def test_a_file_larger_than_every_window(files: Files, workspace: Path) -> None:
    data = os.urandom(3_000_000)
    (workspace / "large").write_bytes(data)
    files.warden.send(
        wire.start(1, [b"large"], env=(), operation=wire.READ, numbers=(0, 1 << 40), window=1000)
    )
    got = b""
    for kind, _, payload in files.warden.frames():
        if kind == wire.STDOUT:
            got += payload
            files.warden.send(wire.credit(1, len(payload), 0))
        if kind == wire.EXIT:
            break
    assert got[8:] == data


def test_many_files_at_once(files: Files, workspace: Path) -> None:
    """One that can't be read stops no other."""
    data = {b"%d" % number: os.urandom(number * 7) for number in range(300)}
    for name, content in data.items():
        (workspace / os.fsdecode(name)).write_bytes(content)
    (workspace / "d").mkdir()
    assert files.read_many(*data) == [*data.values()]
    assert files.read_many(b"missing", b"3", b"d", b"0", b"3") == [
        errno.ENOENT,
        data[b"3"],
        errno.EISDIR,
        b"",
        data[b"3"],
    ]


def test_many_files_within_a_bound(files: Files, workspace: Path) -> None:
    for name, size in {
        "a": 10,
        "b": 11,
        "c": 20,
        "large": (512 << 10) + 1,
        "most": 512 << 10,
    }.items():
        (workspace / name).write_bytes(os.urandom(size))
    content = {path.name.encode(): path.read_bytes() for path in workspace.iterdir()}
    a, b, c = content[b"a"], content[b"b"], content[b"c"]
    assert files.read_many(b"a", b"b", b"c", most=41) == [a, b, c]
    assert files.read_many(b"a", b"b", b"c", most=40) == [a, b, errno.EFBIG]
    assert files.read_many(b"a", b"c", b"b", most=29) == [a, errno.EFBIG, b]
    assert files.read_many(b"b", b"a", most=10) == [errno.EFBIG, a]
    assert files.read_many(b"a", most=0) == [errno.EFBIG]
    assert files.read_many(b"most", b"large") == [content[b"most"], errno.EFBIG]


def test_many_files_of_more_than_every_window(files: Files, workspace: Path) -> None:
    (workspace / "f").write_bytes(os.urandom(100_000))
    files.warden.send(
        wire.start(
            1, [b"f"] * 12, env=(), operation=wire.READ_MANY, numbers=(5_000_000, 0), window=50_000
        )
    )
    got = b""
    for kind, _, payload in files.warden.frames():
        if kind == wire.STDOUT:
            got += payload
            files.warden.send(wire.credit(1, len(payload), 0))
        if kind == wire.EXIT:
            break
    assert got == (struct.pack("<II", 0, 100_000) + (workspace / "f").read_bytes()) * 12


def test_many_files_that_change_meanwhile(files: Files, workspace: Path) -> None:
    """Whatever they do, the lengths are those of the bytes that follow."""
    (workspace / "f").touch()
    done = threading.Event()

    def change() -> None:
        size = 0
        with open(workspace / "f", "r+b", buffering=0) as file:
            while not done.is_set():
                size = (size * 31 + 77_777) % 400_000
                file.truncate(size)
                file.write(b"x" * 5000)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(30):
            for found in files.read_many(*[b"f"] * 5, most=800_000):
                assert found == errno.EFBIG or isinstance(found, bytes)
    finally:
        done.set()
        changer.join()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (b"missing", errno.ENOENT),
        (b".", errno.EISDIR),
        (b"fifo", NOT_A_FILE),
        (b"socket", NOT_A_FILE),
        (b"device", NOT_A_FILE),
        (b"out", errno.EXDEV),
        (b"up/x", errno.EXDEV),
        (b"loop", errno.ELOOP),
        (b"file/below", errno.ENOTDIR),
        (b"x" * 300, errno.ENAMETOOLONG),
        (b"d/" * 3000 + b"x", errno.ENAMETOOLONG),
        (b"/etc/passwd", errno.EXDEV),
        (b"../x", errno.EXDEV),
        (b"proc/self/environ", errno.EXDEV),
    ],
)
def test_what_cannot_be_read(files: Files, workspace: Path, path: bytes, value: int) -> None:
    (workspace / "file").touch()
    os.mkfifo(workspace / "fifo")
    (workspace / "device").symlink_to("/dev/zero")
    os.mknod(workspace / "node", 0o600)
    (workspace / "out").symlink_to("/etc/passwd")
    (workspace / "up").symlink_to("..")
    (workspace / "proc").symlink_to("/proc")
    (workspace / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(workspace / "socket"))
    if path == b"device":
        value = errno.EXDEV
    assert files.read(path)[0] == value
    assert files.read_many(b"file", path, b"file") == [b"", value, b""]
    if path not in (b"missing", b"x" * 300):
        assert files.write(path, b"x") != 0
    assert Path("/etc/passwd").read_bytes()


def test_many_files_written_at_once(files: Files, workspace: Path) -> None:
    """One that can't be written stops no other, and nothing that was there is lost by it."""
    data = {b"%d/%d" % (number % 3, number): os.urandom(number * 3) for number in range(130)}
    assert files.write_many(*data.items()) == [0] * 130
    assert {name: (workspace / os.fsdecode(name)).read_bytes() for name in data} == data
    (workspace / "0/3").chmod(0o751)
    os.mkfifo(workspace / "fifo")
    (workspace / "out").symlink_to("/tmp")
    found = files.write_many(
        (b"0/3", b"new"), (b"0", b"a" * 20_000), (b"fifo", b"x"), (b"out/x", b""), (b"0/0/x", b""),
        (b"../x", b"x"), (b"last", b"last"),
    )  # fmt: skip
    assert found == [
        0, errno.EISDIR, NOT_A_FILE, errno.EXDEV, errno.ENOTDIR, errno.EXDEV, 0
    ]  # fmt: skip
    assert (workspace / "0/3").read_bytes() == b"new"
    assert (workspace / "0/3").stat().st_mode & 0o7777 == 0o751
    assert (workspace / "last").read_bytes() == b"last"
    assert (workspace / "last").stat().st_mode & 0o7777 == 0o644
    assert files.write_many((b"last", b"x"), mode=0o600) == [0]
    assert (workspace / "last").stat().st_mode & 0o7777 == 0o600
    assert not (workspace.parent / "x").exists()


def test_many_files_of_more_than_the_window_of_stdin(files: Files, workspace: Path) -> None:
    content = {b"%d" % size: os.urandom(size) for size in (0, 1, 200_000, 65_537, 300_000, 7)}
    data = b"".join(wire.new_file(one) for one in content.values())
    flags = wire.HAS_STDIN
    start = wire.start(
        1, list(content), env=(), operation=wire.WRITE_MANY, flags=flags, stdin=data[:65_531]
    )
    files.warden.send(start)
    sent, told = 65_531, b""
    free = 65_536 - sent
    for kind, _, payload in files.warden.frames():
        if kind == wire.STDIN_ACK:
            free += struct.unpack("<I", payload)[0]
            part = data[sent : sent + free]
            sent, free = sent + len(part), free - len(part)
            if part:
                files.warden.send(wire.frame(wire.STDIN, 1, part))
                if sent == len(data):
                    files.warden.send(wire.frame(wire.STDIN_END, 1))
        if kind == wire.STDOUT:
            told += payload
        if kind == wire.EXIT:
            break
    assert told == bytes(4 * len(content))
    assert {path.name.encode(): path.read_bytes() for path in workspace.iterdir()} == content


@pytest.mark.parametrize("cut", [1, 5, 9, 11, 20, 24, 30])
def test_of_many_files_none_stays_that_has_not_come_whole(
    files: Files, workspace: Path, cut: int
) -> None:
    """The host has gone silent in the middle: what was whole by then is told, and stays."""
    (workspace / "target").write_bytes(b"old")
    (workspace / "b").symlink_to("target")
    data = wire.new_file(b"aaa") + wire.new_file(b"bbbb") + wire.new_file(b"c" * 100)
    flags = wire.HAS_STDIN | wire.STDIN_COMPLETE
    end = files(wire.WRITE_MANY, b"a", b"b", b"c", flags=flags, stdin=data[:cut])
    whole = (cut >= 11) + (cut >= 23)
    assert (end.value, end.stdout) == (errno.EINVAL, bytes(4 * whole))
    assert (workspace / "a").exists() == (whole > 0)
    assert (workspace / "b").is_symlink()
    assert (workspace / "target").read_bytes() in ((b"bbbb",) if whole == 2 else (b"old", b""))
    assert not (workspace / "c").exists()


def test_links_inside_are_followed(files: Files, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "link").symlink_to("d")
    assert files.write(b"link/x", b"1") == 0
    assert files.read(b"d/x") == (0, 1, b"1")
    described = files.entries(wire.STAT, b"link")
    assert list(described) == [b"link"]
    assert described[b"link"][2] & 0o170000 == 0o120000


def test_a_listing_with_any_name(files: Files, workspace: Path) -> None:
    names = {bytes([n]) for n in range(1, 256)} - {b".", b"/"} | {b"x" * 255, b"a\nb", b"...", b"-"}
    for name in names:
        (workspace / os.fsdecode(name)).write_bytes(name)
    found = files.entries(wire.LIST, b".")
    assert {name: entry[0] for name, entry in found.items()} == {n: len(n) for n in names}
    mtime = (workspace / "-").stat().st_mtime_ns
    assert files.entries(wire.STAT, b"-")[b"-"] == (1, mtime, 0o100644)


def test_a_listing_of_many(files: Files, workspace: Path) -> None:
    for number in range(5000):
        (workspace / f"{number:0100}").touch()
    assert len(files.entries(wire.LIST, b".")) == 5000


def test_removing_a_deep_and_closed_tree(files: Files, workspace: Path) -> None:
    deep = workspace
    for _ in range(400):
        deep = deep / "d"
        os.mkdir(deep) if len(str(deep)) < 4000 else None
    (workspace / "d/closed").mkdir()
    (workspace / "d/closed/x").touch()
    (workspace / "d/closed").chmod(0)
    (workspace / "d/out").symlink_to(workspace.parent)
    assert files(wire.REMOVE, b"d").value == 0
    assert list(workspace.iterdir()) == []
    assert workspace.parent.exists()


def test_removing_deeper_than_any_path(files: Files, workspace: Path) -> None:
    here = os.open(workspace, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert files(wire.REMOVE, b"deep").value == 0
    assert list(workspace.iterdir()) == []


def test_what_cannot_be_removed_or_made(files: Files, workspace: Path) -> None:
    (workspace / "file").touch()
    assert files(wire.REMOVE, b".").value == errno.EBUSY
    assert files(wire.REMOVE, b"missing").value == errno.ENOENT
    assert files(wire.MAKE_DIR, b"file").value == errno.EEXIST
    assert files(wire.MAKE_DIR, b"file/below").value == errno.ENOTDIR
    assert files(wire.MAKE_DIR, b"a/b/c").value == 0
    assert files(wire.MAKE_DIR, b"a/b/c").value == 0
    assert (workspace / "a/b/c").is_dir()


def test_moving(files: Files, workspace: Path) -> None:
    (workspace / "a").write_text("a")
    (workspace / "b").write_text("b")
    (workspace / "d/e").mkdir(parents=True)
    assert files(wire.MOVE, b"a", b"b").value == 0
    assert (workspace / "b").read_text() == "a"
    assert files(wire.MOVE, b"b", b"d/e/f").value == 0
    end = files(wire.MOVE, b"missing", b"x")
    assert (end.value, end.stdout) == (errno.ENOENT, b"")
    end = files(wire.MOVE, b"d/e/f", b"missing/x")
    assert (end.value, len(end.stdout)) == (errno.ENOENT, 1)
    assert files(wire.MOVE, b"d", b"d/e/g").value == errno.EINVAL
    assert files(wire.MOVE, b"d").value == errno.EINVAL
    assert files(wire.MOVE, b"d/e/f", b"../f").value == errno.EXDEV


def test_an_operation_that_waits_can_be_killed(files: Files) -> None:
    for number in (0, 9):
        channel = 100 + number
        files.warden.send(
            wire.start(channel, [b"half"], env=(), operation=wire.WRITE, flags=wire.HAS_STDIN)
        )
        files.warden.send(wire.kill(channel, number))
        end = files.warden.until_exit(channel)
        assert (end.outcome, end.kill_incomplete) == (wire.SIGNALED, 0)


def test_directories_that_are_swapped_for_links(files: Files, workspace: Path) -> None:
    """Whatever a path becomes while it is used, nothing outside is reached."""
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "x").write_text("outside")
    (workspace / "real").mkdir()
    (workspace / "real/x").write_text("inside")
    (workspace / "turn").symlink_to("real")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for target in ("../outside", "real"):
                (workspace / "new").symlink_to(target)
                (workspace / "new").rename(workspace / "turn")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(60):
            assert files.read(b"turn/x")[2] in (b"inside", b"")
            for found in files.read_many(*[b"turn/x"] * 5):
                assert found == b"inside" or isinstance(found, int)
            files.write(b"turn/y", b"y")
            files.write_many((b"turn/y", b"y"), (b"turn/z", b"z" * 500))
            files(wire.REMOVE, b"turn/y")
    finally:
        done.set()
        swapper.join()
    assert [path.name for path in outside.iterdir()] == ["x"]
