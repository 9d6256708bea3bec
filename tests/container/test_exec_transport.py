"""Commands that are each an exec of a real engine."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable

import anyio
import pytest

from ringfence.backend import Backend, Sandbox
from ringfence.backends.docker import ContainerBackend
from ringfence.errors import BackendUnreachableError, LimitError, SandboxLostError
from ringfence.models import Command, ExitReason, Limits, SandboxSpec

from ..machine import held, nothing_left, processes_with, until, until_gone
from .between import Between
from .conftest import MINIMAL, containers
from .own_engine import OwnEngine
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

MARK = "86396.75"
SLEEP = Command(("sleep", MARK), timeout=100)
WARDEN = "/run/ringfence/warden"

KILL_WHAT_KEEPS_IT = f"""
    (setsid sleep {MARK} &) ; setsid sleep {MARK} &
    read -r pid name state parent rest </proc/$PPID/stat
    kill -KILL $parent; sleep {MARK}
"""


def by_exec(seen: Seen, image: str = MINIMAL) -> ContainerBackend:
    return containers(seen.socket, image, transport="exec")


def inside(seen: Seen, sandbox: Sandbox) -> list[str]:
    """Return the command lines of what runs in a sandbox, as the engine lists them."""
    found = seen.call("GET", f"/containers/{sandbox.id}/top", ps_args="-o pid,args")
    return [line[-1] for line in found["Processes"]]


def run(main: Callable[[], Awaitable[None]]) -> None:
    anyio.run(main)


def test_pid_1_is_an_init_and_nothing_else_stays(seen: Seen) -> None:
    """Catches a helper that stays, and zombies of what left its parents."""

    async def main() -> None:
        async with by_exec(seen) as backend, await backend.create() as sandbox:
            for number in range(3):
                result = await sandbox.exec("sh", ["-c", f"(sleep 0.01 &) ; exit {number}"])
                assert result.exit_code == number
            await until(lambda: len(inside(seen, sandbox)) == 1, what="only the init is left")
            (init,) = inside(seen, sandbox)
            assert init.startswith(f"{WARDEN} init --max-age-ms ")
            assert len(seen.inspect(sandbox.id)["HostConfig"]["CapDrop"]) == 1

    run(main)


def test_a_program_that_kills_what_keeps_it_ends_as_killed(seen: Seen) -> None:
    """Catches a sandbox that is lost for it, and a tree that is set free by it."""

    async def main() -> None:
        async with by_exec(seen) as backend, await backend.create() as sandbox:
            await sandbox.write_file("kept", "x")
            for script in (KILL_WHAT_KEEPS_IT, f"sleep {MARK} & kill -KILL -1; sleep {MARK}"):
                result = await sandbox.exec("sh", ["-c", script], timeout=30)
                assert (result.exit_code, result.exit_reason) == (137, ExitReason.SIGNALED)
                assert not until_gone(processes_with(MARK), seconds=5)
                await sandbox.ping(timeout=10)
            assert await sandbox.read_file("kept") == b"x"

    run(main)


def test_a_left_over_lives_and_is_drained_and_its_keeper_ends_with_it(seen: Seen) -> None:
    script = f"(yes | head -c 400000; touch done; exec sleep {MARK}) & echo $! >&2; exit 5"

    async def main() -> None:
        async with by_exec(seen) as backend, await backend.create() as sandbox:
            result = await sandbox.exec("sh", ["-c", script])
            assert result.exit_code == 5
            with anyio.fail_after(60):
                while "done" not in [info.name for info in (await sandbox.list_files()).entries]:
                    await anyio.sleep(0.05)
            await until(lambda: bool(processes_with(f"sleep\0{MARK}")), seconds=60)
            await sandbox.exec("sh", ["-c", f"kill {result.stderr_text}"])
            await until(lambda: len(inside(seen, sandbox)) == 1, what="only the init is left")

    run(main)


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (lambda seen, name: seen.do(name, "kill"), "killed"),
        (lambda seen, name: seen.remove(name), "killed"),
        (lambda seen, name: seen.do(name, "pause"), "paused"),
    ],
    ids=["killed", "removed", "paused"],
)
def test_a_container_that_is_ended_from_outside(
    seen: Seen, end: Callable[[Seen, str], None], cause: str
) -> None:
    async def main() -> None:
        async with by_exec(seen) as backend:
            sandbox = await backend.create()
            process = await sandbox.start(SLEEP)
            await until(lambda: bool(processes_with(MARK)), seconds=60)
            await anyio.to_thread.run_sync(end, seen, sandbox.id)
            for call in (process.wait, lambda: sandbox.exec("true"), sandbox.ping):
                with pytest.raises(SandboxLostError) as caught:
                    await call()
                assert caught.value.cause == cause
        assert not until_gone(processes_with(MARK))

    run(main)


def test_a_sandbox_at_its_maximum_age_says_so(seen: Seen) -> None:
    async def main() -> None:
        async with by_exec(seen) as backend:
            sandbox = await backend.create(SandboxSpec(limits=Limits(max_age=3.0)))
            with pytest.raises(SandboxLostError) as caught:
                await sandbox.exec(SLEEP)
            assert caught.value.cause == "maximum age"
        assert not until_gone(processes_with(MARK))

    run(main)


def test_a_sandbox_without_room_for_one_more_process(seen: Seen) -> None:
    """The runtime's own words do not reach the program's output, and the sandbox lives on."""
    fill = f"i=0; while [ $i -lt 60 ]; do sleep {MARK} & i=$((i+1)); done 2>/dev/null"

    async def main() -> None:
        spec = SandboxSpec(limits=Limits(pids=24))
        async with by_exec(seen) as backend, await backend.create(spec) as sandbox:
            await sandbox.exec("sh", ["-c", fill])
            with pytest.raises(LimitError) as caught:
                await sandbox.exec("echo", ["ok"])
            assert caught.value.limit == "pids"
            await sandbox.ping(timeout=10)
        assert not until_gone(processes_with(MARK))

    run(main)


def test_an_image_with_nothing_in_it(seen: Seen) -> None:
    """No shell, no libc, no coreutils: the only program there is the warden itself."""

    async def main() -> None:
        empty = by_exec(seen, "ringfence-test:scratch")
        async with empty as backend, await backend.create() as sandbox:
            await sandbox.write_file("a/b", b"x" * 200_000)
            assert await sandbox.read_file("a/b", offset=199_999) == b"x"
            assert (await sandbox.exec("sh")).exit_code == 127
            result = await sandbox.exec(WARDEN, ["nothing"])
            assert (result.exit_code, result.stdout) == (2, b"")
            assert result.stderr.startswith(b"warden: usage")

    run(main)


def test_a_stream_that_breaks_loses_the_sandbox(seen: Seen, between: Between) -> None:
    """Nobody can tell how the command ended, so it is not told; and nothing is left of it."""

    async def main() -> None:
        async with between.serve(), containers(between.path, transport="exec") as backend:
            sandbox = await backend.create()
            process = await sandbox.start(SLEEP)
            await until(lambda: bool(processes_with(MARK)), seconds=60)
            between.break_all()
            with pytest.raises(SandboxLostError):
                await process.wait()
            with pytest.raises(SandboxLostError):
                await sandbox.exec("true")
        assert not until_gone(processes_with(MARK))

    run(main)


def test_an_engine_that_is_restarted_loses_the_sandbox_and_serves_again(
    own_engine: OwnEngine,
) -> None:
    async def main() -> None:
        before = held()
        async with containers(own_engine.socket, transport="exec") as backend:
            sandbox = await backend.create()
            process = await sandbox.start(SLEEP)
            await until(lambda: bool(processes_with(MARK)), seconds=60)
            await anyio.to_thread.run_sync(own_engine.stop)
            with pytest.raises(SandboxLostError):
                await process.wait()
            with pytest.raises(SandboxLostError):
                await sandbox.exec("true")
            with pytest.raises(BackendUnreachableError):
                await backend.create()
            await anyio.to_thread.run_sync(own_engine.start)
            assert (await backend.execute("echo", ["again"])).stdout == b"again\n"
        assert not until_gone(processes_with(MARK))
        Seen(own_engine.socket).nothing_left()
        await nothing_left(before)

    run(main)


DYING = """
import anyio, os
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.models import Command

