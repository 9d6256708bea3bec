"""Workspaces and directories of the host: what a program can reach, and what it can't."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import anyio
import pytest

from ringfence.errors import FileMissingError, FileNotDirectoryError, PathError
from ringfence.models import Command, Limits, Mount, SandboxSpec

from . import programs
from .conftest import Make

pytestmark = pytest.mark.anyio

CREATE = 1
READ_IT = """
  (i32.store (i32.const 0) (i32.const 5000)) (i32.store (i32.const 4) (i32.const 4096))
  (drop (call $fd_read (i32.load (i32.const 12)) (i32.const 0) (i32.const 1) (i32.const 8)))
  (i32.store (i32.const 4) (i32.load (i32.const 8)))
  (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))"""
WRITE_IT = """
  (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 3))
  (drop (call $fd_write (i32.load (i32.const 12)) (i32.const 0) (i32.const 1) (i32.const 8)))"""


async def test_a_workspace_lasts_over_commands(make: Make) -> None:
    async with make(programs.opens("out", CREATE, WRITE_IT)) as backend:
        async with await backend.create() as sandbox:
            assert sandbox.workspace == "/workspace"
            assert (await sandbox.exec("x")).exit_code == 0
            assert await sandbox.read_file("out") == b"out"
            assert await sandbox.read_file("/workspace/out") == b"out"
            await sandbox.remove("out")
            assert (await sandbox.exec("x")).exit_code == 0
            assert [info.name for info in (await sandbox.list_files()).entries] == ["out"]
        async with await backend.create() as other:
            assert (await other.list_files()).entries == ()


async def test_a_program_reads_what_was_written_for_it(make: Make) -> None:
    async with (
        make(programs.opens("in", 0, READ_IT)) as backend,
        await backend.create() as sandbox,
    ):
        assert (await sandbox.exec("x")).exit_code == 44  # ENOENT
        await sandbox.write_file("in", "text")
        assert (await sandbox.exec("x")).stdout == b"text"


async def test_relative_paths_begin_at_the_cwd(make: Make) -> None:
    async with (
        make(programs.opens("in", 0, READ_IT)) as backend,
        await backend.create() as sandbox,
    ):
        await sandbox.write_file("a/b/in", "deep")
        await sandbox.write_file("file", "x")
        for cwd in ("a/b", "/workspace/a/b"):
            assert (await sandbox.exec(Command(["x"], cwd=cwd))).stdout == b"deep"
        with pytest.raises(FileMissingError):
            await sandbox.exec(Command(["x"], cwd="no"))
        with pytest.raises(FileNotDirectoryError):
            await sandbox.exec(Command(["x"], cwd="file"))
        with pytest.raises(PathError):
            await sandbox.exec(Command(["x"], cwd="/etc"))


async def test_a_sandbox_leaves_nothing_behind(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with make(programs.opens("out", CREATE, WRITE_IT)) as backend:
        sandbox = await backend.create()
        await sandbox.exec("x")
        (made,) = temporary.iterdir()
        assert made.stat().st_mode & 0o777 == 0o700
        await sandbox.aclose()
        await sandbox.aclose()
    assert list(temporary.iterdir()) == []


class TestFsDir:
    @pytest.fixture(autouse=True)
    def _dir(self, tmp_path: Path) -> None:
        self.outside = tmp_path / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text("secret")
        self.dir = tmp_path / "given"
        self.dir.mkdir()
        (self.dir / "in").write_text("given")

    async def test_it_is_read_write_at_the_root(self, make: Make) -> None:
        async with make(programs.opens("in", 0, READ_IT), fs_dir=self.dir) as backend:
            assert (await backend.execute("x")).stdout == b"given"
        async with make(programs.opens("out", CREATE, WRITE_IT), fs_dir=self.dir) as backend:
            assert (await backend.execute("x")).exit_code == 0
        assert (self.dir / "out").read_text() == "out"

    async def test_it_is_a_live_sandbox_s_workspace_and_stays(self, make: Make) -> None:
        async with (
            make(programs.opens("out", CREATE, WRITE_IT), fs_dir=self.dir) as backend,
            await backend.create() as sandbox,
        ):
            assert sandbox.workspace == "/"
            await sandbox.exec("x")
            assert await sandbox.read_file("/out") == b"out"
        assert (self.dir / "out").is_file()

    @pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
    @pytest.mark.parametrize(
        "target",
        ["{outside}/secret", "../outside/secret", "/etc/passwd", "sub/../../outside/secret"],
    )
    async def test_a_link_never_leads_out(self, make: Make, target: str) -> None:
        (self.dir / "sub").mkdir()
        (self.dir / "link").symlink_to(target.format(outside=self.outside))
        async with make(programs.opens("link", 0, READ_IT), fs_dir=self.dir) as backend:
            result = await backend.execute("x")
        assert (result.stdout, result.exit_code) == (b"", 63)  # EPERM

    @pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
    @pytest.mark.parametrize("target", ["{outside}", "..", "../outside", "/", "/proc/self/cwd"])
    async def test_a_directory_link_never_leads_out(self, make: Make, target: str) -> None:
        (self.dir / "link").symlink_to(target.format(outside=self.outside))
        for name in ("link/secret", "link/new"):
            program = programs.opens(name, CREATE, READ_IT)
            async with make(program, fs_dir=self.dir) as backend:
                result = await backend.execute("x")
            assert (result.stdout, result.exit_code) == (b"", 63)
        assert sorted(os.listdir(self.outside)) == ["secret"]

    @pytest.mark.parametrize(
        "path", ["../outside/secret", "/etc/passwd", "in/../../outside/secret", "./../outside"]
    )
    async def test_a_path_never_leads_out(self, make: Make, path: str) -> None:
        async with make(programs.opens(path, 0, READ_IT), fs_dir=self.dir) as backend:
            result = await backend.execute("x")
        assert result.stdout == b""
        assert result.exit_code != 0

    @pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
    async def test_a_link_that_moves_while_it_is_followed_never_leads_out(self, make: Make) -> None:
        (self.dir / "safe").mkdir()
        (self.dir / "safe" / "secret").write_text("inside")
        link, over = self.dir / "link", threading.Event()
        link.symlink_to("safe")

        def swap() -> None:
            for i in range(1_000_000):
                if over.is_set():
                    return
                new = self.dir / f".new{i}"
                new.symlink_to(("safe", str(self.outside))[i % 2])
                new.rename(link)

        swapper = threading.Thread(target=swap)
        swapper.start()
        try:
            async with make(programs.opens("link/secret", 0, READ_IT), fs_dir=self.dir) as backend:
                seen = {(await backend.execute("x")).stdout for _ in range(300)}
        finally:
            over.set()
            swapper.join()
        assert seen <= {b"inside", b""}

    @pytest.mark.skipif(sys.platform == "win32", reason="it has no such things")
    async def test_what_is_no_file_never_holds_the_caller(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Catches a FIFO whose open waits for ever in the host's kernel."""
        monkeypatch.setattr("ringfence.backends._wasm_process.HOST_SLACK", 1.0)
        os.mkfifo(self.dir / "fifo")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.dir / "socket"))
            for name in ("fifo", "socket"):
                program = programs.opens(name, 0, READ_IT)
                async with make(program, fs_dir=self.dir) as backend:
                    with anyio.fail_after(30):
                        result = await backend.execute("x", timeout=0.5)
                assert result.stdout == b""
                if result.timed_out:  # let go of the thread that waits for the FIFO
                    os.close(os.open(self.dir / name, os.O_RDWR | os.O_NONBLOCK))


