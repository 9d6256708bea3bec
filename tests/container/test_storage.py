"""What workspaces are made of, and that nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from ringfence import inventory
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.errors import ConfigError, LimitError, NoSpaceError
from ringfence.models import Enforcement, Limits, Mount, SandboxSpec

from .conftest import MINIMAL, containers
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

SIZED = SandboxSpec(Limits(workspace_bytes=8 << 20, workspace_files=200))


def loops() -> list[str]:
    place = f"{inventory.state_dir()}/loops"
    return os.listdir(place) if os.path.isdir(place) else []


@pytest.mark.parametrize("storage", ["tmpfs", "loop"])
def test_a_size_and_a_number_of_files_hold(seen: Seen, storage: str) -> None:
    async def main() -> None:
        async with containers(seen.socket, workspace_storage=storage) as backend:
            held = backend.capabilities.limits
            assert held.workspace_bytes is held.workspace_files is Enforcement.ENFORCED
            async with await backend.create(SIZED) as box:
                with pytest.raises(NoSpaceError):
                    await box.write_file("big", bytes(9 << 20))
                await box.remove("big")
                script = "i=0; while [ $i -lt 300 ] && touch f$i; do i=$((i+1)); done; echo $i"
                made = await box.exec("sh", ["-c", script])
                assert 150 < int(made.stdout) <= 200
                await box.exec("sh", ["-c", "rm -f f*"])
                await box.write_file("program", "#!/bin/sh\necho ran\n", mode=0o755)
                assert (await box.exec("./program")).stdout == b"ran\n"
        await seen.until_nothing_left()
        assert loops() == []

    anyio.run(main)


def test_a_file_system_of_its_own_does_not_count_as_memory(seen: Seen) -> None:
    """48 MiB are written where there are 32 MiB of memory."""

    async def main() -> None:
        limits = Limits(memory_bytes=32 << 20, workspace_bytes=64 << 20)
        async with (
            containers(seen.socket, workspace_storage="loop") as backend,
            await backend.create(SandboxSpec(limits)) as box,
        ):
            await box.write_file("big", bytes(48 << 20))
            assert (await box.stat("big")).size == 48 << 20
        with pytest.raises(LimitError, match="does not fit"):
            async with containers(seen.socket) as backend:
                await backend.create(SandboxSpec(limits))

    anyio.run(main)


def test_a_volume_belongs_to_the_sandbox_and_has_no_limit(seen: Seen) -> None:
    async def main() -> None:
        settings = {"workspace_storage": "volume", "user": "1234:2345"}
        async with containers(seen.socket, **settings) as backend:
            assert backend.capabilities.limits.workspace_bytes is Enforcement.NONE
            with pytest.raises(LimitError, match="can't enforce"):
                await backend.create(SIZED)
            async with await backend.create() as box:
                await box.write_file("f", "x")
                assert (await box.exec("stat", ["-c", "%u:%g", ".", "f"])).stdout == (
                    b"1234:2345\n1234:2345\n"
                )
                assert seen.left().volumes == (f"{box.id}-workspace",)
        await seen.until_nothing_left()

    anyio.run(main)


@pytest.mark.parametrize("storage", ["volume", "loop"])
def test_what_a_dead_owner_left_is_removed(seen: Seen, storage: str) -> None:
    """The owner is killed with a sandbox alive, and whoever opens a backend next cleans up."""
    program = f"""
import asyncio, os, signal
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
async def main():
    config = ContainerConfig(image={MINIMAL!r}, socket_path={seen.socket!r},
                             workspace_storage={storage!r})
    async with ContainerBackend(config) as backend:
        await (await backend.create()).write_file("f", "x")
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], timeout=50, check=False)

    async def main() -> None:
        backend = ContainerBackend(ContainerConfig(socket_path=Path(seen.socket)))
        await backend.reap()
        await seen.until_nothing_left()
        assert loops() == []

    anyio.run(main)


def test_host_paths_are_shown_read_only_and_sockets_never(seen: Seen, own_places: Path) -> None:
    shown = own_places / "shown"
    shown.mkdir(exist_ok=True)
    (shown / "f").write_text("from the host")

    async def main() -> None:
        mounts = (Mount(str(shown), "/shown"),)
        async with containers(seen.socket) as backend:
            async with await backend.create(SandboxSpec(mounts=mounts)) as box:
                assert (await box.exec("cat", ["/shown/f"])).stdout == b"from the host"
                assert not (await box.exec("touch", ["/shown/g"])).ok
            with pytest.raises(ConfigError, match="is a socket"):
                await backend.create(SandboxSpec(mounts=(Mount(seen.socket),)))
            with pytest.raises(ConfigError, match="No such file"):
                await backend.create(SandboxSpec(mounts=(Mount("/no/such/path"),)))
        await seen.until_nothing_left()

    anyio.run(main)
