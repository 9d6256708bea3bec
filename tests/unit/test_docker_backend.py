"""The container backend without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("aiodocker")

from ringfence.backends._docker_image import _line
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUnreachableError, ConfigError, SandboxClosedError
from ringfence.models import Limits, Probe


def test_on_trio_it_says_what_it_needs() -> None:
    async def main() -> Probe:
        return await ContainerBackend().probe()

    probe = anyio.run(main, backend="trio")
    assert not probe.ok
    assert "asyncio" in probe.reason


def test_without_an_engine_it_can_t_be_opened_nor_probed(tmp_path: Path) -> None:
    async def main() -> None:
        backend = ContainerBackend(ContainerConfig(socket_path=tmp_path / "none"))
        probe = await backend.probe()
        assert not probe.ok
        assert "can't be reached" in probe.reason
        with pytest.raises(BackendUnreachableError) as caught:
            async with backend:
                raise AssertionError
        assert caught.value.retryable
        with pytest.raises(SandboxClosedError):
            await backend.create()
        await backend.aclose()

    anyio.run(main)


def test_a_profile_that_is_none_is_told_before_the_engine_is_asked(tmp_path: Path) -> None:
    async def main() -> None:
        config = ContainerConfig(socket_path=tmp_path / "none", seccomp_profile="{}")
        with pytest.raises(ConfigError, match="defaultAction"):
            async with ContainerBackend(config):
                raise AssertionError

    anyio.run(main)


def test_its_defaults_are_those_of_its_config_over_the_hardened_ones() -> None:
    assert ContainerBackend().default_limits == Limits(
        memory_bytes=256 << 20,
        cpus=0.5,
        pids=128,
        open_files=1024,
        workspace_bytes=128 << 20,
        workspace_files=50_000,
        tmp_bytes=64 << 20,
    )
    assert ContainerBackend(ContainerConfig(pids=99)).default_limits.pids == 99


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ({"id": "ab12", "status": "Downloading", "progress": "[=>  ] 1MB/9MB"},
         "ab12 Downloading [=>  ] 1MB/9MB"),
        ({"status": "Pulling from library/alpine"}, "Pulling from library/alpine"),
        ({"error": "denied", "status": "x"}, "denied"),
    ],
)  # fmt: skip
def test_a_step_of_fetching_an_image_is_a_line(step: dict[str, Any], line: str) -> None:
    assert _line(step) == line