async def main():
    config = ContainerConfig(image={image!r}, socket_path={socket!r}, transport="exec")
    async with ContainerBackend(config) as backend:
        sandbox = await backend.create()
        await sandbox.start(Command(("sleep", {mark!r})))
        print(sandbox.id, flush=True)
        os.kill(os.getpid(), 9)

anyio.run(main)
"""


def test_what_a_dead_host_process_left_is_reaped(seen: Seen) -> None:
    """Its commands end with their streams; the container waits for the next one's sweep."""
    code = DYING.format(image=MINIMAL, socket=seen.socket, mark=MARK)
    died = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    assert died.returncode == -9
    name = died.stdout.decode().strip()
    assert seen.inspect(name) is not None
    assert not until_gone(processes_with(MARK))

    async def main() -> None:
        async with by_exec(seen) as backend:
            assert (await backend.execute("echo", ["ok"])).stdout == b"ok\n"
        assert seen.inspect(name) is None

    run(main)


async def _all_of_it(backend: Backend) -> None:
    async with await backend.create() as sandbox:
        await sandbox.write_file("f", b"x" * 100_000)
        await sandbox.exec("sh", ["-c", f"sleep {MARK} & cat f; sleep {MARK}"], timeout=20)


@pytest.mark.slow
def test_twenty_cancellations_leave_nothing(seen: Seen) -> None:
    rng = random.Random(os.environ.get("RINGFENCE_TEST_SEED", "7"))

    async def main() -> None:
        async with by_exec(seen) as backend:
            await backend.execute("true")
            await seen.until_nothing_left()
            before = held()
            for _ in range(20):
                with anyio.move_on_after(rng.uniform(0, 1.5)):
                    await _all_of_it(backend)
                await seen.until_nothing_left()
                assert not until_gone(processes_with(MARK))
                await nothing_left(before)
            assert (await backend.execute("echo", ["ok"])).stdout == b"ok\n"

    run(main)
