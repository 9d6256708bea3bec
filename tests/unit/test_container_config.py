"""The settings of containers, under both of their names, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.config import BackendConfig, ContainerConfig
from ringfence.errors import ConfigError, LimitError, SandboxError

PROFILE = '{"defaultAction": "SCMP_ACT_ERRNO"}'


def test_the_defaults_are_the_hardened_ones() -> None:
    config = ContainerConfig()
    assert config.image == "ringfence-sandbox:latest"
    assert (config.network, config.user, config.runtime) == ("none", "65534:65534", "")
    assert (config.cap_add, config.seccomp_profile, config.writable_rootfs) == ((), "", False)
    assert (config.pull, config.transport, config.workspace_storage) == ("never", "auto", "tmpfs")
    assert config.nproc is None


def test_the_names_of_engines_are_taken_too() -> None:
    settings = {
        "image": "alpine:3.19",
        "memory_bytes": 256 << 20,
        "cpu_quota": 50_000,
        "network_mode": "none",
        "pids_limit": 128,
        "nofile_limit": 1024,
        "nproc_limit": 4096,
        "cap_add": ["CAP_NET_RAW", "chown"],
        "seccomp_profile": PROFILE,
        "runtime": "runsc",
        "tmpfs": {"/cache": "rw,size=1m"},
        "writable_rootfs": True,
    }
    for config in (
        ContainerConfig.parse(settings),
        BackendConfig.parse({"backend": "docker", **settings}).narrowed(),
    ):
        assert isinstance(config, ContainerConfig)
        assert (config.cpus, config.pids, config.open_files) == (0.5, 128, 1024)
        assert (config.nproc, config.network) == (4096, "none")
        assert config.cap_add == ("NET_RAW", "CHOWN")
        assert config.tmpfs == {"/cache": "rw,size=1m"}


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"pids": 5, "pids_limit": 6}, ConfigError, "same setting"),
        ({"cpu_quota": 0.5}, ConfigError, "microseconds"),
        ({"cpu_quota": 0}, LimitError, "above zero"),
        ({"user": "root"}, ConfigError, "numeric uid:gid"),
        ({"user": "0:0"}, ConfigError, "neither is 0"),
        ({"user": "1000"}, ConfigError, "numeric uid:gid"),
        ({"user": "1000:0"}, ConfigError, "neither is 0"),
        ({"network": "host"}, ConfigError, "somebody else's"),
        ({"network_mode": "container:abc"}, ConfigError, "somebody else's"),
        ({"network": ""}, ConfigError, "somebody else's"),
        ({"cap_add": ["ALL"]}, ConfigError, "not one capability"),
        ({"cap_add": ["NET RAW"]}, ConfigError, "not one capability"),
        ({"seccomp_profile": "unconfined"}, ConfigError, "no way to have none"),
        ({"labels": {"ringfence.sandbox": "x"}}, ConfigError, "belongs to ringfence"),
        ({"labels": {"com.docker.compose.project": "x"}}, ConfigError, "belongs to"),
        ({"labels": {"": "x"}}, ConfigError, "not a label's name"),
        ({"tmpfs": {"/workspace": "rw"}}, ConfigError, "of the sandbox's own"),
        ({"tmpfs": {"/proc/x": "rw"}}, ConfigError, "of the sandbox's own"),
        ({"tmpfs": {"/": "rw"}}, ConfigError, "of the sandbox's own"),
        ({"tmpfs": {"cache": "rw"}}, ConfigError, "absolute path"),
        ({"nproc": 128}, LimitError, "too near"),
        ({"nproc": 2000, "pids": 128}, LimitError, "too near"),
        ({"host": "tcp://h", "context": "c"}, ConfigError, "give one of them"),
        ({"host": "tcp://h", "socket_path": "/s"}, ConfigError, "give one of them"),
        ({"pull": "sometimes"}, ConfigError, "pull"),
        ({"workspace_storage": "disk"}, ConfigError, "workspace_storage"),
        ({"transport": "ssh"}, ConfigError, "transport"),
        ({"imagee": "x"}, ConfigError, "did you mean 'image'"),
    ],
)
def test_what_would_weaken_or_contradict_is_refused(
    settings: dict[str, Any], kind: type[SandboxError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        ContainerConfig.parse(settings)
