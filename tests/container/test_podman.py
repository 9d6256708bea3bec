"""Containers of a Podman, which speaks the same API in its own way.

RINGFENCE_TEST_CONFORMANCE=whole tries every check of the suite on it, and not a chosen part.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ringfence import inventory
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUnavailableError, SandboxLostError
from ringfence.models import Enforcement, Limits, SandboxSpec
from ringfence.testing import Check, Conformance
from scripts.services.podman import Podman
from scripts.services.steps import ServiceError

from .conftest import PYTHON, containers
from .seen import Seen
from .test_containers import begin_at_once, own_volume
from .test_refusals import leaves_a_name_that_somebody_else_has

pytestmark = [pytest.mark.container, pytest.mark.timeout(180)]

MIB = 1 << 20
SOCKET = Podman().engine.address.removeprefix("unix://")
ON_PODMAN = Conformance(
    "container",
    lambda: ContainerBackend(ContainerConfig(image=PYTHON, socket_path=Path(SOCKET))),
    python="/usr/bin/python3",
    patience=4,  # it makes several at once one after the other
)
CHOSEN = (
    "content_is_kept_exactly",
    "a_deadline_ends_the_command_and_its_children",
    "cancelling_a_one_shot_leaves_nothing",
    "two_sandboxes_share_nothing",
    "a_destroyed_sandbox_is_lost_for_good",
)
WHOLE = os.environ.get("RINGFENCE_TEST_CONFORMANCE") == "whole"


@pytest.mark.parametrize("check", ON_PODMAN.params(() if WHOLE else CHOSEN, hostile_mark="hostile"))
def test_the_conformance_suite(check: Check) -> None:
    ON_PODMAN.verify(check)


@pytest.fixture
def podman(own_places: Path) -> Iterator[Seen]:
    """It as it looks from outside; fails if anything of this run is left in it."""
    found = Seen(SOCKET)
    yield found
    found.nothing_left()


def test_its_limits_are_those_that_it_says(podman: Seen) -> None:
    """The workspace has its size, its inode limit and its owner, and nothing else is unsized."""
    limits = Limits(workspace_bytes=8 * MIB, workspace_files=500, tmp_bytes=4 * MIB)

    async def main() -> None:
        async with (
            containers(podman.socket) as backend,
            await backend.create(SandboxSpec(limits=limits)) as box,
        ):
            told = box.capabilities.limits
            assert {told.workspace_bytes, told.workspace_files} == {Enforcement.ENFORCED}
            assert {told.memory_bytes, told.cpus, told.pids} == {Enforcement.ENFORCED}
            sizes = await box.exec("sh", ["-c", "df -k /workspace /tmp /run /var/tmp | tail -n 4"])
            assert [line.split()[1] for line in sizes.stdout_text.splitlines()] == [
                *("8192", "4096", "4096", "4096")
            ]
            inodes = await box.exec("stat", ["-f", "-c", "%c", "/workspace"])
            assert inodes.stdout == b"500\n"
            owner = await box.exec("stat", ["-c", "%u:%g %a", "/workspace"])
            assert owner.stdout == b"65534:65534 755\n"
            with open(f"/proc/{podman.inspect(box.id)['State']['Pid']}/status") as file:
                status = dict(line.split(":", 1) for line in file)
            assert int(status["CapEff"], 16) == 0
            assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")

    anyio.run(main)


@pytest.fixture
def volume(podman: Seen, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from own_volume(podman, monkeypatch)


def test_four_workers_that_begin_at_once_fill_one_volume(podman: Seen, volume: str) -> None:
    """It answers with a fault of its own to a name that is taken, and not with a conflict."""
    begin_at_once(podman, volume)


def test_a_name_that_somebody_else_has(podman: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_a_name_that_somebody_else_has(podman, monkeypatch)


def kill(podman: Seen, name: str) -> None:
    """Kill a container; it answers once that has ended, when its owner may have removed it."""
    try:
        podman.do(name, "kill")
    except ServiceError as error:
        if "no such container" not in str(error):
            raise


@pytest.mark.parametrize("how", ["killed", "removed"])
def test_what_happens_to_a_container_is_told(podman: Seen, how: str) -> None:
    async def main() -> None:
        async with containers(podman.socket) as backend, await backend.create() as box:
            if how == "killed":
                await anyio.to_thread.run_sync(kill, podman, box.id)
            else:
                await anyio.to_thread.run_sync(podman.remove, box.id)
            with pytest.raises(SandboxLostError) as caught:
                await box.exec("sleep", ["60"])
            assert caught.value.cause in ("killed", "removed")

    anyio.run(main)


def test_what_a_dead_owner_left_is_reaped(podman: Seen) -> None:
    """Its container and its volume, which bears no mark of Podman's own."""

    async def main() -> None:
        async with containers(podman.socket) as backend:
            sandbox = await backend.create()
            inventory.owner().discard(sandbox.id)  # as if nobody had noted it
            assert podman.left().volumes == (f"{sandbox.id}-workspace",)
            assert await backend.reap() == 1
            assert podman.left().volumes == ()
            await sandbox.aclose()

    anyio.run(main)


def test_what_it_does_not_have_is_refused(podman: Seen) -> None:
    """It lists runtimes that are not installed, and runs what asks for one on its default."""

    async def main() -> None:
        for runtime in ("runsc", "kata", "nothing"):
            backend = containers(podman.socket, runtime=runtime)
            with pytest.raises(BackendUnavailableError, match=f"no runtime '{runtime}'"):
                await backend.__aenter__()

    anyio.run(main)
