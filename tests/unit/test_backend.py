"""What follows from the contract, whatever the backend: limits, paths, forms of a call."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import (
    BackendUnavailableError,
    Capabilities,
    Command,
    CommandError,
    CreateError,
    Enforced,
    Enforcement,
    FakeBackend,
    FakeConfig,
    FileTooLargeError,
    Isolation,
    LimitError,
    Limits,
    Mount,
    Network,
    PathError,
    SandboxClosedError,
    SandboxLostError,
    SandboxSpec,
    Script,
    UnsupportedError,
)
from ringfence.backend import BASE_LIMITS, as_command, command_cwd, workspace_path
from ringfence.backends.fake import FakeSandbox

pytestmark = pytest.mark.anyio

BARE = Capabilities(Isolation.NONE)  # holds no limit, has no network, shows no host path


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


class TestLimits:
    async def test_spec_comes_before_config_and_config_before_defaults(self) -> None:
        config = FakeConfig(memory_bytes=1000, pids=10, timeout=5.0)
        async with FakeBackend(config) as backend:
            sandbox = await backend.create(SandboxSpec(limits=Limits(pids=3, cpus=0.5)))
            found = sandbox.limits
        assert (found.pids, found.cpus, found.memory_bytes, found.timeout) == (3, 0.5, 1000, 5.0)
        assert found.output_bytes == BASE_LIMITS.output_bytes

    async def test_what_our_clock_holds_is_always_filled_in(self) -> None:
        async with FakeBackend(capabilities=BARE) as backend:
            sandbox = await backend.create()
        clocked = {item.name for item in fields(Limits)} - {item.name for item in fields(Enforced)}
        assert clocked <= sandbox.limits.asked()

    @pytest.mark.parametrize("name", [item.name for item in fields(Enforced)])
    async def test_a_limit_that_nobody_can_hold_is_refused_if_it_was_asked_for(
        self, name: str
    ) -> None:
        async with FakeBackend(capabilities=BARE) as backend:
            with pytest.raises(LimitError, match=name) as caught:
                await backend.create(SandboxSpec(limits=Limits(**{name: 5})))
            assert (caught.value.limit, caught.value.backend) == (name, "fake")
        async with FakeBackend(FakeConfig.parse({name: 5}), capabilities=BARE) as backend:
            with pytest.raises(LimitError, match=name):
                await backend.execute("x")
        assert backend.sandboxes == []

    async def test_a_limit_held_for_each_process_is_held(self) -> None:
        able = Capabilities(Isolation.NONE, limits=Enforced(memory_bytes=Enforcement.PER_PROCESS))
        async with FakeBackend(capabilities=able) as backend:
            spec = SandboxSpec(limits=Limits(memory_bytes=5))
            result = await backend.execute("x", spec=spec)
        assert result.enforced == able.limits

    async def test_limits_of_our_clock_are_never_refused(self) -> None:
        async with FakeBackend(capabilities=BARE) as backend:
            limits = Limits(timeout=1, max_timeout=2, output_bytes=3, max_age=4, kill_grace=5)
            assert (await backend.create(SandboxSpec(limits=limits))).limits.max_age == 4

    @pytest.mark.parametrize(
        ("asked", "given"), [(None, 7.0), (3.0, 3.0), (9.5, 9.5), (10.0, 10.0), (1e9, 10.0)]
    )
    async def test_a_timeout_has_a_default_and_is_clamped_visibly(
        self, asked: float | None, given: float
    ) -> None:
        config = FakeConfig(timeout=7.0, max_timeout=10.0)
        async with FakeBackend(config) as backend:
            sandbox = await backend.create()
            assert (await sandbox.exec("x", timeout=asked)).timeout == given
            assert (await sandbox.exec(Command(["x"], timeout=asked))).timeout == given
            assert (await backend.execute("x", timeout=asked)).timeout == given

    async def test_the_timeout_of_the_call_comes_before_that_of_the_command(self) -> None:
        async with FakeBackend() as backend:
            result = await backend.execute(Command(["x"], timeout=50), timeout=2)
        assert result.timeout == 2

    async def test_the_default_timeout_is_clamped_too(self) -> None:
        async with FakeBackend(FakeConfig(max_timeout=2.0)) as backend:
            assert (await backend.execute("x")).timeout == 2.0

    @pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
    async def test_a_call_without_an_end_is_refused(self, timeout: float) -> None:
        """Catches a zero that is taken for 'no limit'."""
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            for call in (backend.execute, sandbox.exec):
                with pytest.raises(CommandError):
                    await call("x", timeout=timeout)
        assert backend.commands == []

    @pytest.mark.parametrize("cap", [0, 1, 5])
    async def test_a_command_may_name_its_own_cap(self, cap: int) -> None:
        async with FakeBackend(FakeConfig(output_bytes=3), script=Script([b"123456"])) as backend:
            assert (await backend.execute("x")).stdout == b"123"
            result = await backend.execute(Command(["x"], output_bytes=cap))
        assert result.stdout == b"123456"[:cap]
        assert result.stdout_truncated


class TestWhatABackendHas:
    async def test_a_network_that_it_has_not_is_refused(self) -> None:
        async with FakeBackend(capabilities=BARE) as backend:
            with pytest.raises(UnsupportedError, match="bridge"):
                await backend.create(SandboxSpec(network=Network("bridge")))
        async with FakeBackend() as backend:
            assert (await backend.create(SandboxSpec(network=Network("bridge")))).id

    async def test_mounts_that_it_can_not_show_are_refused(self) -> None:
        async with FakeBackend(capabilities=BARE) as backend:
            with pytest.raises(UnsupportedError, match="host paths"):
                await backend.create(SandboxSpec(mounts=(Mount("/usr"),)))

    async def test_nothing_can_be_made_before_it_is_open_or_after_it_is_closed(self) -> None:
        backend = FakeBackend()
        with pytest.raises(SandboxClosedError):
            await backend.create()
        async with backend:
            sandbox = await backend.create()
        with pytest.raises(SandboxClosedError):
            await backend.execute("x")
        with pytest.raises(SandboxClosedError):
            await sandbox.exec("x")

    async def test_one_that_can_not_run_here_says_so_when_it_is_entered(self) -> None:
        backend = FakeBackend()
        backend.open_error = BackendUnavailableError("no user namespaces")
        with pytest.raises(BackendUnavailableError, match="user namespaces"):
            async with backend:
                pytest.fail("it was entered")


class TestForms:
    def test_a_name_and_arguments_are_a_command(self) -> None:
        command = as_command("ls", ["-l", "a b", ""], 5)
        assert command.argv_bytes == (b"ls", b"-l", b"a b", b"")
        assert command.timeout == 5

    def test_a_command_keeps_all_but_the_timeout(self) -> None:
        command = Command(["x"], env={"A": "1"}, timeout=5)
        assert as_command(command, (), None) is command
        assert as_command(command, (), 7).env_bytes == command.env_bytes

    def test_what_is_neither_is_refused(self) -> None:
        with pytest.raises(CommandError, match="argv"):
            as_command(Command(["x"]), ["y"], None)
        with pytest.raises(CommandError, match="list of arguments"):
            as_command("x", "-l", None)
        bad: Any = ["x", "y"]
        with pytest.raises(CommandError, match=r"argv\[0\]"):
            as_command(bad, (), None)

    async def test_variables_of_the_spec_come_below_those_of_the_command(self) -> None:
        async with FakeBackend() as backend:
            sandbox = await backend.create(SandboxSpec(env={"A": "spec", "B": "spec"}))
            await sandbox.exec(Command(["x"], env={"B": "own"}))
            assert dict(backend.commands[0].env) == {"A": "spec", "B": "own"}

    @pytest.mark.parametrize("cwd", ["..", "/etc", "/workspace/../etc", "a/../..", "", b"/\xff"])
    async def test_a_cwd_outside_of_the_workspace_is_refused_before_anything_starts(
        self, cwd: str | bytes
    ) -> None:
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            for call in (sandbox.exec, sandbox.start):
                with pytest.raises(PathError):
                    await call(Command(["x"], cwd=cwd))
        assert backend.commands == []

    async def test_starting_needs_no_timeout_but_keeps_one(self) -> None:
        async with FakeBackend(FakeConfig(max_timeout=9.0)) as backend:
            sandbox = await backend.create()
            assert isinstance(sandbox, FakeSandbox)
            await sandbox.start(Command(["x"]))
            await sandbox.start(Command(["x"], timeout=100))
            assert [process.launch.timeout for process in sandbox.processes] == [None, 9.0]
            assert [process.launch.output_bytes for process in sandbox.processes] == [None, None]

    async def test_a_started_command_gets_what_fits_into_its_pipe(self) -> None:
        async with FakeBackend(script=Script(echo=True)) as backend:
            sandbox = await backend.create()
            process = await sandbox.start(Command(["cat"], stdin=b"first "), stdin_open=True)
            await process.write_stdin(b"second")
            await process.close_stdin()
            assert [chunk.data async for chunk in process] == [b"first second"]
            with pytest.raises(CommandError, match="write_stdin"):
                await sandbox.start(Command(["cat"], stdin=b"x" * 65537))


class TestOneShots:
    async def test_each_has_a_sandbox_of_its_own_that_is_gone_afterwards(self) -> None:
        async with FakeBackend() as backend:
            for _ in range(3):
                assert (await backend.execute("x")).ok
            assert len({sandbox.id for sandbox in backend.sandboxes}) == 3
            assert backend.live_sandboxes == 0

    async def test_what_it_leaves_running_is_killed(self) -> None:
        async with FakeBackend() as backend:
            await backend.execute(Command(["x"], leftovers="keep"))
        assert backend.commands[0].leftovers == "kill"

    async def test_its_sandbox_goes_whatever_happens(self) -> None:
        scripts = [Script(error=CreateError("no")), Script(loses="killed"), Script(exit_code=1)]
        async with FakeBackend(script=scripts) as backend:
            for _ in scripts[:2]:
                with pytest.raises((CreateError, SandboxLostError)):
                    await backend.execute("x")
            await backend.execute("x")
            assert backend.live_sandboxes == 0

    async def test_a_sandbox_that_can_not_be_made_is_an_error(self) -> None:
        async with FakeBackend() as backend:
            backend.create_errors = [CreateError("no memory")]
            with pytest.raises(CreateError):
                await backend.execute("x")
            assert (await backend.execute("x")).ok

    async def test_many_at_once_do_not_meet(self) -> None:
        results = {}
        async with (
            FakeBackend(script=lambda command: Script([command.argv_bytes[1]])) as backend,
            anyio.create_task_group() as tasks,
        ):

            async def one(number: int) -> None:
                results[number] = (await backend.execute("x", [str(number)])).stdout

            for number in range(50):
                tasks.start_soon(one, number)
        assert results == {number: str(number).encode() for number in range(50)}


class TestFiles:
    async def test_a_large_file_has_to_be_read_in_parts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Catches a file that is cut silently, or that fills the host's memory."""
        monkeypatch.setattr("ringfence.backend.files.DEFAULT_READ_BYTES", 10)
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            await sandbox.write_file("a", b"0123456789X")
            with pytest.raises(FileTooLargeError, match="11 bytes"):
                await sandbox.read_file("a")
            assert await sandbox.read_file("a", offset=1) == b"123456789X"
            assert await sandbox.read_file("a", max_bytes=3) == b"012"
            assert await sandbox.read_file("a", max_bytes=11) == b"0123456789X"
            assert await sandbox.read_file("a", offset=50) == b""

    async def test_numbers_below_zero_are_refused(self) -> None:
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            with pytest.raises(CommandError):
                await sandbox.read_file("a", offset=-1)
            with pytest.raises(CommandError):
                await sandbox.read_file("a", max_bytes=-1)
            with pytest.raises(CommandError):
                await sandbox.list_files(max_entries=-1)

    async def test_text_is_written_as_utf8(self) -> None:
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            await sandbox.write_file("a", "é")
            await sandbox.write_file("a", b"!", append=True)
            assert await sandbox.read_file("/workspace/a") == "é!".encode()

    async def test_every_operation_refuses_a_path_outside(self) -> None:
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            await sandbox.write_file("a", b"")
            for path in ("../a", "/etc/passwd", "a/../../b", ""):
                for attempt in (
                    sandbox.write_file(path, b""),
                    sandbox.read_file(path),
                    sandbox.list_files(path),
                    sandbox.stat(path),
                    sandbox.make_dir(path),
                    sandbox.remove(path),
                    sandbox.move(path, "b"),
                    sandbox.move("a", path),
                ):
                    with pytest.raises(PathError):
                        await attempt


