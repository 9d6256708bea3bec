"""A command that ends what keeps it takes nobody else along, and its own end is still told."""

from __future__ import annotations

import anyio
import pytest

from ringfence import ExitReason, shell
from ringfence.backends.bubblewrap import BubblewrapBackend

from ..machine import SOON

pytestmark = [pytest.mark.anyio, pytest.mark.hostile, pytest.mark.timeout(300)]

TRIALS = 100


@pytest.mark.parametrize(
    "attack",
    [
        "kill -KILL $PPID",
        "kill -STOP -1; kill -KILL -1; echo survived",
        "kill -KILL -1; exit 7",
        "(setsid sleep 100 &); kill -KILL $PPID; exit 7",
    ],
)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_command_that_kills_its_keeper_has_an_end(attack: str) -> None:
    async with BubblewrapBackend() as backend, await backend.create() as sandbox:
        await sandbox.write_file("kept", b"x")
        for _ in range(TRIALS):
            result = await sandbox.exec(shell(attack), timeout=30)
            # It ended by itself, or as what had lost its keeper.
            own = result.exit_reason is ExitReason.EXITED and result.exit_code in (0, 7)
            stray = (result.exit_code, result.exit_reason) == (137, ExitReason.SIGNALED)
            assert own or stray, result
        assert await sandbox.read_file("kept") == b"x"
        with anyio.fail_after(SOON):
            # PID 1, two that wait, a keeper, the shell and ls or wc
            while int((await sandbox.exec(shell("ls -d /proc/[0-9]* | wc -l"))).stdout) > 6:
                await anyio.sleep(0.05)
