"""A ping tells a sandbox that serves from one that is dead, stopped or closed."""

from __future__ import annotations

import os
import signal
from functools import partial

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.errors import SandboxClosedError, SandboxLostError
from ringfence.warden.sandbox import WardenSandbox

from ..machine import SOON
from .conftest import Factory
from .test_lost_wardens import warden_of

pytestmark = pytest.mark.timeout(120)


async def ping_for_ever(sandbox: Sandbox) -> None:
    while True:
        await sandbox.ping()


def test_a_live_one_answers_also_beside_its_commands(factory: Factory) -> None:
    """Catches an answer that goes to whoever happens to read."""

    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            found = []

            async def count() -> None:
                found.append(await sandbox.exec("sh", ["-c", "head -c 300000 /dev/zero; echo x"]))

            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(count)
                    for _ in range(20):
                        group.start_soon(partial(sandbox.ping, timeout=SOON))
            assert [len(result.stdout) for result in found] == [300_002] * 5
            await sandbox.ping()

    anyio.run(main)


def test_a_dead_one_is_lost(factory: Factory) -> None:
    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            os.kill(warden_of(sandbox), signal.SIGKILL)
            with pytest.raises(SandboxLostError):
                await ping_for_ever(sandbox)  # the kernel takes a moment for it

    anyio.run(main)


def test_a_stopped_one_is_silent_and_a_late_answer_is_no_fault(factory: Factory) -> None:
    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            os.kill(warden_of(sandbox), signal.SIGSTOP)
            with pytest.raises(SandboxLostError) as caught:
                await sandbox.ping(timeout=0.2)
            assert caught.value.cause == "silent"
            os.kill(warden_of(sandbox), signal.SIGCONT)
            await sandbox.ping(timeout=SOON)
            assert (await sandbox.exec("true")).ok

    anyio.run(main)


def test_a_closed_one_is_closed(factory: Factory) -> None:
    async def main() -> None:
        async with factory() as backend:
            async with await backend.create() as sandbox:
                assert isinstance(sandbox, WardenSandbox)
            with pytest.raises(SandboxClosedError):
                await sandbox.ping()

    anyio.run(main)
