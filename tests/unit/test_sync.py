"""The synchronous twins: the same calls, from any thread, with or without a running loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ringfence
from ringfence import (
    Chunk,
    Command,
    CreateError,
    FakeBackend,
    FileKind,
    FileMissingError,
    PoolClosedError,
    PoolConfig,
    SandboxClosedError,
    SandboxLostError,
    Script,
    feed,
    portal,
    sync,
)
from ringfence.backends.fake import Scripts

PROJECT = Path(__file__).parents[2]


def fake(script: Scripts | None = None) -> tuple[FakeBackend, sync.Backend]:
    inner = FakeBackend(script=script)
    return inner, sync.Backend(inner)


def python(code: str, timeout: float = 30) -> str:
    """Run a program that uses the package to its end; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestGenerated:
    def test_the_file_is_what_the_generator_writes(self) -> None:
        check = [sys.executable, "-m", "scripts.twins", "--check"]
        done = subprocess.run(check, cwd=PROJECT, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr

    @pytest.mark.parametrize(
        ("twin", "original"),
        [
            (sync.Backend, ringfence.Backend),
            (sync.Sandbox, ringfence.Sandbox),
            (sync.Process, ringfence.Process),
            (sync.Run, ringfence.Run),
            (sync.Pool, ringfence.Pool),
        ],
    )
    def test_every_public_method_has_a_twin_with_its_signature(
        self, twin: type, original: type
    ) -> None:
        renamed = {"aclose": "close"}
        for name, method in inspect.getmembers(original, inspect.isfunction):
            if name.startswith("_") or (original, name) == (ringfence.Run, "complete"):
                continue
            other = getattr(twin, renamed.get(name, name))
            assert not inspect.iscoroutinefunction(other)
            assert (
                inspect.signature(other).parameters.keys()
                == inspect.signature(method).parameters.keys()
            )
            assert inspect.getdoc(other)


class TestPool:
    def test_it_takes_a_factory_that_blocks_and_hands_out_twins(self) -> None:
        """Catches a factory that is called in the loop's own thread, which waits for itself."""
        inner, backend = fake(Script([b"warm"]))
        with backend, sync.Pool(PoolConfig(factory=backend.create, max_size=3)) as pool:
            pool.warmup(2)
            assert (pool.ready, pool.size, pool.in_use, pool.waiting) == (2, 2, 0, 0)
            with pool.lease() as sandbox:
                assert isinstance(sandbox, sync.Sandbox)
                assert sandbox.exec("x").stdout == b"warm"
                assert pool.in_use == 1
            sandbox = pool.acquire(timeout=10)
            pool.release(sandbox)
            pool.release(sandbox)
            assert pool.execute("x", ["y"], timeout=5).timeout == 5
            assert repr(pool).startswith("<Pool open: ")
        assert inner.live_sandboxes == 0
        with pytest.raises(PoolClosedError):
            pool.acquire()

    def test_many_threads_share_it(self) -> None:
        inner, backend = fake(Script([b"x"]))
        with backend, sync.Pool(PoolConfig(factory=backend.create, max_size=4)) as pool:
            with ThreadPoolExecutor(16) as threads:
                calls = [threads.submit(pool.execute, "x") for _ in range(64)]
                assert all(call.result().ok for call in calls)
            assert len({call.sandbox for call in inner.calls if call.verb == "start"}) == 64
        assert inner.live_sandboxes == 0

    @pytest.mark.parametrize("made", [None, "a sandbox"])
    def test_a_factory_that_makes_something_else_is_refused(self, made: Any) -> None:
        with (
            sync.Pool(PoolConfig(factory=lambda: made)) as pool,
            pytest.raises(CreateError, match="no sandbox but"),
        ):
            pool.acquire()

    def test_what_is_in_use_is_closed_with_it(self) -> None:
        inner, backend = fake(Script(hangs=True))
        with backend, sync.Pool(PoolConfig(factory=backend.create)) as pool:
            sandbox = pool.acquire()
            sandbox.start(Command(("x",)))
            pool.close()
            assert (inner.live_sandboxes, inner.live_processes) == (0, 0)
            pool.release(sandbox)


class TestCalls:
    def test_a_backend_is_used_as_in_async_code(self) -> None:
        inner, backend = fake(Script([b"hello"], exit_code=3))
        with backend as same:
            assert same is backend
            result = backend.execute("x", ["y"], timeout=5)
            assert (result.stdout, result.exit_code, result.timeout) == (b"hello", 3, 5)
            assert (backend.name, backend.capabilities) == ("fake", inner.capabilities)
            assert backend.default_limits == inner.default_limits
            assert backend.probe().ok
            assert backend.reap() == 0
            assert repr(backend) == repr(inner)
        with pytest.raises(SandboxClosedError):
            backend.execute("x")

    def test_open_backend_returns_a_twin(self) -> None:
        with sync.open_backend("fake") as backend:
            assert backend.execute("x").ok

    def test_a_sandbox_has_its_files(self) -> None:
        _, backend = fake()
        with backend, backend.create() as sandbox:
            assert (sandbox.backend, sandbox.workspace) == ("fake", "/workspace")
            assert sandbox.id in repr(sandbox)
            assert sandbox.limits.timeout == 30
            assert sandbox.spec.env == {}
            assert sandbox.capabilities.files
            sandbox.write_file("a", "one")
            sandbox.make_dir("d")
            sandbox.move("a", "d/a")
            assert sandbox.read_file("d/a", offset=1, max_bytes=1) == b"n"
            assert sandbox.stat("d").kind is FileKind.DIRECTORY
            assert [entry.name for entry in sandbox.list_files("d").entries] == ["a"]
            sandbox.remove("d")
            with pytest.raises(FileMissingError):
                sandbox.stat("d")
        sandbox.close()
        with pytest.raises(SandboxClosedError):
            sandbox.exec("x")

    def test_a_process_is_read_fed_and_killed(self) -> None:
        _, backend = fake([Script(echo=True), Script([b"a"], hangs=True)])
        with backend, backend.create() as sandbox:
            process = sandbox.start(Command(["cat"]), stdin_open=True)
            process.write_stdin(b"fed")
            process.close_stdin()
            assert [chunk.data for chunk in process] == [b"fed"]
            assert process.wait().code == 0
            assert isinstance(process.pid, int)
            process = sandbox.start(Command(["x"]))
            chunk = process.receive()
            assert chunk
            assert chunk.data == b"a"
            process.kill()
            assert process.wait().code == 143
            assert process.receive() is None

    def test_stdin_may_be_a_plain_iterable(self) -> None:
        _, backend = fake(Script(echo=True))
        with backend:
            result = backend.execute(Command(["cat"], stdin=feed([b"a", b"b"])))
            assert result.stdout == b"ab"
            assert backend.execute(Command(["cat"], stdin="text")).stdout == b"text"

    def test_errors_are_those_of_the_async_call(self) -> None:
        _, backend = fake(Script(loses="killed"))
        with backend, backend.create() as sandbox, pytest.raises(SandboxLostError) as caught:
            sandbox.exec("x")
        assert caught.value.cause == "killed"


class TestStreams:
    def test_output_is_handed_out_as_it_arrives(self) -> None:
        _, backend = fake(Script([b"\xc3", b"\xa9", Chunk("stderr", b"x")]))
        with backend, backend.create() as sandbox:
            with sandbox.stream("x") as run:
                with pytest.raises(RuntimeError, match="not ended"):
                    _ = run.result
                assert [chunk.text for chunk in run] == ["", "é", "x"]
            assert run.result.stdout_text == "é"
            with sandbox.stream("x") as run:
                assert run.finish().ok

    def test_leaving_early_kills_the_command(self) -> None:
        inner, backend = fake(Script([b"a"], hangs=True))
        with backend, backend.create() as sandbox:
            with sandbox.stream("x") as run:
                assert next(iter(run)).data == b"a"
            assert inner.live_processes == 0

    def test_a_streamed_command_is_fed_meanwhile(self) -> None:
        """Catches a run that is entered and left by different tasks, which its feeding forbids."""
        _, backend = fake(Script(echo=True))
        command = Command(["cat"], stdin=feed([b"a", b"b"]))
        with backend, backend.create() as sandbox, sandbox.stream(command) as run:
            assert b"".join(chunk.data for chunk in run) == b"ab"

    def test_a_callback_runs_in_the_thread_of_its_caller(self) -> None:
        """Catches a callback that blocks the loop which every other caller needs."""
        _, backend = fake(Script([b"a", b"b"]))
        seen: list[tuple[str, int]] = []
        with backend, backend.create() as sandbox:
            result = sandbox.exec(
                "x", on_output=lambda chunk: seen.append((chunk.text, threading.get_ident()))
            )
        here = threading.get_ident()
        assert seen == [("a", here), ("b", here)]
        assert result.stdout == b"ab"

    def test_an_error_of_the_callback_stops_the_command(self) -> None:
        inner, backend = fake(Script([b"a"], hangs=True))

        def fail(chunk: Chunk) -> None:
            raise ZeroDivisionError

        with backend, backend.create() as sandbox:
            with pytest.raises(ZeroDivisionError):
                sandbox.exec("x", on_output=fail)
            assert inner.live_processes == 0


class TestPortal:
    def test_it_works_inside_of_a_running_loop(self) -> None:
        async def main() -> bytes:
            _, backend = fake(Script([0.01, b"a"]))
            with backend:
                return backend.execute("x").stdout

        assert asyncio.run(main()) == b"a"

    def test_all_threads_share_one_loop_and_do_not_wait_for_one_another(self) -> None:
        names: set[str] = set()
        most = 0

        def script(command: Command) -> Script:
            nonlocal most
            names.add(threading.current_thread().name)
            most = max(most, inner.live_processes)
            return Script([0.5, command.argv_bytes[1]])

        inner, backend = fake(script)
        with backend, ThreadPoolExecutor(16) as threads:
            calls = [threads.submit(backend.execute, "x", [str(n)]) for n in range(16)]
            assert [call.result().stdout for call in calls] == [b"%d" % n for n in range(16)]
        assert most > 1
        assert names == {"ringfence-sync"}

    def test_an_interrupted_call_is_cancelled_and_has_cleaned_up(self) -> None:
        """Catches Ctrl-C leaving the command running behind its caller's back."""

        def script(_: Command) -> Script:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            return Script(hangs=True)

        inner, backend = fake(script)
        with backend:
            with pytest.raises(KeyboardInterrupt):
                backend.execute("x", timeout=60)
            assert (inner.live_processes, inner.live_sandboxes) == (0, 0)

    def test_a_call_from_its_own_thread_is_refused(self) -> None:
        """Catches a deadlock."""

        async def inside() -> None:
            portal.call(asyncio.sleep, 0)

        with pytest.raises(RuntimeError, match="event loop thread"):
            portal.call(inside)

    @pytest.mark.parametrize("leak", ["backend", "sandbox", "stream", "nothing"])
    def test_the_interpreter_ends_and_what_is_open_is_closed(self, leak: str) -> None:
        """Catches a program that hangs at its end because of what it forgot to close."""
        printed = python(
            f"""
            import atexit
            from ringfence import FakeBackend, Script, sync
            inner = FakeBackend(script=Script([b"a"], hangs=True))
            atexit.register(lambda: print(inner.live_sandboxes, inner.live_processes))
            backend = sync.Backend(inner)
            if {leak!r} != "nothing":
                backend.__enter__()
            if {leak!r} in ("sandbox", "stream"):
                sandbox = backend.create()
            if {leak!r} == "stream":
                run = sandbox.stream("x")
                run.__enter__()
                print(next(iter(run)).text)
            """
        )
        assert printed.split()[-2:] == ["0", "0"]

    def test_a_forked_child_has_a_loop_of_its_own(self) -> None:
        if not hasattr(os, "fork"):
            pytest.fail("this test needs a fork")
        printed = python(
            """
            import os, warnings
            from ringfence import sync
            warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads
            with sync.open_backend("fake") as backend:
                assert backend.execute("x").ok
                child = os.fork()
                if child == 0:
                    with sync.open_backend("fake") as own:
                        print("child", own.execute("x").ok, flush=True)
                    raise SystemExit(0)
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                assert backend.execute("x").ok
            """
        )
        assert printed.split() == ["child", "True", "0"]

    def test_a_loop_that_can_not_start_is_an_error_for_its_caller(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Catches a caller that waits for ever for a loop that is not there."""

        def fail(function: Callable[[], Any]) -> None:
            raise OSError("too many open files")

        monkeypatch.setattr(portal, "_current", None)
        monkeypatch.setattr("anyio.run", fail)
        with pytest.raises(OSError, match="too many open files"):
            portal.call(asyncio.sleep, 0)
