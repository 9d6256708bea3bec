"""Limits that are reached in containers: memory, disk, inodes, processes."""

from __future__ import annotations

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.errors import NoSpaceError
from ringfence.models import Command, ExitReason, Limits, SandboxSpec

from .conftest import PYTHON, containers
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.hostile, pytest.mark.timeout(240)]

MIB = 1 << 20
HUNGRY = "x = bytearray(400 << 20); print(len(x))"


def python(code: str, **fields: object) -> Command:
    return Command(("/usr/bin/python3", "-I", "-c", code), **fields)  # type: ignore[arg-type]


async def is_sound(sandbox: Sandbox) -> None:
    result = await sandbox.exec("sh", ["-c", "echo good; exit 5"])
    assert (result.stdout, result.exit_code) == (b"good\n", 5)


def test_who_is_killed_by_the_memory_limit(seen: Seen) -> None:
    """Out of memory is what the limit did to the command itself, and nothing else."""

    async def main() -> None:
        spec = SandboxSpec(limits=Limits(memory_bytes=64 * MIB, workspace_bytes=8 * MIB))
        async with containers(seen.socket, PYTHON) as backend, await backend.create(spec) as box:
            result = await box.exec(python(HUNGRY))
            assert (result.exit_code, result.exit_reason) == (137, ExitReason.OUT_OF_MEMORY)
            assert result.out_of_memory
            await is_sound(box)

            script = f"/usr/bin/python3 -I -c '{HUNGRY}'; echo after $?"
            result = await box.exec("sh", ["-c", script])
            assert (result.exit_code, result.exit_reason) == (0, ExitReason.EXITED)
            assert result.stdout == b"after 137\n"

            result = await box.exec("sh", ["-c", f"/usr/bin/python3 -I -c '{HUNGRY}'; exit $?"])
            assert (result.exit_code, result.exit_reason) == (137, ExitReason.EXITED)

            result = await box.exec("sh", ["-c", "kill -9 $$"])
            assert (result.exit_code, result.exit_reason) == (137, ExitReason.SIGNALED)
            assert not result.out_of_memory
            await is_sound(box)
            assert seen.inspect(box.id)["State"]["Running"]

    anyio.run(main)


FILL = "dd if=/dev/zero of={place}/full bs=1M count=4096 2>&1 | grep -c 'No space left'"
FILES = "i=0; while true > {place}/n$i; do i=$((i+1)); done 2>/dev/null; echo $i; rm -f {place}/n*"
MANY = 2000
SMALL = SandboxSpec(
    limits=Limits(workspace_bytes=32 * MIB, tmp_bytes=16 * MIB, workspace_files=MANY)
)


@pytest.mark.parametrize("place", ["/workspace", "/tmp", "/dev/shm"])
def test_a_full_disk_is_the_sandbox_s_own(seen: Seen, place: str) -> None:
    """Writing ends at the cap, costs no disk of the machine's, and all goes on after it."""
    cap = 32 * MIB if place == "/workspace" else 16 * MIB

    async def main() -> None:
        async with containers(seen.socket) as backend, await backend.create(SMALL) as box:
            result = await box.exec("sh", ["-c", FILL.format(place=place)])
            assert result.stdout == b"1\n", result
            size = await box.exec("stat", ["-c", "%s", f"{place}/full"])
            assert cap - MIB <= int(size.stdout) <= cap
            kind = await box.exec("stat", ["-f", "-c", "%T", place])
            assert kind.stdout == b"tmpfs\n"  # so that no disk of the machine's is filled
            await is_sound(box)
            if place == "/workspace":
                with pytest.raises(NoSpaceError):
                    await box.write_file("more", b"x" * MIB)
            await box.exec("rm", [f"{place}/full"])
            await box.write_file("again", b"x" * MIB)
            await is_sound(box)

    anyio.run(main)


@pytest.mark.parametrize("place", ["/workspace", "/tmp"])
def test_inodes_are_limited(seen: Seen, place: str) -> None:
    async def main() -> None:
        async with containers(seen.socket) as backend, await backend.create(SMALL) as box:
            result = await box.exec("sh", ["-c", FILES.format(place=place)])
            assert MANY - 20 <= int(result.stdout) < MANY
            await is_sound(box)

    anyio.run(main)


def test_containers_do_not_take_processes_from_one_another(seen: Seen) -> None:
    """All have the same uid: a limit that counts its processes would couple them."""
    script = "i=0; while [ $i -lt 50 ]; do sleep 60 & i=$((i+1)); done; echo all"

    async def main() -> None:
        async with containers(seen.socket) as backend:
            boxes = [await backend.create() for _ in range(4)]
            async with anyio.create_task_group() as group:

                async def fill(box: Sandbox) -> None:
                    result = await box.exec("sh", ["-c", script])
                    assert (result.stdout, result.stderr) == (b"all\n", b"")

                for box in boxes:
                    group.start_soon(fill, box)
            for box in boxes:
                count = await box.exec("sh", ["-c", "ps | grep -c '[s]leep 60'"])
                assert count.stdout == b"50\n"
                await box.aclose()

    anyio.run(main)
