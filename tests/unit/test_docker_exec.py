"""Containers whose commands come by the exec API: what is said to the engine, and what it means."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("aiodocker")

from ringfence.backends import _docker_exec_box
from ringfence.backends._docker_attach import ContainerStream
from ringfence.backends._docker_endpoint import Endpoint
from ringfence.backends._docker_engine import RefusedError
from ringfence.backends._docker_exec import ExecProcess, ExecSandbox
from ringfence.backends._docker_exec_body import SWEEP, call_command, exec_container_body
from ringfence.backends._docker_exec_box import ExecBox
from ringfence.backends._docker_exec_call import Call
from ringfence.backends._docker_facts import Facts
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUnreachableError, LimitError, SandboxError, SandboxLostError
from ringfence.models import Chunk, Exit, ExitReason, Limits, SandboxSpec
from ringfence.process import Process
from ringfence.warden.stream import ByteStream

from .test_docker_body import LIMITS, PLAN

UID, FILTERED, ROOT = 65534, 6, 0


def hello(uid: int = UID, features: int = FILTERED) -> bytes:
    payload = struct.pack("<IIII16s", 2, 9, features, uid, b"i" * 16)
    return struct.pack("<IIBBH", len(payload), 0, 0x81, 0, 0) + payload


def framed(data: bytes, kind: int = 1) -> bytes:
    return struct.pack(">BxxxI", kind, len(data)) + data


class Replay(ByteStream):
    """Says what it was given, and then ends, or is silent until it is closed."""

    def __init__(self, *parts: bytes, ends: bool = False) -> None:
        self.parts = list(parts)
        self.closed = asyncio.Event()
        if ends:
            self.closed.set()

    async def receive(self) -> bytes:
        if not self.parts:
            await self.closed.wait()
        return self.parts.pop(0) if self.parts else b""

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        return len(data)

    def close(self) -> None:
        self.closed.set()


class FakeExec:
    """An exec that has ended with a code, or goes on."""

    def __init__(self, name: str, code: int | None) -> None:
        self.id = name
        self.code = code

    async def inspect(self) -> dict[str, Any]:
        return {"Running": self.code is None, "ExitCode": self.code}


class FakeTasks:
    """Does nothing in the background: nothing of it is there to be removed."""

    def task(self, work: Any) -> asyncio.Task[None]:
        work.close()
        return asyncio.get_running_loop().create_task(nothing())


class FakeEngine:
    """An engine as far as execs go: each has what it says, and how it ends."""

    def __init__(self, *execs: tuple[ByteStream, int | None], state: str = "running") -> None:
        self.execs = list(execs)
        self.state = state
        self.asked: list[dict[str, Any]] = []
        self.refusal: Exception | None = None
        self.endpoint = Endpoint(socket="/engine")
        self.tasks = FakeTasks()

    async def call(self, what: str, request: Awaitable[Any], seconds: float = 0) -> Any:
        return await request

    def container(self, name: str) -> FakeEngine:
        return self

    async def show(self) -> dict[str, Any]:
        return {"State": {"Status": self.state}}

    async def exec(self, command: tuple[str, ...], **settings: Any) -> FakeExec:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append({"cmd": command, **settings})
        self.stream, code = self.execs.pop(0)
        return FakeExec(str(len(self.asked)), code)

    async def start_exec(
        self, exec_id: str, on_end: Callable[[], Awaitable[None]]
    ) -> ContainerStream:
        return ContainerStream(self.stream, b"", on_end)


async def nothing() -> None:
    return


def box_in(engine: FakeEngine) -> ExecBox:
    return ExecBox(engine, "rf-1", nothing, "65534:65534", LIMITS)  # type: ignore[arg-type]


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]


def test_pid_1_is_an_init_and_has_no_stream() -> None:
    body = exec_container_body(PLAN, ContainerConfig(transport="exec"))
    assert body["Entrypoint"] == ["/run/ringfence/warden"]
    assert body["Cmd"] == ["init", "--max-age-ms", "3600000"]
    assert [body[name] for name in ("AttachStdin", "AttachStdout", "AttachStderr")] == [False] * 3
    assert (body["OpenStdin"], body["StdinOnce"], body["Tty"]) == (False, False, False)
    assert body["User"] == "65534:65534"
    assert body["HostConfig"]["CapDrop"] == ["ALL"]
    assert body["HostConfig"]["AutoRemove"] is True


def test_an_exec_is_a_warden_for_one_command() -> None:
    assert call_command(Limits(open_files=64)) == (
        "/run/ringfence/warden", "serve", "--pipes", "--once", "--count-oom", "--seccomp",
        "--home", "/tmp/home", "--open-files", "64",
    )  # fmt: skip
    assert SWEEP == ("/run/ringfence/warden", "sweep")


def test_capabilities_say_what_exec_can_t() -> None:
    attach = Facts().capabilities(ContainerConfig()).notes
    by_exec = Facts().capabilities(ContainerConfig(transport="exec")).notes
    assert set(attach) < set(by_exec)
    assert len(by_exec) - len(attach) == 4


def test_a_greeting_may_be_split_anywhere() -> None:
    """Also over the engine's own frames, whose heads may be split too."""
    whole = framed(hello()[:7]) + framed(hello()[7:])

    async def main() -> None:
        for at in range(1, len(whole)):
            engine = FakeEngine((Replay(whole[:at], whole[at:]), None))
            call = await box_in(engine).open()
            assert call.connection.hello is not None
            assert call.connection.hello.uid == UID
            assert engine.asked == [
                {
                    "cmd": call_command(LIMITS),
                    "stdin": True,
                    "user": "65534:65534",
                    "workdir": "/",
                }
            ]
            call.close()

    run(main)


