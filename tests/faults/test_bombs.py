"""What would take a machine down takes no more than its sandbox's share, and is told truly."""

from __future__ import annotations

import os

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.errors import NoSpaceError
from ringfence.models import Command, Enforcement, ExitReason, Limits, SandboxSpec

from ..machine import SOON, forget_peak, processes_with, status_bytes
from .conftest import Factory
from .test_attacks import PYTHON, is_sound

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(300)]

MIB = 1 << 20


def python(script: str) -> Command:
    return Command((PYTHON, "-c", script), timeout=30)


def held_in_a_group(sandbox: Sandbox) -> bool:
    return sandbox.capabilities.limits.memory_bytes is Enforcement.ENFORCED


FORK_BOMBS = {
    "plain": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "that waits at its limit": "import os, time\n"
    "while True:\n    try: os.fork()\n    except OSError: time.sleep(1)",
    "of threads": "import threading, time\n"
    "while True:\n"
    "    try: threading.Thread(target=time.sleep, args=(99,)).start()\n"
    "    except RuntimeError: time.sleep(0.1)",
    "of sessions": "import os\nwhile True:\n    try:\n        os.fork()\n        os.setsid()\n"
    "    except OSError: pass",
}


@pytest.mark.parametrize("name", FORK_BOMBS)
def test_a_fork_bomb_ends_at_its_deadline(jails: Factory, name: str) -> None:
    async def main() -> None:
        limits = Limits(pids=100, memory_bytes=512 * MIB)
        async with jails() as backend, await backend.create(SandboxSpec(limits=limits)) as sandbox:
            mark = f"# {os.urandom(4).hex()}"
            with anyio.fail_after(120):
                result = await sandbox.exec(python(FORK_BOMBS[name] + mark), timeout=2)
                # Each child takes memory too, and the kernel may end the first of them for it.
                assert result.timed_out or result.exit_code == 137
                if result.timed_out:
                    assert not processes_with(mark)
                await is_sound(sandbox)

    anyio.run(main)


MEMORY_BOMBS = {
    "of one process": "data = []\nwhile True: data.append(b'x' * 1000000)",
    "in files": "file = open('/dev/shm/x', 'wb')\nwhile True: file.write(b'x' * 1000000)",
    "of many": "import os\nfor _ in range(5): os.fork()\n"
    "data = []\nwhile True: data.append(b'x' * 1000000)",
}


@pytest.mark.parametrize("name", ["of one process", "of many"])
def test_a_memory_bomb_is_ended_and_told(jails: Factory, name: str) -> None:
    async def main() -> None:
        limits = Limits(memory_bytes=100 * MIB)
        async with jails() as backend, await backend.create(SandboxSpec(limits=limits)) as sandbox:
            result = await sandbox.exec(python(MEMORY_BOMBS[name]))
            if held_in_a_group(sandbox):
                assert (result.exit_reason, result.exit_code) == (ExitReason.OUT_OF_MEMORY, 137)
            else:
                assert result.exit_code != 0
            await is_sound(sandbox)
            # One that ends in order is not blamed for what another did.
            assert (await sandbox.exec("true")).exit_reason is ExitReason.EXITED

    anyio.run(main)


def test_memory_in_files_is_bounded_by_their_size(jails: Factory) -> None:
    async def main() -> None:
        async with jails() as backend, await backend.create() as sandbox:
            result = await sandbox.exec(python(MEMORY_BOMBS["in files"]))
            assert b"No space left on device" in result.stderr
            await is_sound(sandbox)

    anyio.run(main)


def test_a_million_files(jails: Factory) -> None:
    """Their number ends at the limit, and they can still be listed and removed."""
    script = (
        "import os\n"
        "os.mkdir('d')\n"
        "made = 0\n"
        "try:\n"
        "    for made in range(1000000): os.close(os.open(f'd/{made:0200}', os.O_CREAT))\n"
        "except OSError as error: print(made, error.errno)\n"
    )

    async def main() -> None:
        async with jails() as backend, await backend.create() as sandbox:
            if sandbox.capabilities.limits.workspace_files is not Enforcement.ENFORCED:
                pytest.skip("an ordinary user can't limit the number of files")
            result = await sandbox.exec(python(script), timeout=200)
            made, errno = map(int, result.stdout.split())
            assert 90_000 < made < 100_000
            assert errno == 28
            with pytest.raises(NoSpaceError):
                await sandbox.write_file("one more", b"x")
            forget_peak()
            before = status_bytes("VmRSS")
            listing = await sandbox.list_files("d", max_entries=10)
            assert (listing.total, len(listing.entries)) == (made, 10)
            assert status_bytes("VmHWM") - before < 16 * MIB
            await sandbox.remove("d")
            await is_sound(sandbox)

    anyio.run(main)


OUTPUT = {
    "of one stream": "yes",
    "of both": "yes & yes >&2",
    "of many": "for i in 1 2 3 4 5 6 7 8; do yes & done; wait",
    "of single bytes": "while :; do printf x; printf y >&2; done",
    "without an end of line": "cat /dev/zero",
}


@pytest.mark.parametrize("name", OUTPUT)
def test_endless_output_takes_no_memory(factory: Factory, name: str) -> None:
    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            await sandbox.exec("true")
            forget_peak()
            before = status_bytes("VmRSS")
            for timeout in (1.5, 30):
                result = await sandbox.exec("sh", ["-c", OUTPUT[name]], timeout=timeout)
                assert result.timed_out
                assert len(result.stdout) <= MIB
                if name == "of single bytes" or result.stdout_bytes > 100 * MIB:
                    break  # a busy machine may not come to so much in the shorter time
            else:
                raise AssertionError(f"only {result.stdout_bytes} bytes")
            assert status_bytes("VmHWM") - before < 20 * MIB
            await is_sound(sandbox)

    anyio.run(main)


def test_output_that_nobody_takes_waits_where_it_is(factory: Factory) -> None:
    """Another command is not held up, and the host does not fill up."""

    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            await sandbox.exec("true")
            forget_peak()
            before = status_bytes("VmRSS")
            loud = [await sandbox.start(Command(("sh", "-c", "yes & yes >&2"))) for _ in range(3)]
            await anyio.sleep(0.5)
            await is_sound(sandbox)
            long = ["x" * 100_000] * 18  # more than the way to the warden takes at once
            assert (await sandbox.exec("true", long)).exit_code == 0
            assert status_bytes("VmHWM") - before < 40 * MIB
            for process in loud:
                await process.kill()
                await process.wait()

    anyio.run(main)


def test_a_program_that_ignores_every_signal(factory: Factory) -> None:
    script = (
        "import os, signal, time\n"
        "for number in range(1, 65):\n"
        "    if number not in (9, 19, 32, 33): signal.signal(number, signal.SIG_IGN)\n"
        "os.fork()\n"
        "print('deaf', flush=True)\n"
        "while True: time.sleep(1)\n"
    )

    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            mark = f"# {os.urandom(4).hex()}"
            for timeout in (0.5, 10):
                with anyio.fail_after(timeout + SOON):
                    result = await sandbox.exec(python(script + mark), timeout=timeout)
                assert result.timed_out
                assert not processes_with(mark)
                if result.stdout:  # a busy machine may not have come to it in the shorter time
                    break
            assert result.stdout.startswith(b"deaf")
            await is_sound(sandbox)

    anyio.run(main)