class TestMounts:
    @pytest.fixture(autouse=True)
    def _dir(self, tmp_path: Path) -> None:
        self.dir = tmp_path / "shown"
        self.dir.mkdir()
        (self.dir / "in").write_text("shown")
        self.mount = Mount(str(self.dir), "/shown")

    @pytest.mark.parametrize("of_spec", [False, True])
    async def test_they_are_shown_and_read_only(self, make: Make, of_spec: bool) -> None:
        settings = {} if of_spec else {"mounts": (self.mount,)}
        spec = SandboxSpec(mounts=(self.mount,)) if of_spec else None
        async with make(programs.opens("in", 0, READ_IT), **settings) as backend:
            assert (await backend.execute("x", spec=spec)).stdout == b"shown"
        for name, flags in (("new", CREATE), ("in", 8)):  # 8 empties a file
            async with make(programs.opens(name, flags, WRITE_IT), **settings) as backend:
                assert (await backend.execute("x", spec=spec)).exit_code != 0
        assert os.listdir(self.dir) == ["in"]
        assert (self.dir / "in").read_text() == "shown"


async def test_open_files_are_counted(make: Make) -> None:
    """Catches a program that uses up the descriptors of the whole host process."""
    rights = "(i64.const 0x1fffffff)"
    until_refused = programs.binary(
        f"""(local $n i32)
        (loop $l
          (if (i32.eqz (call $path_open (i32.const 3) (i32.const 1) (i32.const 16) (i32.const 1)
                (i32.const 1) {rights} {rights} (i32.const 0) (i32.const 12)))
            (then
              (local.set $n (i32.add (local.get $n) (i32.const 1)))
              (if (i32.eq (local.get $n) (i32.const 10))
                (then (drop (call $fd_close (i32.load (i32.const 12))))))
              (br_if $l (i32.lt_u (local.get $n) (i32.const 1000))))))
        (call $proc_exit (local.get $n))""",
        '(data (i32.const 16) "f")',
    )
    async with (
        make(until_refused) as backend,
        await backend.create(SandboxSpec(limits=Limits(open_files=50))) as sandbox,
    ):
        await sandbox.exec("x")  # the runtime has descriptors of its own from then on
        before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
        assert (await sandbox.exec("x")).exit_code == 51  # one of them was closed again
        after = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    assert after == before


async def test_a_stream_can_t_be_taken_over(make: Make) -> None:
    """Catches a file put in the place of stdout, past whoever counts its output."""
    program = programs.opens(
        "out",
        CREATE,
        f"""(if (i32.ne (call $fd_renumber (i32.load (i32.const 12)) (i32.const 1)) (i32.const 8))
              (then unreachable))
            (drop (call $fd_close (i32.const 1)))
            {programs.write(16, 3)}""",
    )
    async with make(program) as backend, await backend.create() as sandbox:
        result = await sandbox.exec("x")
        assert (result.stdout, result.exit_code) == (b"out", 0)
        assert await sandbox.read_file("out") == b""