def test_a_few_are_begun_at_once_and_none_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a burst that the engine answers so late that it is taken for dead."""
    monkeypatch.setattr(_docker_exec_box, "_BEGUN_AT_ONCE", 2)
    monkeypatch.setattr(_docker_exec_box, "_BEGIN_SECONDS", 0.2)

    async def main() -> None:
        engine = FakeEngine((Replay(), None), (Replay(), None), (Replay(), None))
        box = box_in(engine)
        outcomes = await asyncio.gather(*(box.open() for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [BackendUnreachableError] * 3
        assert len(engine.asked) == 2
        engine.execs = [(Replay(framed(hello())), None)]
        (await box.open()).close()

    run(main)


RUNTIME_TEXT = b"OCI runtime exec failed: exec failed: %s: unknown\r\n"


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (RUNTIME_TEXT % b"fork/exec /proc/self/exe: resource temporarily unavailable", LimitError),
        (RUNTIME_TEXT % b"permission denied", SandboxError),
        (b"", SandboxError),
    ],
)
def test_what_the_runtime_writes_into_stdout_is_an_error(
    said: bytes, kind: type[SandboxError]
) -> None:
    """Catches runtime text that is taken for output, and a sandbox that is lost for it."""

    async def main() -> None:
        parts = [framed(said)] if said else []
        engine = FakeEngine((Replay(*parts, ends=True), 126), (Replay(framed(hello())), None))
        box = box_in(engine)
        with pytest.raises(SandboxError) as caught:
            await box.open()
        assert type(caught.value) is kind
        assert said.decode().strip() in caught.value.message
        (await box.open()).close()

    run(main)


def test_a_command_without_its_protection_loses_the_sandbox() -> None:
    async def main() -> None:
        for bad in (hello(uid=ROOT), hello(features=4), hello(features=2)):
            box = box_in(FakeEngine((Replay(framed(bad)), None)))
            with pytest.raises(SandboxLostError, match="without its protection"):
                await box.open()
            with pytest.raises(SandboxLostError, match="without its protection"):
                await box.open()

    run(main)


@pytest.mark.parametrize("status", [404, 409])
def test_an_exec_in_a_container_that_is_gone_is_a_loss(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_docker_exec_box, "_END_SECONDS", 0.01)

    async def main() -> None:
        engine = FakeEngine(state="")
        engine.refusal = RefusedError(status, "no such container")
        with pytest.raises(SandboxLostError) as caught:
            await box_in(engine).open()
        assert caught.value.cause == "removed"

    run(main)


@pytest.mark.parametrize(("oom", "cause"), [(False, "killed from inside"), (True, "out of memory")])
def test_a_warden_that_is_killed_at_once_is_tried_again_and_then_the_sandbox_is_lost(
    oom: bool, cause: str
) -> None:
    """Catches a command that never began and is told as ended, and a sandbox of no use."""

    def killed() -> tuple[ByteStream, int]:
        return Replay(ends=True), 137

    async def main() -> None:
        (await box_in(FakeEngine(killed(), (Replay(framed(hello())), None))).open()).close()
        box = box_in(FakeEngine(killed(), killed()))
        if oom:
            box.fate.take_event({"Action": "oom"})
        with pytest.raises(SandboxLostError) as caught:
            await box.open()
        assert caught.value.cause == cause

    run(main)


@pytest.mark.parametrize(
    ("code", "swept", "cause"),
    [(137, 0, ""), (137, 1, "killed from inside"), (None, 0, "its stream broke")],
)
def test_a_warden_that_ends_is_swept_after_or_its_container_is_lost(
    code: int | None, swept: int, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a killed warden whose command lives on, and a broken stream taken for a kill."""
    monkeypatch.setattr(_docker_exec_box, "_END_SECONDS", 0.05)

    async def main() -> None:
        engine = FakeEngine((Replay(framed(hello()), ends=True), code), (Replay(ends=True), swept))
        box = box_in(engine)
        call = await box.open()
        sandbox = ExecSandbox(
            box, {}, spec=SandboxSpec(), limits=LIMITS, capabilities=Facts().capabilities(CONFIG)
        )
        process = ExecProcess(sandbox, Inner(call), call)
        if not cause:
            end = await process.wait()
            assert end == Exit(137, ExitReason.SIGNALED, 2, 1)
            assert box.lost is None
            await process.kill()
            return
        with pytest.raises(SandboxLostError) as caught:
            await process.wait()
        assert caught.value.cause == cause
        assert box.lost is caught.value

    run(main)


def test_a_file_operation_whose_warden_is_killed_is_an_error_and_no_loss() -> None:
    async def main() -> None:
        engine = FakeEngine((Replay(framed(hello()), ends=True), 137), (Replay(ends=True), 0))
        box = box_in(engine)
        sandbox = ExecSandbox(
            box, {}, spec=SandboxSpec(), limits=LIMITS, capabilities=Facts().capabilities(CONFIG)
        )
        with pytest.raises(SandboxError, match="ended from inside") as caught:
            await sandbox.stat("f")
        assert type(caught.value) is SandboxError
        assert box.lost is None

    run(main)


CONFIG = ContainerConfig(transport="exec")


class Inner(Process):
    """A command that prints a little, and then waits for more from its warden."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._chunks = [Chunk("stdout", b"ab"), Chunk("stderr", b"c")]

    async def receive(self) -> Chunk | None:
        if self._chunks:
            return self._chunks.pop(0)
        await self._call.connection.ping()
        return None

    async def wait(self) -> Exit:
        raise AssertionError

    async def kill(self, signal: int | None = None) -> None:
        raise AssertionError

    async def write_stdin(self, data: bytes) -> None:
        raise AssertionError

    async def close_stdin(self) -> None:
        raise AssertionError
