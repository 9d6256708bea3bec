"""Where no cgroup can be made, the host is still not taken down, and it is said."""

from __future__ import annotations

import pytest

from ringfence import (
    BubblewrapConfig,
    Enforcement,
    LimitError,
    Limits,
    SandboxSpec,
    cgroups,
    shell,
)
from ringfence.backends.bubblewrap import BubblewrapBackend

from ..machine import new_mark, processes_with, until

pytestmark = [pytest.mark.anyio, pytest.mark.hostile]


@pytest.fixture(autouse=True)
def no_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "probe", lambda: cgroups.Unavailable("none is writable"))


async def test_capabilities_say_what_is_lost() -> None:
    async with BubblewrapBackend() as backend:
        able = backend.capabilities
        assert able.limits.memory_bytes is Enforcement.PER_PROCESS
        assert able.limits.cpus is Enforcement.NONE
        assert able.limits.pids is Enforcement.ENFORCED
        assert any("none is writable" in note for note in able.notes)
        with pytest.raises(LimitError, match="cpus"):
            await backend.create(SandboxSpec(limits=Limits(cpus=0.5)))


async def test_a_fork_bomb_is_held_by_the_sandbox_s_own_uid() -> None:
    marker = new_mark()
    async with BubblewrapBackend(BubblewrapConfig(pids=40, spares=0)) as backend:
        async with await backend.create() as sandbox:
            bomb = f"b() {{ sleep {marker} & b | b & b; }}; b"
            for timeout in (1.5, 15):
                result = await sandbox.exec(shell(bomb), timeout=timeout)
                assert result.timed_out
                if result.stderr:  # a busy machine may not come to it in the shorter time
                    break
            assert "fork" in result.stderr_text
        await until(lambda: not processes_with(marker), what="the bomb is gone")


async def test_two_sandboxes_do_not_count_one_another_s_processes() -> None:
    script = "for i in $(seq 25); do sleep 5 & done; jobs -p | wc -l"
    async with (
        BubblewrapBackend(BubblewrapConfig(pids=40, spares=0)) as backend,
        await backend.create() as one,
        await backend.create() as two,
    ):
        for sandbox in (one, two):
            result = await sandbox.exec(shell(script))
            assert (result.stdout_text.strip(), result.stderr_text) == ("25", "")


async def test_memory_is_held_for_each_process() -> None:
    async with BubblewrapBackend(BubblewrapConfig(memory_bytes=64 << 20)) as backend:
        program = "try:\n bytearray(200 << 20)\nexcept MemoryError:\n print('refused')"
        result = await backend.execute("/usr/bin/python3", ["-c", program])
    assert result.stdout == b"refused\n"
