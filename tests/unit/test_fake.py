"""The fake behaves as a real backend does, so that tests which use it mean something."""

from __future__ import annotations

import signal
from typing import Any

import anyio
import pytest

from ringfence import (
    Chunk,
    Command,
    ConfigError,
    CreateError,
    ExitReason,
    FakeBackend,
    FakeConfig,
    FileConflictError,
    FileIsDirectoryError,
    FileKind,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    NoSpaceError,
    PathError,
    SandboxClosedError,
    SandboxLostError,
    SandboxSpec,
    Script,
    Usage,
)
from ringfence.backends.fake import Call, FakeSandbox, Scripts

from .clocks import on_a_jumping_clock

pytestmark = pytest.mark.anyio

DEADLINE = 30.0


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


async def opened(script: Scripts | None = None, **limits: Any) -> tuple[FakeBackend, FakeSandbox]:
    backend = await FakeBackend(FakeConfig(**limits), script=script).__aenter__()
    sandbox = await backend.create()
    assert isinstance(sandbox, FakeSandbox)
    return backend, sandbox


class TestScripts:
    async def test_without_one_everything_succeeds_and_prints_nothing(self) -> None:
        _, sandbox = await opened()
        result = await sandbox.exec("anything")
        assert (result.ok, result.stdout, result.stderr) == (True, b"", b"")

    async def test_one_serves_every_command(self) -> None:
        _, sandbox = await opened(Script([b"a"], exit_code=3, usage=Usage(1.0)))
        for _ in range(2):
            result = await sandbox.exec("x")
            assert (result.stdout, result.exit_code, result.usage.cpu_s) == (b"a", 3, 1.0)

    async def test_a_function_chooses_by_the_command(self) -> None:
        _, sandbox = await opened(lambda command: Script([command.argv_bytes[0]]))
        assert (await sandbox.exec("one")).stdout == b"one"
        assert (await sandbox.exec("two")).stdout == b"two"

    async def test_a_list_is_used_up(self) -> None:
        _, sandbox = await opened([Script([b"a"]), Script([b"b"])])
        assert [(await sandbox.exec("x")).stdout for _ in range(2)] == [b"a", b"b"]
        with pytest.raises(ConfigError, match="no script left"):
            await sandbox.exec("x")

    async def test_streams_are_kept_apart_and_in_order(self) -> None:
        _, sandbox = await opened(Script([b"1", Chunk("stderr", b"2"), b"3"]))
        process = await sandbox.start(Command(["x"]))
        assert [(c.stream, c.data) async for c in process] == [
            ("stdout", b"1"),
            ("stderr", b"2"),
            ("stdout", b"3"),
        ]
        assert (await process.wait()).reason is ExitReason.EXITED

    @on_a_jumping_clock
    async def test_times_run_whether_or_not_somebody_looks(self) -> None:
        _, sandbox = await opened(Script([10.0, b"a", 10.0, b"b"]))
        process = await sandbox.start(Command(["x"]))
        await anyio.sleep(25)
        began = anyio.current_time()
        await process.wait()
        assert anyio.current_time() == began

    async def test_any_end_can_be_pretended(self) -> None:
        _, sandbox = await opened(Script(exit_code=137, reason=ExitReason.OUT_OF_MEMORY))
        assert (await sandbox.exec("x")).out_of_memory

    async def test_starting_can_fail(self) -> None:
        backend, sandbox = await opened(Script(error=SandboxLostError("gone")))
        with pytest.raises(SandboxLostError):
            await sandbox.exec("x")
        assert backend.live_processes == 0


