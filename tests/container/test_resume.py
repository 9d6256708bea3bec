"""A stream that breaks while its container lives."""

from __future__ import annotations

import anyio
import pytest

from ringfence.errors import SandboxLostError, StreamBrokenError
from ringfence.models import Command, SandboxSpec

from ..machine import processes_with, until_gone
from .between import Between
from .conftest import containers
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

MARK = "86395.25"


async def appears(mark: str) -> None:
    with anyio.fail_after(60):
        while not processes_with(mark):
            await anyio.sleep(0.02)


def test_the_sandbox_and_its_files_live_on(seen: Seen, between: Between) -> None:
    """What ran is killed and told, what was left behind runs on, and the next call works."""

    async def main() -> None:
        async with (
            between.serve(),
            containers(between.path, transport="attach") as backend,
            await backend.create() as box,
        ):
            await box.write_file("kept", "x")
            await box.exec(Command(("sh", "-c", f"sleep {MARK}9 & true")))
            async with anyio.create_task_group() as group:
                group.start_soon(_cut_when_running, between)
                with pytest.raises(StreamBrokenError) as caught:
                    await box.exec("sleep", [MARK], timeout=100)
            assert caught.value.retryable
            assert await box.read_file("kept") == b"x"
            assert not until_gone(processes_with(f"{MARK}\0"))
            assert processes_with(f"{MARK}9")
            for _ in range(3):  # and again
                between.break_all()
                with anyio.fail_after(60):
                    while True:
                        try:
                            assert (await box.exec("echo", ["hi"])).stdout == b"hi\n"
                            break
                        except StreamBrokenError:
                            continue
        await seen.until_nothing_left()

    anyio.run(main)


async def _cut_when_running(between: Between) -> None:
    await appears(MARK)
    between.break_all()


def test_the_token_is_nowhere_to_be_read(seen: Seen) -> None:
    """Not in a label, an argument or a variable, and not in what a program can look into."""

    async def main() -> None:
        async with containers(seen.socket) as backend, await backend.create() as box:
            assert backend._maker is not None
            token = backend._maker.boxes[box.id]._token
            assert len(token) == 32
            told = str(seen.inspect(box.id))
            everything = await box.exec(
                "sh", ["-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /proc/1/mem 2>&1; env"]
            )
            for shape in (token, token.hex().encode(), repr(token).encode()):
                assert shape not in everything.stdout
                assert shape.decode("latin-1") not in told

    anyio.run(main)


def test_without_patience_a_broken_stream_is_the_end(seen: Seen, between: Between) -> None:
    async def main() -> None:
        async with (
            between.serve(),
            containers(between.path, transport="attach", reconnect_timeout=0.0) as backend,
            await backend.create() as box,
            anyio.create_task_group() as group,
        ):
            group.start_soon(_cut_when_running, between)
            with pytest.raises(SandboxLostError):
                await box.exec("sleep", [MARK], timeout=100)
        await seen.until_nothing_left()
        assert not until_gone(processes_with(MARK))

    anyio.run(main)


def test_a_program_that_kills_the_way_in_harms_nobody_else(seen: Seen, between: Between) -> None:
    """`warden connect` is a process of the sandbox's own uid."""

    async def main() -> None:
        async with (
            between.serve(),
            containers(between.path, transport="attach") as backend,
            await backend.create(SandboxSpec()) as box,
        ):
            await box.write_file("kept", "x")
            between.break_all()
            killed = 0
            for _ in range(6):
                try:
                    await box.exec("sh", ["-c", "kill -9 $(pgrep -f 'warden connec[t]')"])
                except StreamBrokenError:
                    killed += 1
            assert killed
            with anyio.fail_after(60):
                while True:
                    try:
                        assert await box.read_file("kept") == b"x"
                        break
                    except StreamBrokenError:
                        continue

    anyio.run(main)
