"""`DockerSandbox` on the fake backend: settings, results, and how it is opened and closed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from ringfence import (
    TIMEOUT_MARKER,
    AsyncDockerSandbox,
    BackendUnreachableError,
    Chunk,
    CommandError,
    ConfigError,
    CreateError,
    DockerSandbox,
    ExitReason,
    FakeBackend,
    SandboxClosedError,
    SandboxConfig,
    SandboxLostError,
    Script,
)
from ringfence.backends.fake import Scripts

MIB = 1024 * 1024


def fake(script: Scripts | None = None, **settings: Any) -> tuple[FakeBackend, DockerSandbox]:
    backend = FakeBackend(script=script)
    return backend, DockerSandbox(SandboxConfig(**settings), backend=backend)


class TestConfig:
    def test_the_defaults(self) -> None:
        config = SandboxConfig()
        assert vars(config) == {
            "image": "ringfence-sandbox:latest",
            "memory_limit": "512m",
            "nano_cpus": 1_000_000_000,
            "timeout": 30,
            "network_disabled": True,
            "read_only": True,
        }

    def test_they_are_the_hardened_ones_of_a_container(self) -> None:
        made = SandboxConfig().container()
        assert (made.image, made.network, made.writable_rootfs) == (
            "ringfence-sandbox:latest",
            "none",
            False,
        )
        assert (made.memory_bytes, made.cpus, made.timeout) == (512 * MIB, 1.0, 30.0)
        assert (made.tmp_bytes, made.max_timeout) == (64 * MIB, None)
        assert made.user == "65534:65534"

    def test_what_is_switched_off_is_off(self) -> None:
        made = SandboxConfig(network_disabled=False, read_only=False, nano_cpus=250_000_000)
        found = made.container()
        assert (found.network, found.writable_rootfs, found.cpus) == ("bridge", True, 0.25)

    def test_a_long_timeout_is_not_clamped(self) -> None:
        made = SandboxConfig(timeout=4000).container()
        assert made.timeout == made.max_timeout == 4000
        assert made.max_age is not None
        assert made.max_age > 4000

    @pytest.mark.parametrize(
        ("text", "number"),
        [
            ("512m", 512 * MIB),
            ("512M", 512 * MIB),
            ("512mb", 512 * MIB),
            (" 2g ", 2048 * MIB),
            ("1t", MIB * MIB),
            ("65536k", 64 * MIB),
            ("134217728", 128 * MIB),
            ("134217728b", 128 * MIB),
        ],
    )
    def test_sizes(self, text: str, number: int) -> None:
        assert SandboxConfig(memory_limit=text).memory_bytes == number

    @pytest.mark.parametrize(
        "text",
        ["", "m", "512x", "-1m", "1.5g", "0x200", "512 m b", "5m", "0", "\u0665m", None, True, 1.5],
    )
    def test_what_is_no_size_is_refused(self, text: Any) -> None:
        with pytest.raises(ConfigError, match="memory_limit"):
            SandboxConfig(memory_limit=text)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("nano_cpus", value) for value in (0, -1, 1.5, True, "1")],
            *[("timeout", value) for value in (0, -1, float("inf"), float("nan"), True, "30")],
            *[("network_disabled", value) for value in (None, 0, "no")],
            *[("read_only", value) for value in (None, 1)],
            *[("image", value) for value in ("", " ", None)],
        ],
    )
    def test_what_can_not_be_right_is_refused(self, name: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=name):
            SandboxConfig(**{name: value})

    def test_it_can_not_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            SandboxConfig().timeout = 5  # type: ignore[misc]


class TestResults:
    def test_it_is_an_object_and_that_dict(self) -> None:
        _, sandbox = fake(Script([b"hello\n"]))
        with sandbox:
            result = sandbox.execute("print('hello')")
        assert (result.success, result.output, result.exit_code) == (True, "hello\n", 0)
        assert dict(result) == result.to_dict() == result
        assert dict(result) == {"success": True, "output": "hello\n", "exit_code": 0}
        assert (result["output"], len(result), isinstance(result, Mapping)) == ("hello\n", 3, True)
        with pytest.raises(KeyError):
            result["stdout"]
        with pytest.raises(AttributeError):
            result.output = ""  # type: ignore[misc]

    def test_the_streams_are_joined_in_order_and_kept_apart(self) -> None:
        steps = [Chunk("stdout", b"a\n"), Chunk("stderr", b"b\n"), Chunk("stdout", b"c\n")]
        _, sandbox = fake(Script(steps, exit_code=1))
        with sandbox:
            result = sandbox.execute("...")
        assert (result.output, result.stdout, result.stderr) == ("a\nb\nc\n", "a\nc\n", "b\n")
        assert (result.success, result.exit_code) == (False, 1)

    def test_characters_that_arrive_in_pieces_are_whole(self) -> None:
        _, sandbox = fake(Script([b"\xe2\x82", Chunk("stderr", b"!"), b"\xac\xff"]))
        with sandbox:
            assert sandbox.execute("...").output == "!€\ufffd"

    def test_a_timeout_is_a_result_with_what_was_printed(self) -> None:
        backend, sandbox = fake(Script([b"first"], hangs=True), timeout=0.05)
        with sandbox:
            result = sandbox.execute("while True: pass")
            assert (result.success, result.exit_code, result.timed_out) == (False, 124, True)
            assert result.output == f"first\n{TIMEOUT_MARKER}\n"
            assert result.stdout == "first"
            assert backend.live_sandboxes == 0

    def test_out_of_memory_is_a_result(self) -> None:
        _, sandbox = fake(Script([], exit_code=137, reason=ExitReason.OUT_OF_MEMORY))
        with sandbox:
            result = sandbox.execute("x = ' ' * 10**10")
        assert (result.exit_code, result.result.out_of_memory) == (137, True)

    def test_much_output_is_cut_and_that_is_said(self) -> None:
        _, sandbox = fake(Script([b"x" * (3 * MIB)]))
        with sandbox:
            result = sandbox.execute("...")
        assert (len(result.output), result.truncated, result.success) == (MIB, True, True)


class TestCode:
    @pytest.mark.parametrize(
        "code",
        ["print('a b')", "x = \"it's\"; print(f'$HOME `id` {x}')", "", "#é😀\n", "a\nb\n" * 9000],
    )
    def test_it_travels_by_stdin_as_it_is(self, code: str) -> None:
        """Catches what an argument does to code: splitting, expansion, and a limit of 128 KiB."""
        backend, sandbox = fake(Script(echo=True))
        with sandbox:
            assert sandbox.execute(code).output == code
        [command] = backend.commands
        assert (command.argv, command.fallback) == (("python3", "-"), "python")

    @pytest.mark.parametrize("code", [None, b"print(1)", 5, ["print(1)"], "\ud800"])
    def test_what_is_no_text_is_refused_before_anything_starts(self, code: Any) -> None:
        backend, sandbox = fake()
        with sandbox:
            with pytest.raises(CommandError):
                sandbox.execute(code)
            assert backend.sandboxes == []

    def test_every_call_has_a_container_of_its_own(self) -> None:
        backend, sandbox = fake()
        with sandbox:
            for _ in range(3):
                sandbox.execute("...")
                assert backend.live_sandboxes == 0
        assert len(backend.sandboxes) == 3

    def test_threads_may_share_it(self) -> None:
        backend, sandbox = fake(Script([0.01, b"x"]))
        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(sandbox.execute, ["..."] * 24))
        sandbox.close()
        assert all(result.success for result in results)
        assert [call.verb for call in backend.calls].count("open") == 1


class TestFaults:
    """What is the engine's fault raises; it is no exit code and no output."""

    def test_an_engine_that_can_not_be_reached(self) -> None:
        backend, sandbox = fake()
        backend.open_error = BackendUnreachableError("nothing listens there")
        for _ in range(2):
            with pytest.raises(BackendUnreachableError):
                sandbox.execute("print(1)")
        backend.open_error = None  # it is up again
        assert sandbox.execute("print(1)").success
        sandbox.close()

    def test_a_container_that_can_not_be_made(self) -> None:
        backend, sandbox = fake()
        backend.create_errors = [CreateError("no such image")]
        with sandbox:
            with pytest.raises(CreateError, match="no such image"):
                sandbox.execute("print(1)")
            assert sandbox.execute("print(1)").success

    def test_a_container_that_dies(self) -> None:
        backend, sandbox = fake(Script([b"half"], loses="killed"))
        with sandbox:
            with pytest.raises(SandboxLostError):
                sandbox.execute("print(1)")
            assert backend.live_sandboxes == 0

    def test_a_closed_one(self) -> None:
        backend, sandbox = fake()
        with sandbox:
            pass
        sandbox.close()
        with pytest.raises(SandboxClosedError):
            sandbox.execute("print(1)")
        with pytest.raises(SandboxClosedError):
            sandbox.__enter__()
        assert [call.verb for call in backend.calls] == ["open", "aclose"]

    def test_one_that_was_never_used_is_closed_without_a_word_to_the_engine(self) -> None:
        backend, sandbox = fake()
        sandbox.close()
        assert backend.calls == []


