"""A program can't reach what holds it, and can't make it say what is not so."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.models import Command, ExitReason, Limits, Result, SandboxSpec

from ..machine import SOON, new_mark, processes_with, until
from .conftest import Factory

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(300)]

ATTACK = Path(__file__).with_name("attack.py").read_bytes()
PYTHON = "/usr/bin/python3"


async def attack(sandbox: Sandbox, name: str, timeout: float = 60.0) -> Result:
    await sandbox.write_file("attack.py", ATTACK)
    return await sandbox.exec(PYTHON, ["attack.py", name], timeout=timeout)


async def is_sound(sandbox: Sandbox) -> None:
    """Commands, files and kills work, and say what is so."""
    with anyio.fail_after(60):
        result = await sandbox.exec("sh", ["-c", "echo sound; echo err >&2; exit 6"])
        assert (result.stdout, result.stderr, result.exit_code) == (b"sound\n", b"err\n", 6)
        await sandbox.write_file("sound", b"x")
        assert await sandbox.read_file("sound") == b"x"
        result = await sandbox.exec("sleep", ["60"], timeout=0.1)
        assert result.timed_out


def in_a_jail(factory: Factory, name: str, **options: float) -> Result:
    async def main() -> Result:
        async with factory() as backend, await backend.create() as sandbox:
            result = await attack(sandbox, name, **options)
            await is_sound(sandbox)
            return result

    return anyio.run(main)


def test_nothing_of_the_wardens_can_be_reached(jails: Factory) -> None:
    result = in_a_jail(jails, "touch")
    assert result.stderr == b""
    assert json.loads(result.stdout) == []


@pytest.mark.parametrize("name", ["signals", "orphans"])
def test_pid_1_bears_it(jails: Factory, name: str) -> None:
    result = in_a_jail(jails, name)
    assert (result.exit_code, result.stderr) == (0, b"")


def test_a_warden_keeps_its_priority_among_busy_programs(jails: Factory) -> None:
    """The uid is the same, so the kernel would let it be made idle, and so be silenced."""

    async def main() -> None:
        async with jails() as backend, await backend.create() as sandbox:
            result = await attack(sandbox, "slow_down")
            assert result.exit_code == 0
            await is_sound(sandbox)

    anyio.run(main)


def test_frames_are_forged_on_every_descriptor(jails: Factory) -> None:
    """What a program writes is its output, wherever it writes; nobody's end is told by it."""

    async def main() -> None:
        async with jails() as backend, await backend.create() as sandbox:
            ends: list[Result] = []

            async def neighbour() -> None:
                script = "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done; exit 9"
                ends.append(await sandbox.exec("sh", ["-c", script]))

            async with anyio.create_task_group() as group:
                group.start_soon(neighbour)
                await anyio.sleep(0.1)
                for _ in range(3):
                    result = await attack(sandbox, "forge")
                    assert (result.exit_code, result.exit_reason) == (0, ExitReason.EXITED)
                    assert b"forged output" in result.stdout
            assert ends[0].exit_code == 9
            await is_sound(sandbox)

    anyio.run(main)


def test_killing_all_kills_what_is_inside(jails: Factory) -> None:
    async def main() -> None:
        async with jails() as backend, await backend.create() as sandbox:
            neighbour = await sandbox.start(Command(("sleep", "60")))
            result = await attack(sandbox, "kill_all")
            assert result.exit_code in (0, 137)  # an orphan dies, unless it ends before
            with anyio.fail_after(SOON):
                assert (await neighbour.wait()).code == 137
            await is_sound(sandbox)

    anyio.run(main)


def test_stopping_all_stops_no_later_command(jails: Factory) -> None:
    async def main() -> None:
        async with jails() as backend, await backend.create() as sandbox:
            result = await attack(sandbox, "stop_all", 3)
            assert result.timed_out or result.exit_code == 0
            await is_sound(sandbox)

    anyio.run(main)


def test_a_tree_that_stops_its_keeper_ends_when_it_is_told(jails: Factory) -> None:
    async def main() -> None:
        async with jails() as backend, await backend.create() as sandbox:
            mark = new_mark()
            script = f"kill -STOP $PPID; echo {mark} >stopped; exit 3"
            with anyio.fail_after(SOON):
                process = await sandbox.start(Command(("sh", "-c", script)))
                while "stopped" not in {info.name for info in (await sandbox.list_files()).entries}:
                    await anyio.sleep(0.01)
                await until(lambda: not processes_with(mark), what="it has ended by itself")
                await process.kill()
                assert (await process.wait()).code == 3
            await is_sound(sandbox)

    anyio.run(main)


def test_the_slowest_jail_answers(jails: Factory) -> None:
    """Where commands leave a warden a twentieth of a processor, kills are still shown."""

    async def main() -> None:
        spec = SandboxSpec(limits=Limits(cpus=0.05, pids=40))
        async with jails() as backend, await backend.create(spec) as sandbox:
            script = "for i in 1 2 3 4 5 6 7 8 9; do while :; do :; done & done; wait"
            result = await sandbox.exec("sh", ["-c", script], timeout=1)
            assert result.timed_out
            with anyio.fail_after(90):
                assert (await sandbox.exec("true", timeout=60)).exit_code == 0

    anyio.run(main)
