"""What an engine's words mean for sandboxes, and what is refused before it hears of it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("aiodocker")

from aiodocker.exceptions import DockerError

from ringfence.backends._docker_checks import checked_limits, checked_mounts
from ringfence.backends._docker_endpoint import Endpoint
from ringfence.backends._docker_engine import Engine, RefusedError
from ringfence.backends._docker_facts import Facts, engine_time, learn
from ringfence.backends._docker_loop import mke2fs_argv
from ringfence.backends._docker_refusals import creation_error
from ringfence.backends._docker_storage import memory_volume
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUnavailableError, ConfigError, CreateError, LimitError
from ringfence.models import Enforcement, Isolation, Limits, Mount

MIB = 1 << 20
INFO: dict[str, Any] = {
    "OSType": "linux",
    "Architecture": "x86_64",
    "MemoryLimit": True,
    "CpuCfsQuota": True,
    "PidsLimit": True,
    "CgroupVersion": "2",
    "SecurityOptions": ["name=seccomp,profile=default", "name=rootless"],
    "Runtimes": {"runc": {}, "runsc": {}},
}
VERSION = {"Version": "28.0", "Components": [{"Name": "Engine"}]}


def facts(**changes: Any) -> Facts:
    return learn({**INFO, **changes}, VERSION, api="v1.44", local=True)


def test_what_an_engine_says_of_itself() -> None:
    found = facts()
    assert (found.seccomp, found.rootless, found.tmpfs) == (True, True, True)
    assert found.runtimes == ("runc", "runsc")
    assert found.details["engine"] == "Docker 28.0, API 1.44"
    assert (found.unsized, found.nproc) == ((), None)


@pytest.mark.parametrize(("security", "nproc"), [(["name=seccomp"], 7), (["name=rootless"], None)])
def test_what_podman_does_in_a_way_of_its_own(security: list[str], nproc: int | None) -> None:
    """It is told RLIMIT_NPROC, which it raises else; without root it does not raise it. A runtime
    that is asked for it does not look at."""
    info = {**INFO, "SecurityOptions": security, "DefaultRuntime": "crun"}
    version = {"Components": [{"Name": "Podman Engine"}]}
    podman = learn(info, version, api="v1.41", local=True, most_processes=7)
    assert (podman.tmpfs, podman.unsized) == (False, ("/run", "/var/tmp"))
    assert podman.nproc == nproc
    assert podman.runtimes == ("crun",)
    assert facts().nproc is None


def test_a_workspace_in_memory_can_be_a_volume() -> None:
    """Whoever reads `size` as a quota of its own is given pages."""
    limits = Limits(workspace_bytes=8 * MIB, workspace_files=100)
    assert memory_volume(limits, "7:8", page=4096) == {
        "type": "tmpfs",
        "device": "tmpfs",
        "o": "nr_blocks=2048,nr_inodes=100,uid=7,gid=8,mode=0755,nosuid,nodev",
    }


def test_engines_of_windows_are_of_no_use() -> None:
    with pytest.raises(BackendUnavailableError, match="Linux ones are needed"):
        facts(OSType="windows")


@pytest.mark.parametrize(
    ("runtime", "level"),
    [
        ("", Isolation.CONTAINER),
        ("runc", Isolation.CONTAINER),
        ("runsc", Isolation.GVISOR),
        ("kata-runtime", Isolation.KATA),
        ("io.containerd.kata.v2", Isolation.KATA),
    ],
)
def test_the_level_is_the_runtime_s(runtime: str, level: Isolation) -> None:
    assert facts().capabilities(ContainerConfig(runtime=runtime)).isolation is level


def test_a_runtime_that_is_not_there_is_refused() -> None:
    facts().check(ContainerConfig(runtime="runsc"))
    with pytest.raises(BackendUnavailableError, match="no runtime 'kata-runtime'; it has runc"):
        facts().check(ContainerConfig(runtime="kata-runtime"))


def test_what_the_engine_can_t_hold_is_promised_by_nobody() -> None:
    held = facts(MemoryLimit=False, PidsLimit=False).capabilities(ContainerConfig()).limits
    assert (held.memory_bytes, held.pids) == (Enforcement.NONE, Enforcement.NONE)
    assert held.cpus is Enforcement.ENFORCED


@pytest.mark.parametrize(
    ("storage", "size", "files"),
    [("tmpfs", True, True), ("loop", True, True), ("volume", False, False)],
)
def test_each_storage_says_what_it_holds(storage: str, size: bool, files: bool) -> None:
    able = facts().capabilities(ContainerConfig.parse({"workspace_storage": storage}))
    held = able.limits
    assert (held.workspace_bytes is Enforcement.ENFORCED) is size
    assert (held.workspace_files is Enforcement.ENFORCED) is files
    assert able.notes[0].startswith("The workspace is")


def test_the_first_network_is_the_config_s_own() -> None:
    assert facts().capabilities(ContainerConfig()).network_modes == ("none", "bridge")
    named = facts().capabilities(ContainerConfig(network="mine"))
    assert named.network_modes == ("mine", "none", "bridge")


def test_the_engine_s_clock() -> None:
    assert engine_time({"SystemTime": "1970-01-01T00:01:40.123456789Z"}) == 100.0
    assert engine_time({"SystemTime": "1970-01-01T02:00:00+02:00"}) == 0.0
    assert engine_time({}) == 0.0


class TestLimits:
    FULL = Limits(memory_bytes=64 * MIB, pids=128, workspace_bytes=128 * MIB)

    def test_a_workspace_that_nobody_asked_for_is_half_of_the_memory(self) -> None:
        fitted = checked_limits(self.FULL, frozenset(), "tmpfs")
        assert fitted.workspace_bytes == 32 * MIB
        assert checked_limits(self.FULL, frozenset(), "loop") == self.FULL

    def test_one_that_was_asked_for_and_does_not_fit_is_refused(self) -> None:
        with pytest.raises(LimitError) as caught:
            checked_limits(self.FULL, frozenset({"workspace_bytes"}), "tmpfs")
        assert caught.value.limit == "workspace_bytes"

    @pytest.mark.parametrize(
        ("limits", "name"),
        [
            (Limits(memory_bytes=MIB, pids=128), "memory_bytes"),
            (Limits(memory_bytes=64 * MIB, pids=7), "pids"),
        ],
    )
    def test_what_is_too_small_to_work_is_refused(self, limits: Limits, name: str) -> None:
        with pytest.raises(LimitError) as caught:
            checked_limits(limits, frozenset(), "tmpfs")
        assert caught.value.limit == name


def test_mounts_are_looked_at(tmp_path: Path) -> None:
    assert checked_mounts((Mount(str(tmp_path)),)) == (Mount(str(tmp_path)),)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    with pytest.raises(ConfigError, match="is a socket"):
        checked_mounts((Mount(str(tmp_path / "s")),))
    with pytest.raises(ConfigError, match="No such file"):
        checked_mounts((Mount(str(tmp_path / "nothing")),))


@pytest.mark.parametrize(
    ("status", "said", "kind", "words"),
    [
        (404, "No such image: x:latest", CreateError, "image build"),
        (409, 'Conflict. The container name "/b" is already in use', CreateError, "already"),
        (400, "error setting rlimit type 7: operation not permitted", LimitError, "so many"),
        (500, "something else", CreateError, "something else"),
    ],
)
def test_each_refusal_has_its_error(
    status: int, said: str, kind: type[Exception], words: str
) -> None:
    error = creation_error(RefusedError(status, said), "b")
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("container 1f does not exist in database: no such container", 404),
        ('the container name "b" is already in use by 1f: that name is already in use', 409),
        ("something else", 500),
    ],
)
def test_what_podman_calls_a_fault_of_its_own_is_told_as_what_it_is(said: str, status: int) -> None:
    async def main() -> None:
        async def refused() -> None:
            raise DockerError(500, said)

        engine = Engine(Endpoint("/nowhere/socket"))
        try:
            with pytest.raises(RefusedError) as caught:
                await engine.call("a container", refused())
            assert (caught.value.status, caught.value.message) == (status, said)
        finally:
            await engine.aclose()

    anyio.run(main)


def test_a_file_system_has_no_more_files_than_were_asked_for() -> None:
    argv = mke2fs_argv("/i", "1:2", 200)
    assert argv[argv.index("-N") + 1] == "208"  # of which ext4 keeps ten
    assert "root_owner=1:2,lazy_itable_init=1,nodiscard" in argv
