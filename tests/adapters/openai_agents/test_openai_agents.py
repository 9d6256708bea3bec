"""The adapter for the OpenAI Agents SDK: every operation, its failures, and its states."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from agents import RunConfig, Runner
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import Dir, File
from agents.sandbox.errors import (
    ConfigurationError,
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.types import User
from agents.sandbox.workspace_paths import SandboxPathGrant
from agents.testing import ScriptedModel, assistant_message, function_call

from ringfence import (
    ConfigError,
    SandboxLostError,
    SessionElsewhereError,
    SessionManager,
    open_backend,
    sync,
)
from ringfence.adapters.openai_agents import (
    RingfenceSandboxClient,
    RingfenceSandboxClientOptions,
    RingfenceSandboxSessionState,
)
from ringfence.leases import SqliteLeases

from ..backends import BACKENDS, settings

pytestmark = pytest.mark.anyio

IS_NEW = hasattr(SandboxSession, "mv")
"""Whether it is 0.23 or newer, with a few operations more."""


def newer(session: SandboxSession) -> Any:
    """Return a session, for what older versions do not have."""
    return session


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=BACKENDS)
async def sessions(request: pytest.FixtureRequest, own_places: Path) -> AsyncIterator[Any]:
    async with open_backend(settings(request.param)) as backend, SessionManager(backend) as made:
        yield made
        assert made.sessions == []  # each test has deleted what it has made


@pytest.fixture
def client(sessions: SessionManager) -> RingfenceSandboxClient:
    return RingfenceSandboxClient(sessions)


@pytest.fixture
async def session(client: RingfenceSandboxClient) -> AsyncIterator[SandboxSession]:
    made = await client.create()
    async with made:
        yield made
    await client.delete(made)


# Commands.


async def test_commands(session: SandboxSession) -> None:
    found = await session.exec("pwd; echo bad >&2; exit 3")
    assert (found.stdout, found.stderr, found.exit_code) == (b"/workspace\n", b"bad\n", 3)
    assert not found.ok()
    apart = await session.exec("printf", "%s|", "a b", "$(id)", shell=False)
    assert apart.stdout == b"a b|$(id)|"
    joined = await session.exec("printf", "%s|", "a b", "$(id)")
    assert joined.stdout == b"a b|$(id)|"
    binary = await session.exec("printf '\\377\\000'")
    assert binary.stdout == b"\xff\0"
    assert (await session.exec("nonsense-of-mine", shell=False)).exit_code == 127


async def test_a_timeout_has_what_was_written(session: SandboxSession) -> None:
    with pytest.raises(ExecTimeoutError) as caught:
        await session.exec("echo out; echo err >&2; sleep 60", timeout=4)
    assert caught.value.timeout_s == 4
    assert caught.value.context["stdout"] == "out\n"
    assert caught.value.context["stderr"] == "err\n"
    assert (await session.exec("echo on")).stdout == b"on\n"


async def test_what_is_cut_is_told(session: SandboxSession) -> None:
    found = await session.exec("head -c 1500000 /dev/zero; printf e >&2")
    assert len(found.stdout) == 1_048_576
    assert found.stderr.endswith(
        b"e\n[cut: of 1500000 bytes of stdout only the first 1048576 were kept]\n"
    )


async def test_what_can_not_be_run(session: SandboxSession) -> None:
    for words, options in ((("a\0b",), {}), (("true",), {"timeout": 0})):
        with pytest.raises(ExecTransportError) as caught:
            await session.exec(*words, **cast("Any", options))
        assert (caught.value.retryable, caught.value.context["reason"]) == (False, "command")
    for user in ("root", User(name="root")):
        with pytest.raises(ConfigurationError, match="one user"):
            await session.exec("true", user=user)
        with pytest.raises(ConfigurationError, match="one user"):
            await session.read(Path("x"), user=user)


async def test_cancelling_kills_the_command(session: SandboxSession) -> None:
    task = asyncio.ensure_future(session.exec("exec sleep 474"))
    listing = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    for _ in range(1000):
        if b"sleep 474" in (await session.exec(listing)).stdout.replace(b"exec sleep 474", b""):
            break
        await asyncio.sleep(0.02)
    else:
        pytest.fail("it never ran")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(1000):
        if b"sleep 474" not in (await session.exec(listing)).stdout:
            return
        await asyncio.sleep(0.05)
    pytest.fail("it runs on")


async def test_ports_are_not_exposed(session: SandboxSession) -> None:
    with pytest.raises(ExposedPortUnavailableError):
        await session.resolve_exposed_port(8080)
    session.state.exposed_ports = (8080,)
    with pytest.raises(ExposedPortUnavailableError, match="8080"):
        await session.resolve_exposed_port(8080)


# Terminals.


async def test_a_command_in_a_terminal(session: SandboxSession) -> None:
    assert session.supports_pty()
    first = await session.pty_exec_start(
        "test -t 0 && echo tty; read x; echo got $x; exit 5", tty=True, yield_time_s=3
    )
    assert (first.output, first.exit_code) == (b"tty\r\n", None)
    assert first.process_id is not None
    last = await session.pty_write_stdin(
        session_id=first.process_id, chars="wörd\n", yield_time_s=20
    )
    assert "got wörd" in last.output.decode()
    assert (last.process_id, last.exit_code) == (None, 5)
    with pytest.raises(PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=first.process_id, chars="")


async def test_a_command_without_a_terminal_that_runs_on(session: SandboxSession) -> None:
    quick = await session.pty_exec_start("echo 1; echo 2 >&2; exit 3", yield_time_s=20)
    assert (sorted(quick.output.split()), quick.exit_code) == ([b"1", b"2"], 3)
    slow = await session.pty_exec_start("echo here; exec sleep 475", yield_time_s=3)
    assert (slow.output, slow.exit_code) == (b"here\n", None)
    assert slow.process_id is not None
    with pytest.raises(RuntimeError, match="stdin is not available for this process"):
        await session.pty_write_stdin(session_id=slow.process_id, chars="x")
    await session.pty_terminate_all()
    for _ in range(1000):
        running = (await session.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
        if b"sleep 475" not in running:
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("it runs on")
    await session.pty_terminate_all()


async def test_output_of_a_terminal_is_bounded(session: SandboxSession) -> None:
    flood = await session.pty_exec_start(
        "head -c 3000000 /dev/zero | tr '\\0' x", yield_time_s=20, max_output_tokens=100
    )
    assert flood.exit_code == 0
    assert len(flood.output) < 2000
    assert flood.original_token_count is not None


async def test_too_many_at_a_time(session: SandboxSession) -> None:
    for _ in range(16):
        await session.pty_exec_start("exec sleep 476", shell=["sh", "-c"], yield_time_s=0)
    with pytest.raises(ExecTransportError, match="16 background commands"):
        await session.pty_exec_start("true")


# Files.


async def text(session: SandboxSession, path: str) -> str:
    return cast("bytes", (await session.read(Path(path))).read()).decode()


async def test_files(session: SandboxSession) -> None:
    data = bytes(range(256)) * 40_000  # more than goes at once
    await session.write(Path("a/b.bin"), io.BytesIO(data))
    assert (await session.read(Path("/workspace/a/b.bin"))).read() == data
    if IS_NEW:
        assert await newer(session).read_bounded(Path("a/b.bin"), max_bytes=5) == data[:5]
    await session.write(Path("a/b.bin"), io.BytesIO(b""))
    assert await text(session, "a/b.bin") == ""
    await session.mkdir("new")
    await session.mkdir("x/y/z", parents=True)
    await session.mkdir("x/y/z", parents=True)
    await session.exec("ln -s a link; echo 1 > \"$(printf 'n\\377')\"; chmod 750 a/b.bin")
    entries = {Path(entry.path).name: entry for entry in await session.ls(".")}
    assert sorted(entries) == ["a", "link", "new", "n\udcff", "x"]
    assert [entries[name].kind.value for name in ("a", "link", "n\udcff")] == [
        "directory", "symlink", "file",
    ]  # fmt: skip
    assert entries["a"].is_dir()
    (single,) = await session.ls("a/b.bin")
    assert (single.path, str(single.permissions)) == ("/workspace/a/b.bin", "-rwxr-x---")
    if IS_NEW:
        await newer(session).mv("a/b.bin", "moved")
        assert await newer(session).same_file("moved", "./moved")
        await session.rm("moved")
    await session.rm("x", recursive=True)
    await session.rm("x", recursive=True)
    assert "x" not in {Path(entry.path).name for entry in await session.ls("/workspace")}


async def test_files_that_can_not_be_had(session: SandboxSession) -> None:
    await session.write(Path("d/x"), io.BytesIO(b"1"))
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("nothing"))
    if IS_NEW:
        with pytest.raises(WorkspaceReadNotFoundError):
            await newer(session).read_bounded(Path("nothing"), max_bytes=1)
    with pytest.raises(WorkspaceArchiveReadError) as caught:
        await session.read(Path("d"))
    assert caught.value.context["reason"] == "file_is_directory"
    with pytest.raises(WorkspaceArchiveWriteError, match="is a directory"):
        await session.write(Path("d"), io.BytesIO(b""))
    for failing in (
        session.ls("nothing"),
        session.rm("nothing"),
        session.rm("d"),
        session.mkdir("d"),
        session.mkdir("p/q"),
        session.mkdir("d/x/y", parents=True),
        *([newer(session).mv("d", "e")] if IS_NEW else []),
    ):
        with pytest.raises(ExecNonZeroError):
            await failing
    assert await text(session, "d/x") == "1"


async def test_paths_outside(session: SandboxSession) -> None:
    await session.exec("ln -s /etc/passwd link; ln -s /etc dir")
    for path in ("/etc/passwd", "../x", "a/../../x", "/workspace/../etc/passwd"):
        for operation in (
            session.read(Path(path)),
            session.write(Path(path), io.BytesIO(b"")),
            session.ls(path),
            session.rm(path, recursive=True),
            session.mkdir(path),
            *([newer(session).mv(path, "x")] if IS_NEW else []),
        ):
            with pytest.raises(InvalidManifestPathError):
                await operation
    for path in ("link", "dir/passwd"):
        with pytest.raises(WorkspaceArchiveReadError):
            await session.read(Path(path))
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.write(Path(path), io.BytesIO(b""))


async def test_archives_and_patches(session: SandboxSession, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as made:
        member = tarfile.TarInfo("in/side.txt")
        member.size = 4
        made.addfile(member, io.BytesIO(b"text"))
    with open(tmp_path / "a.tar", "rb") as file:
        await session.extract("got/a.tar", file)
    assert await text(session, "got/in/side.txt") == "text"
    await session.apply_patch({"type": "create_file", "path": "new.txt", "diff": "+one\n+two\n"})
    assert (await text(session, "new.txt")).split() == ["one", "two"]


# States.


async def test_a_manifest(client: RingfenceSandboxClient) -> None:
    manifest = Manifest(
        entries={"a.txt": File(content=b"1"), "d": Dir(children={"b": File(content=b"2")})},
        environment=cast("Any", {"value": {"NAME": "value"}}),
    )
    session = await client.create(manifest=manifest)
    async with session:
        found = await session.exec('cat a.txt d/b; echo "$NAME"')
        assert found.stdout == b"12value\n"
    await client.delete(session)
    for refused in (
        {"users": [User(name="u")]},
        {"extra_path_grants": (SandboxPathGrant(path="/tmp/x"),)},
        {"root": "/elsewhere"},
    ):
        with pytest.raises(ConfigurationError):
            await client.create(manifest=Manifest(**cast("Any", refused)))


async def test_a_session_that_is_resumed_has_the_same_sandbox(
    client: RingfenceSandboxClient,
) -> None:
    session = await client.create()
    async with session:
        await session.exec("echo 1 > file; sleep 477 >/dev/null 2>&1 &")
    resumed = await client.resume(copied(client, session.state))
    async with resumed:
        assert await text(resumed, "file") == "1\n"
        running = (await resumed.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
        assert b"sleep 477" in running
        assert await resumed.running()
    await client.delete(resumed)
    assert not await resumed.running()
    await client.delete(session)


def copied(client: RingfenceSandboxClient, state: SandboxSessionState) -> SandboxSessionState:
    """Return a state as it comes out of a store."""
    payload = json.loads(json.dumps(client.serialize_session_state(state)))
    found = client.deserialize_session_state(dict(payload))
    assert isinstance(found, RingfenceSandboxSessionState)
    assert found == state == SandboxSessionState.parse(dict(payload))
    return found


async def test_states_and_options_are_json(client: RingfenceSandboxClient) -> None:
    options = RingfenceSandboxClientOptions(tenant_id="t", profile="oneshot")
    assert RingfenceSandboxClientOptions.parse(json.loads(options.model_dump_json())) == options
    session = await client.create(options=options)
    state = copied(client, session.state)
    assert isinstance(state, RingfenceSandboxSessionState)
    assert (state.type, state.tenant_id, state.sandbox_id) == ("ringfence", "t", "")
    with pytest.raises(Exception, match="invalid"):
        client.deserialize_session_state({"type": "ringfence", "nonsense": 1})


async def test_what_is_gone_is_made_again_from_a_snapshot(
    client: RingfenceSandboxClient, tmp_path: Path
) -> None:
    session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    async with session:
        script = "mkdir -p d/empty; echo 1 > d/f; chmod 700 d/f; ln -s f d/link; printf '\\377' > b"
        await session.exec(script)
    await client.delete(session)
    resumed = await client.resume(copied(client, session.state))
    async with resumed:
        found = await resumed.exec("stat -c %A d/empty d/f d/link; cat d/link; od -An -tx1 b")
        modes = [b"drwxr-xr-x", b"-rwx------", b"lrwxrwxrwx"]
        assert found.stdout.split() == [*modes, b"1", b"ff"]
        assert resumed.state.execution_id == session.state.execution_id  # type: ignore[attr-defined]
    await client.delete(resumed)


async def test_what_is_gone_without_a_snapshot_is_an_error(
    client: RingfenceSandboxClient, sessions: SessionManager
) -> None:
    session = await client.create()
    async with session:
        await session.exec("echo 1 > file")
    await client.delete(session)
    resumed = await client.resume(copied(client, session.state))
    with pytest.raises(WorkspaceStartError, match="no snapshot") as caught:
        await resumed.start()
    assert (type(caught.value.cause), caught.value.retryable) == (SandboxLostError, False)
    assert sessions.sessions == []


async def test_a_sandbox_that_dies_is_never_silently_another(
    client: RingfenceSandboxClient, sessions: SessionManager
) -> None:
    session = await client.create()
    async with session:
        await session.exec("echo 1 > file")
        (box,) = sessions.sessions
        await box._destroy("for the test")
        assert not await session.running()
        for _ in range(2):
            with pytest.raises(ExecTransportError, match="is gone"):
                await session.exec("cat file")
        with pytest.raises(WorkspaceArchiveReadError):
            await session.read(Path("file"))
        with pytest.raises(WorkspaceArchiveReadError):
            await session.persist_workspace()
    await client.delete(session)


async def test_a_state_from_before_the_start_finds_the_sandbox(
    client: RingfenceSandboxClient,
) -> None:
    """As in a workflow, which keeps the state that it was given when the session was created."""
    session = await client.create()
    state = copied(client, session.state)
    async with session:
        await session.exec("echo 1 > file")
    resumed = await client.resume(copied(client, state))
    assert await text(resumed, "file") == "1\n"  # it was not started again
    started = await client.resume(copied(client, state))
    async with started:
        assert await text(started, "file") == "1\n"
    await client.delete(resumed)
    unstarted = await client.resume(copied(client, state))
    with pytest.raises(ExecTransportError, match="has not been started"):
        await unstarted.exec("true")


async def test_another_worker_that_has_it_is_named(own_places: Path, tmp_path: Path) -> None:
    leases = str(tmp_path / "leases.db")
    async with (
        open_backend("bubblewrap") as backend,
        SessionManager(backend, leases=SqliteLeases(leases)) as first,
        SessionManager(backend, leases=SqliteLeases(leases)) as second,
    ):
        one, other = RingfenceSandboxClient(first), RingfenceSandboxClient(second)
        session = await one.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
        async with session:
            await session.stop()
            resumed = await other.resume(copied(one, session.state))
            with pytest.raises(WorkspaceStartError) as caught:
                await resumed.start()
            assert (type(caught.value.cause), caught.value.retryable) == (
                SessionElsewhereError,
                True,
            )
        await one.delete(session)


async def test_a_workspace_as_an_archive(session: SandboxSession) -> None:
    await session.write(Path("a"), io.BytesIO(b"1"))
    session._inner.register_persist_workspace_skip_path("left*out")
    await session.exec("mkdir 'left*out' leftout; touch 'left*out/x' leftout/y")
    archive = await session.persist_workspace()
    await session.exec("rm -r ./*")
    await session.hydrate_workspace(archive)
    assert (await session.exec("find . -type f | sort")).stdout == b"./a\n./leftout/y\n"
    archive.close()
    for data in (b"nonsense", b"x" * 10_000):
        with pytest.raises(WorkspaceArchiveWriteError, match="failed: tar:"):
            await session.hydrate_workspace(io.BytesIO(data))


async def test_a_workspace_that_is_too_large(
    session: SandboxSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.adapters._tar.MAX_BYTES", 100_000)
    await session.exec("head -c 200000 /dev/zero > big")
    with pytest.raises(WorkspaceArchiveReadError) as caught:
        await session.persist_workspace()
    assert caught.value.context["reason"] == "file_too_large"


async def test_a_start_that_fails_leaves_nothing(
    client: RingfenceSandboxClient, sessions: SessionManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await client.create(manifest=Manifest(entries={"a": File(content=b"1")}))

    async def failing(*args: Any, **kwargs: Any) -> None:
        raise WorkspaceArchiveWriteError(path=Path("a"))

    monkeypatch.setattr(session._inner, "write", failing)
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.start()
    assert sessions.sessions == []


async def test_what_is_of_another_client(client: RingfenceSandboxClient) -> None:
    foreign = UnixLocalSandboxClient()
    session = await foreign.create()
    with pytest.raises(ConfigurationError, match="another client"):
        await client.resume(session.state)
    with pytest.raises(ConfigurationError, match="another client"):
        await client.delete(session)
    await foreign.delete(session)
    with pytest.raises(ConfigError, match="SessionManager"):
        RingfenceSandboxClient(cast("Any", "auto"))
    with pytest.raises(ConfigurationError, match="tenant_id"):
        await client.create(options=RingfenceSandboxClientOptions(tenant_id="a b"))


# Agents.


def script(*steps: Any) -> ScriptedModel:
    calls = [[function_call(name, args, call_id=f"c{n}")] for n, (name, args) in enumerate(steps)]
    return ScriptedModel([*calls, [assistant_message("done")]])


def outputs(items: Any) -> list[str]:
    return [str(one["output"]) for one in items if one.get("type") == "function_call_output"]


async def test_an_agent(client: RingfenceSandboxClient) -> None:
    model = script(
        ("exec_command", {"cmd": "echo $NAME; cat a.txt; exit 7"}),
        ("exec_command", {"cmd": "read x; echo got $x", "tty": True, "yield_time_ms": 300}),
        ("exec_command", {"cmd": "pwd", "workdir": "../etc" if IS_NEW else "."}),
        ("write_stdin", {"session_id": 1, "chars": "x"}),
    )
    agent = SandboxAgent(
        name="a",
        model=model,
        capabilities=[Shell(), Filesystem()],
        default_manifest=Manifest(
            entries={"a.txt": File(content=b"one\n")},
            environment=cast("Any", {"value": {"NAME": "value"}}),
        ),
    )
    config = RunConfig(sandbox=SandboxRunConfig(client=client), tracing_disabled=True)
    result = await Runner.run(agent, "go", run_config=config)
    assert result.final_output == "done"
    first, second, third, fourth = outputs(result.to_input_list())
    assert "value\none" in first
    assert "7" in first
    assert "session" in second.lower()
    assert ("within the workspace" if IS_NEW else "/workspace") in third
    assert "write_stdin failed" in fourth


def test_an_agent_that_is_run_in_an_event_loop_of_its_own(own_places: Path) -> None:
    with sync.open_backend("bubblewrap") as backend, sync.SessionManager(backend) as sessions:
        client = RingfenceSandboxClient(sessions)
        model = script(("exec_command", {"cmd": "echo 6; exit 7"}))
        agent = SandboxAgent(name="a", model=model, capabilities=[Shell()])
        config = RunConfig(sandbox=SandboxRunConfig(client=client), tracing_disabled=True)

        async def run() -> Any:
            return await Runner.run(agent, "go", run_config=config)

        result = asyncio.run(run())
        assert "6" in outputs(result.to_input_list())[0]
        assert sessions.sessions == []
