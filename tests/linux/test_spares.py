"""Spares of the bubblewrap backend, as real sandboxes."""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from ringfence.backends.bubblewrap import BubblewrapBackend

from ..machine import SOON

pytestmark = pytest.mark.anyio


async def until_ready(backend: BubblewrapBackend) -> None:
    with anyio.fail_after(SOON):
        while backend._spares is None or not backend._spares.is_ready:
            await anyio.sleep(0.005)


async def test_probing_an_open_backend_leaves_its_spares_alone() -> None:
    async with BubblewrapBackend() as backend:
        await until_ready(backend)
        assert backend._spares is not None
        before = list(backend._spares._boots)
        assert (await backend.probe()).ok
        assert list(backend._spares._boots) == before


async def test_a_one_shot_whose_spare_has_died_gets_another_sandbox() -> None:
    async with BubblewrapBackend() as backend:
        await until_ready(backend)
        assert backend._spares is not None
        (boot,) = backend._spares._boots
        assert boot.pid is not None
        os.kill(boot.pid, signal.SIGKILL)
        with anyio.fail_after(SOON):
            while not boot.is_dead(1e6):
                await anyio.sleep(0.005)
        assert (await backend.execute("echo", ["hello"])).stdout == b"hello\n"
        await until_ready(backend)
        assert boot not in backend._spares._boots