def test_it_runs_as_on_a_page_without_being_closed() -> None:
    """The end of the process closes it."""
    code = """
        import atexit
        from ringfence import DockerSandbox, FakeBackend, Script
        backend = FakeBackend(script=Script([b"hello"]))
        atexit.register(lambda: print(backend.calls[-1].verb))
        sandbox = DockerSandbox(backend=backend)
        print(dict(sandbox.execute("print('hello')")))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    shown, last = done.stdout.splitlines()
    assert shown == "{'success': True, 'output': 'hello', 'exit_code': 0}"
    assert last == "aclose"


class TestAsync:
    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    def test_the_same_with_await(self, loop: str) -> None:
        async def main() -> None:
            backend = FakeBackend(script=Script([b"hello"]))
            async with AsyncDockerSandbox(backend=backend) as sandbox:
                assert dict(await sandbox.execute("...")) == {
                    "success": True,
                    "output": "hello",
                    "exit_code": 0,
                }
                assert sandbox.config == SandboxConfig()
            with pytest.raises(SandboxClosedError):
                await sandbox.execute("...")
            assert backend.live_sandboxes == 0

        anyio.run(main, backend=loop)

    def test_it_is_opened_first(self) -> None:
        async def main() -> None:
            with pytest.raises(SandboxClosedError, match="async with"):
                await AsyncDockerSandbox().execute("...")
            await AsyncDockerSandbox().aclose()

        anyio.run(main)

    def test_a_cancelled_call_leaves_no_container(self) -> None:
        async def main() -> None:
            backend = FakeBackend(script=Script(hangs=True))
            async with AsyncDockerSandbox(backend=backend) as sandbox:
                with anyio.move_on_after(0.05):
                    await sandbox.execute("while True: pass")
                assert (backend.live_sandboxes, backend.live_processes) == (0, 0)

        anyio.run(main)
