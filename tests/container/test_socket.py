"""Streams past the engine: what goes by them, what of them can be seen inside, and what stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from ringfence import inventory
from ringfence.backends import _docker_socket
from ringfence.errors import SandboxLostError

from ..machine import processes_with, until_gone
from .between import Between
from .conftest import MINIMAL, containers
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

MARK = "86391.75"


def sockets() -> list[str]:
    """Return the directories with sockets of ours that there are."""
    return [name for name in os.listdir(inventory.state_dir()) if name.startswith("ringfence-rf-")]


def test_nothing_of_a_command_passes_the_engine(seen: Seen, between: Between) -> None:
    """With all connections to the engine cut or silent, a sandbox goes on as if nothing was."""

    async def main() -> None:
        async with (
            between.serve(),
            containers(between.path) as backend,
            await backend.create() as box,
        ):
            assert not sockets()
            between.break_all()
            assert (await box.exec("echo", ["hi"])).stdout == b"hi\n"
            between.held_back = True
            try:
                await box.write_file("kept", b"x" * 5_000_000)
                assert await box.read_file("kept") == b"x" * 5_000_000
            finally:
                between.held_back = False
        await seen.until_nothing_left()

    anyio.run(main)


def test_a_program_inside_finds_nobody_at_the_socket(seen: Seen) -> None:
    script = (
        "import socket\n"
        "caller = socket.socket(socket.AF_UNIX)\n"
        "try:\n"
        "    caller.connect('/run/ringfence.socket')\n"
        "except OSError as error:\n"
        "    print(type(error).__name__)\n"
    )

    async def main() -> None:
        async with (
            containers(seen.socket, "ringfence-test:python") as backend,
            await backend.create() as box,
        ):
            ran = await box.exec("python3", ["-c", script])
            assert (ran.stdout, ran.stderr) == (b"ConnectionRefusedError\n", b"")
            shown = seen.inspect(box.id)["HostConfig"]["Mounts"]
            assert next(m for m in shown if m["Target"] == "/run/ringfence.socket")["ReadOnly"]

    anyio.run(main)


def test_where_it_can_not_be_reached_the_engines_streams_are_taken(
    seen: Seen, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a policy that keeps containers from sockets of the machine's."""
    monkeypatch.setattr(_docker_socket, "_ALL", 0)

    async def main() -> None:
        async with (
            between.serve(),
            containers(between.path) as backend,
            await backend.create() as box,
        ):
            assert not sockets()
            assert (await box.exec("echo", ["hi"])).stdout == b"hi\n"
            between.held_back = True
            with anyio.move_on_after(0.5) as scope:
                await box.exec("echo", ["hi"])
            between.held_back = False
            assert scope.cancelled_caught  # so its commands do pass the engine

    anyio.run(main)


def test_the_death_of_its_container_is_told_with_its_cause(seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket) as backend:
            box = await backend.create()
            seen.do(box.id, "kill")
            with pytest.raises(SandboxLostError) as caught:
                await box.exec("sleep", [MARK], timeout=100)
            assert caught.value.cause == "killed"
            await box.aclose()
        assert not until_gone(processes_with(MARK))

    anyio.run(main)


LEAVES_ONE_BEHIND = """
import sys
import anyio
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig

async def main(socket, image):
    async with ContainerBackend(ContainerConfig(image=image, socket_path=socket)) as backend:
        print("open", flush=True)
        await backend.create()

anyio.run(main, *sys.argv[1:])
"""


def test_a_process_that_dies_before_its_warden_has_called(
    seen: Seen, between: Between, own_places: Path
) -> None:
    """What it leaves of its socket is reaped with the rest."""
    between.spoil("start", "unheard")

    async def main() -> None:
        async with between.serve():
            command = [sys.executable, "-c", LEAVES_ONE_BEHIND, between.path, MINIMAL]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                with anyio.fail_after(60):
                    while "start" not in between.asked:
                        await anyio.sleep(0.02)
                assert sockets()
                process.send_signal(signal.SIGKILL)
                await anyio.to_thread.run_sync(process.wait)
        async with containers(seen.socket) as backend:
            await backend.reap()
        assert not sockets()

    anyio.run(main)