class TestProcesses:
    async def test_a_deadline_ends_one_that_hangs(self) -> None:
        _, sandbox = await opened(Script([b"a"], hangs=True))
        process = await sandbox.start(Command(["x"], timeout=0.02))
        with anyio.fail_after(DEADLINE):
            end = await process.wait()
        assert (end.code, end.reason, end.stdout_bytes) == (124, ExitReason.TIMED_OUT, 1)

    @pytest.mark.parametrize(
        ("number", "code"), [(None, 143), (signal.SIGKILL, 137), (signal.SIGINT, 130)]
    )
    async def test_a_kill_ends_one_that_hangs_while_another_task_waits(
        self, number: int | None, code: int
    ) -> None:
        backend, sandbox = await opened(Script(hangs=True))
        process = await sandbox.start(Command(["x"]))
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process.wait)
                await anyio.wait_all_tasks_blocked()
                assert backend.live_processes == 1
                await process.kill(number)
        end = await process.wait()
        assert (end.code, end.reason) == (code, ExitReason.SIGNALED)
        await process.kill()
        assert await process.wait() is end

    async def test_another_signal_is_only_noted(self) -> None:
        backend, sandbox = await opened(Script([0.01, b"a"]))
        process = await sandbox.start(Command(["x"]))
        await process.kill(signal.SIGUSR1)
        assert (await process.wait()).code == 0
        assert Call("kill", sandbox.id, signal.SIGUSR1) in backend.calls

    async def test_one_that_can_not_be_killed_ends_with_its_sandbox(self) -> None:
        _, sandbox = await opened(Script(unkillable=True))
        process = await sandbox.start(Command(["x"], timeout=0.01))
        await process.kill()
        with anyio.move_on_after(0.05) as scope:
            await process.wait()
        assert scope.cancelled_caught
        sandbox.lose("killed")
        with anyio.fail_after(DEADLINE), pytest.raises(SandboxLostError):
            await process.wait()

    async def test_stdin_arrives_until_it_is_closed(self) -> None:
        _, sandbox = await opened(Script(echo=True))
        process = await sandbox.start(Command(["cat"], stdin="a"), stdin_open=True)
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process.wait)
                await anyio.wait_all_tasks_blocked()
                await process.write_stdin(b"b")
                await anyio.wait_all_tasks_blocked()
                await process.close_stdin()
                await process.close_stdin()
                await process.write_stdin(b"dropped")
        (found,) = sandbox.processes
        assert (bytes(found.stdin), found.stdin_closed) == (b"ab", True)
        assert (await process.wait()).stdout_bytes == 2

    async def test_output_past_the_cap_is_counted(self) -> None:
        _, sandbox = await opened(Script([b"123", b"456"], exit_code=5), output_bytes=4)
        result = await sandbox.exec("x")
        assert (result.stdout, result.stdout_bytes, result.exit_code) == (b"1234", 6, 5)

    async def test_their_ids_differ(self) -> None:
        _, sandbox = await opened()
        assert len({(await sandbox.start(Command(["x"]))).pid for _ in range(3)}) == 3


class TestSandboxes:
    async def test_a_lost_one_takes_its_processes_along(self) -> None:
        backend, sandbox = await opened(Script(hangs=True))
        process = await sandbox.start(Command(["x"]))
        with anyio.fail_after(DEADLINE):
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    with pytest.raises(SandboxLostError, match="out of memory"):
                        await process.wait()

                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                sandbox.lose("out of memory")
        for attempt in (sandbox.exec("x"), sandbox.read_file("a"), sandbox.stat("a")):
            with pytest.raises(SandboxLostError) as caught:
                await attempt
            assert caught.value.cause == "out of memory"
        assert (backend.live_processes, backend.live_sandboxes) == (0, 0)
        await sandbox.aclose()

    async def test_a_closed_one_refuses_everything_and_can_be_closed_again(self) -> None:
        backend, sandbox = await opened(Script(hangs=True))
        process = await sandbox.start(Command(["x"]))
        async with sandbox:
            pass
        await sandbox.aclose()
        assert backend.live_processes == 0
        for attempt in (sandbox.exec("x"), sandbox.write_file("a", b""), sandbox.list_files()):
            with pytest.raises(SandboxClosedError):
                await attempt
        with pytest.raises(SandboxLostError, match="closed"):
            await process.wait()

    async def test_creations_can_fail_once_each(self) -> None:
        backend, _ = await opened()
        backend.create_errors = [CreateError("one"), CreateError("two")]
        for name in ("one", "two"):
            with pytest.raises(CreateError, match=name):
                await backend.create()
        assert (await backend.create()).id
        assert backend.live_sandboxes == 2

    async def test_a_creation_can_take_its_time_and_be_cancelled(self) -> None:
        backend, _ = await opened()
        backend.create_delay = 60
        with anyio.move_on_after(0.01) as scope:
            await backend.create()
        assert scope.cancelled_caught
        assert len(backend.sandboxes) == 1

    async def test_every_call_is_recorded(self) -> None:
        backend, sandbox = await opened()
        command, spec = Command(["x"]), SandboxSpec()
        await sandbox.exec(command)
        await sandbox.write_file("a", b"")
        await sandbox.move("a", "b")
        await backend.reap()
        await backend.aclose()
        assert backend.calls == [
            Call("open"),
            Call("create", sandbox.id, spec),
            Call("start", sandbox.id, command),
            Call("write_file", sandbox.id, b"a"),
            Call("move", sandbox.id, b"a"),
            Call("reap"),
            Call("aclose"),
            Call("aclose", sandbox.id),
        ]
        assert backend.commands == [command]