PARTS = st.lists(
    st.sampled_from([b"..", b".", b"", b"a", b"..a", b"a..", b"\xff", b" "]), max_size=8
)
RAW = st.builds(b"/".join, PARTS) | st.builds(
    lambda root, parts: root + b"/".join(parts),
    st.sampled_from([b"/", b"/workspace", b"/workspace/", b"/srv/w/", b"/srv/wx/", b"//", b"\0"]),
    PARTS,
)


class TestPaths:
    @given(raw=RAW | st.binary(max_size=30), workspace=st.sampled_from(["/workspace", "/srv/w"]))
    def test_no_path_ever_leads_outside(self, raw: bytes, workspace: str) -> None:
        try:
            found = workspace_path(raw, workspace)
        except PathError:
            return
        parts = found.split(b"/")
        assert b".." not in parts
        assert b"\0" not in found
        assert found == b"." or not {b"", b"."} & set(parts)
        assert workspace_path(found, workspace) == found

    @given(raw=RAW, workspace=st.sampled_from(["/workspace", "/srv/w"]))
    def test_a_path_is_taken_if_it_stays_where_the_kernel_would_go(
        self, raw: bytes, workspace: str
    ) -> None:
        """Compares with the plain rule: no `..`, and below the workspace once it is joined."""
        roots = {workspace.encode(), b"/workspace"}
        inside = any(
            os.path.join(root, raw) == root or os.path.join(root, raw).startswith(root + b"/")
            for root in roots
        )
        fine = bool(raw) and b"\0" not in raw and b".." not in raw.split(b"/") and inside
        try:
            workspace_path(raw, workspace)
        except PathError:
            assert not fine
        else:
            assert fine

    @pytest.mark.parametrize(
        ("path", "found"),
        [
            ("a", b"a"),
            (".", b"."),
            ("./a//b/", b"a/b"),
            ("/workspace", b"."),
            ("/workspace/", b"."),
            ("/workspace/a/./b", b"a/b"),
            ("/srv/w/a", b"a"),
            (b"\xff\n", b"\xff\n"),
            ("\udcff", b"\xff"),
            ("...", b"..."),
        ],
    )
    def test_both_names_of_the_workspace_are_taken(self, path: str | bytes, found: bytes) -> None:
        assert workspace_path(path, "/srv/w") == found

    @pytest.mark.parametrize("path", ["/", "/workspaces", "/srv/wx", "/srv", "\ud800", "a\0b"])
    def test_what_only_looks_like_it_is_not(self, path: str) -> None:
        with pytest.raises(PathError):
            workspace_path(path, "/srv/w")

    def test_a_command_without_a_cwd_runs_in_the_workspace(self) -> None:
        assert command_cwd(Command(["x"]), "/workspace") == b"."
        assert command_cwd(Command(["x"], cwd=Path("/workspace/a")), "/workspace") == b"a"


class TestPing:
    async def test_a_live_sandbox_answers_and_its_commands_are_left_alone(self) -> None:
        async with FakeBackend(script=Script(hangs=True)) as backend:
            sandbox = await backend.create()
            await sandbox.start(Command(("x",)))
            await sandbox.ping()
            assert backend.live_processes == 1

    async def test_one_that_died_is_lost_and_one_that_was_closed_is_closed(self) -> None:
        async with FakeBackend() as backend:
            dead = await backend.create()
            assert isinstance(dead, FakeSandbox)
            dead.lose("out of memory")
            with pytest.raises(SandboxLostError) as caught:
                await dead.ping()
            assert caught.value.cause == "out of memory"
            closed = await backend.create()
            await closed.aclose()
            with pytest.raises(SandboxClosedError):
                await closed.ping()

    async def test_no_answer_in_time_is_the_end_of_the_wait(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FakeSandbox, "_ping", lambda _self: anyio.sleep_forever())
        async with FakeBackend() as backend:
            sandbox = await backend.create()
            with pytest.raises(SandboxLostError, match=r"within 0\.01 s") as caught:
                await sandbox.ping(timeout=0.01)
            assert (caught.value.cause, caught.value.backend) == ("silent", "fake")