class TestFiles:
    async def test_what_is_written_is_read(self) -> None:
        _, sandbox = await opened()
        await sandbox.write_file("a/b/c", b"one")
        await sandbox.write_file("a/b/c", b"two", append=True)
        assert await sandbox.read_file("/workspace/a/b/c") == b"onetwo"
        await sandbox.write_file("a/b/c", b"new", mode=0o600)
        info = await sandbox.stat("a/b/c")
        assert (info.name, info.kind, info.size, info.mode) == ("c", FileKind.FILE, 3, 0o600)
        assert (await sandbox.stat("a")).kind is FileKind.DIRECTORY

    async def test_any_name_comes_back_exactly(self) -> None:
        _, sandbox = await opened()
        names = [b"\xff\xfe", b" ", b"-rf", b"a\nb", "é".encode()]
        for name in names:
            await sandbox.write_file(name, name)
        listing = await sandbox.list_files()
        found = [entry.name.encode("utf-8", "surrogateescape") for entry in listing.entries]
        assert found == sorted(names)

    async def test_a_list_says_that_it_is_cut(self) -> None:
        _, sandbox = await opened()
        for number in range(5):
            await sandbox.write_file(f"d/{number}", b"")
        listing = await sandbox.list_files("d", max_entries=2)
        assert [entry.name for entry in listing.entries] == ["0", "1"]
        assert (listing.total, listing.truncated) == (5, True)
        assert (await sandbox.list_files(".", max_entries=0)).total == 1

    async def test_a_directory_is_moved_and_removed_with_all_in_it(self) -> None:
        _, sandbox = await opened()
        await sandbox.write_file("a/b/c", b"x")
        await sandbox.make_dir("to")
        await sandbox.move("a", "to/a")
        assert await sandbox.read_file("to/a/b/c") == b"x"
        await sandbox.remove("to")
        assert (await sandbox.list_files()).total == 0

    async def test_moving_replaces_a_file(self) -> None:
        _, sandbox = await opened()
        await sandbox.write_file("a", b"new")
        await sandbox.write_file("b", b"old")
        await sandbox.move("a", "b")
        await sandbox.move("b", "b")
        assert await sandbox.read_file("b") == b"new"
        assert (await sandbox.list_files()).total == 1

    async def test_each_fault_has_its_own_error(self) -> None:
        _, sandbox = await opened()
        await sandbox.write_file("file", b"")
        await sandbox.write_file("dir/file", b"")
        await sandbox.make_dir("empty")
        for kind in (FileKind.FIFO, FileKind.SYMLINK, FileKind.SOCKET):
            sandbox.plant(kind.value, kind)
        sandbox.plant("closed", FileKind.FILE, 0)
        faults: list[tuple[Any, type[Exception]]] = [
            (sandbox.read_file("none"), FileMissingError),
            (sandbox.read_file("none/a"), FileMissingError),
            (sandbox.read_file("dir"), FileIsDirectoryError),
            (sandbox.read_file("."), FileIsDirectoryError),
            (sandbox.read_file("file/a"), FileNotDirectoryError),
            (sandbox.read_file("fifo"), FileKindError),
            (sandbox.read_file("socket"), FileKindError),
            (sandbox.read_file("symlink"), PathError),
            (sandbox.read_file("symlink/a"), PathError),
            (sandbox.read_file("closed"), FilePermissionError),
            (sandbox.write_file("closed", b""), FilePermissionError),
            (sandbox.write_file("dir", b""), FileIsDirectoryError),
            (sandbox.write_file("fifo", b""), FileKindError),
            (sandbox.write_file("symlink", b""), PathError),
            (sandbox.write_file("file/a", b""), FileNotDirectoryError),
            (sandbox.list_files("none"), FileMissingError),
            (sandbox.list_files("file"), FileNotDirectoryError),
            (sandbox.stat("none"), FileMissingError),
            (sandbox.make_dir("file"), FileNotDirectoryError),
            (sandbox.remove("none"), FileMissingError),
            (sandbox.remove("."), PathError),
            (sandbox.move("none", "a"), FileMissingError),
            (sandbox.move("file", "none/a"), FileMissingError),
            (sandbox.move("file", "dir"), FileIsDirectoryError),
            (sandbox.move("empty", "file"), FileNotDirectoryError),
            (sandbox.move("empty", "dir"), FileConflictError),
            (sandbox.move("dir", "dir/inside"), PathError),
            (sandbox.move(".", "a"), PathError),
        ]
        for attempt, error in faults:
            with pytest.raises(error) as caught:
                await attempt
            assert type(caught.value) is error
        assert (await sandbox.stat("symlink")).kind is FileKind.SYMLINK
        await sandbox.make_dir("dir")
        await sandbox.move("dir", "empty")

    async def test_the_workspace_has_a_size(self) -> None:
        _, sandbox = await opened(workspace_bytes=5, workspace_files=3)
        await sandbox.write_file("a", b"12345")
        await sandbox.write_file("a", b"54321")
        for attempt in (sandbox.write_file("a", b"6", append=True), sandbox.write_file("b", b"6")):
            with pytest.raises(NoSpaceError):
                await attempt
        assert await sandbox.read_file("a") == b"54321"
        await sandbox.write_file("a", b"")
        await sandbox.write_file("d/b", b"")
        with pytest.raises(NoSpaceError):
            await sandbox.write_file("c", b"")

    async def test_each_sandbox_has_files_of_its_own(self) -> None:
        backend, sandbox = await opened()
        await sandbox.write_file("a", b"")
        assert (await (await backend.create()).list_files()).total == 0
