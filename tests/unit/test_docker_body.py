"""What is said to an engine, literally."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiodocker")

from ringfence.backends._docker_aside import fill_body, network_body, warden_tar
from ringfence.backends._docker_body import (
    Plan,
    command_environment,
    container_body,
    own_labels,
    seccomp_json,
)
from ringfence.backends._docker_storage import own_directory_tar
from ringfence.config import ContainerConfig
from ringfence.errors import ConfigError
from ringfence.models import Limits, Mount

LIMITS = Limits(
    memory_bytes=256 << 20,
    cpus=0.5,
    pids=128,
    open_files=1024,
    workspace_bytes=128 << 20,
    workspace_files=50_000,
    tmp_bytes=64 << 20,
    max_age=3600.0,
)
PLAN = Plan(
    sandbox_id="rf-0123456789ab",
    image="sha256:1234",
    limits=LIMITS,
    network="none",
    hosts="/run/ringfence/hosts",
    warden_volume="ringfence-warden-abcd",
    workspace=None,
    volumes=("/data",),
    mounts=(),
    labels={"ringfence.sandbox": "rf-0123456789ab"},
    orphan_seconds=30.0,
)


def test_a_container_is_hardened_field_by_field() -> None:
    """Catches a hardening that got lost: each of these lines is one."""
    assert container_body(PLAN, ContainerConfig()) == {
        "Image": "sha256:1234",
        "Entrypoint": ["/run/ringfence/warden"],
        "Cmd": [
            "serve",
            "--pipes",
            "--count-oom",
            "--seccomp",
            "--home",
            "/tmp/home",
            "--open-files",
            "1024",
            "--max-age-ms",
            "3600000",
            "--orphan-ms",
            "30000",
        ],
        "User": "65534:65534",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Labels": {"ringfence.sandbox": "rf-0123456789ab"},
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        "StdinOnce": True,
        "Tty": False,
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "StopTimeout": 1,
        "HostConfig": {
            "AutoRemove": True,
            "Init": False,
            "Privileged": False,
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": [],
            "SecurityOpt": ["no-new-privileges:true"],
            "NetworkMode": "none",
            "IpcMode": "private",
            "Memory": 268435456,
            "MemorySwap": 268435456,
            "OomScoreAdj": 500,
            "CpuPeriod": 100000,
            "CpuQuota": 50000,
            "PidsLimit": 128,
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": 8192, "Hard": 8192},
            ],
            "ShmSize": 67108864,
            "Tmpfs": {
                "/data": "rw,noexec,nosuid,nodev,size=67108864,nr_inodes=50000",
                "/tmp": "rw,noexec,nosuid,nodev,size=67108864,nr_inodes=50000",
                "/workspace": "rw,exec,nosuid,nodev,size=134217728,nr_inodes=50000,"
                "mode=0755,uid=65534,gid=65534",
            },
            "Mounts": [
                {
                    "Type": "volume",
                    "Source": "ringfence-warden-abcd",
                    "Target": "/run/ringfence",
                    "ReadOnly": True,
                    "VolumeOptions": {"NoCopy": True},
                },
                {
                    "Type": "bind",
                    "Source": "/run/ringfence/hosts",
                    "Target": "/etc/hosts",
                    "ReadOnly": True,
                },
            ],
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "", "MaximumRetryCount": 0},
        },
    }


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({"runtime": "runsc"}, {"Runtime": "runsc", "PidsLimit": 512}),
        ({"runtime": "kata-runtime"}, {"Runtime": "kata-runtime"}),
        ({"cap_add": ("net_bind_service",)}, {"CapAdd": ["NET_BIND_SERVICE"]}),
        ({"writable_rootfs": True}, {"ReadonlyRootfs": False}),
        ({"shm_bytes": 1000}, {"ShmSize": 1000}),
        (
            {"seccomp_profile": '{"defaultAction": "SCMP_ACT_ERRNO"}'},
            {
                "SecurityOpt": [
                    "no-new-privileges:true",
                    'seccomp={"defaultAction":"SCMP_ACT_ERRNO"}',
                ]
            },
        ),
        (
            {"nproc": 4096},
            {
                "Ulimits": [
                    {"Name": "core", "Soft": 0, "Hard": 0},
                    {"Name": "nofile", "Soft": 8192, "Hard": 8192},
                    {"Name": "nproc", "Soft": 4096, "Hard": 4096},
                ]
            },
        ),
    ],
)
def test_a_setting_changes_its_own_field_and_no_other(
    settings: dict[str, Any], changes: dict[str, Any]
) -> None:
    plain = container_body(PLAN, ContainerConfig())["HostConfig"]
    assert container_body(PLAN, ContainerConfig(**settings))["HostConfig"] == plain | changes


def test_a_socket_of_ours_is_shown_to_the_warden_alone() -> None:
    body = container_body(replace(PLAN, socket="/run/x/ringfence-rf-1/socket"), ContainerConfig())
    assert body["Cmd"][-2:] == ["--socket", "/run/ringfence.socket"]
    assert body["HostConfig"]["Mounts"][-1] == {
        "Type": "bind",
        "Source": "/run/x/ringfence-rf-1/socket",
        "Target": "/run/ringfence.socket",
        "ReadOnly": True,
    }


def test_a_user_owns_the_workspace() -> None:
    body = container_body(PLAN, ContainerConfig(user="1000:2000"))
    assert body["User"] == "1000:2000"
    assert body["HostConfig"]["Tmpfs"]["/workspace"].endswith(",uid=1000,gid=2000")


def test_more_tmpfs_come_beside_the_usual_ones_and_may_replace_tmp() -> None:
    given = {"/tmp": "rw,size=1m", "/cache": "rw,size=2m"}
    found = container_body(PLAN, ContainerConfig(tmpfs=given))["HostConfig"]["Tmpfs"]
    assert {name: found[name] for name in given} == given
    assert set(found) == {"/tmp", "/cache", "/data", "/workspace"}


def test_a_network_is_set_up_where_there_is_one_or_localhost_can_t_be_told() -> None:
    named = container_body(replace(PLAN, network="rf-net"), ContainerConfig())
    assert (named["NetworkDisabled"], named["HostConfig"]["NetworkMode"]) == (False, "rf-net")
    assert len(named["HostConfig"]["Mounts"]) == 1
    poor = container_body(replace(PLAN, hosts=""), ContainerConfig())
    assert (poor["NetworkDisabled"], poor["HostConfig"]["NetworkMode"]) == (False, "none")


def test_a_workspace_of_its_own_and_host_paths_are_mounts() -> None:
    workspace: dict[str, Any] = {"Type": "volume", "Source": "v", "VolumeOptions": {"NoCopy": True}}
    plan = replace(PLAN, hosts="", workspace=workspace, mounts=(Mount("/srv/a", "/a"),))
    host = container_body(plan, ContainerConfig(workspace_storage="volume"))["HostConfig"]
    assert "/workspace" not in host["Tmpfs"]
    assert host["Mounts"][1:] == [
        {**workspace, "Target": "/workspace"},
        {"Type": "bind", "Source": "/srv/a", "Target": "/a", "ReadOnly": True},
    ]


def test_the_warden_has_more_descriptors_than_its_commands() -> None:
    limits = replace(LIMITS, open_files=10_000)
    host = container_body(replace(PLAN, limits=limits), ContainerConfig())["HostConfig"]
    assert host["Ulimits"][1] == {"Name": "nofile", "Soft": 10000, "Hard": 10000}


def test_a_tiny_share_of_a_processor_is_the_least_that_engines_take() -> None:
    limits = replace(LIMITS, cpus=0.001)
    body = container_body(replace(PLAN, limits=limits), ContainerConfig())
    assert body["HostConfig"]["CpuQuota"] == 1000


def test_commands_get_the_images_variables_with_ours_over_some_of_them() -> None:
    image = ["PATH=/opt/venv/bin:/bin", "JAVA_HOME=/opt/java", "HOME=/root", "LANG=de", "broken"]
    assert command_environment(image) == {
        b"PATH": b"/opt/venv/bin:/bin",
        b"JAVA_HOME": b"/opt/java",
        b"LANG": b"de",
        b"TERM": b"dumb",
        b"HOME": b"/tmp/home",
        b"TMPDIR": b"/tmp",
        b"XDG_CACHE_HOME": b"/tmp/home/.cache",
        b"MPLCONFIGDIR": b"/tmp/home/.cache/matplotlib",
    }
    assert command_environment([])[b"PATH"].startswith(b"/usr/local/sbin:")


def test_labels_say_whose_it_is_and_until_when() -> None:
    assert own_labels("rf-1", "store", "7@host", LIMITS, now=1000.7) == {
        "ringfence.sandbox": "rf-1",
        "ringfence.store": "store",
        "ringfence.owner": "7@host",
        "ringfence.created": "1000",
        "ringfence.expires": "4600",
    }


def test_a_volume_is_filled_through_a_container_that_could_not_run() -> None:
    body = fill_body("image", "volume", {"a": "b"})
    assert body["Entrypoint"] == ["/nothing"]
    assert body["HostConfig"]["Mounts"] == [
        {
            "Type": "volume",
            "Source": "volume",
            "Target": "/run/ringfence",
            "VolumeOptions": {"NoCopy": True},
        }
    ]


def test_a_network_keeps_its_containers_apart() -> None:
    body = network_body("n", "rf0123456789ab", {"a": "b"})
    assert body["Options"] == {
        "com.docker.network.bridge.name": "rf0123456789ab",
        "com.docker.network.bridge.enable_icc": "false",
    }
    assert (body["Driver"], body["EnableIPv6"], body["Labels"]) == ("bridge", False, {"a": "b"})


def test_the_wardens_archive_is_the_same_for_the_same_binary() -> None:
    assert warden_tar(b"elf") == warden_tar(b"elf")
    with tarfile.open(fileobj=io.BytesIO(warden_tar(b"elf"))) as archive:
        (item,) = archive.getmembers()
        file = archive.extractfile(item)
        assert file is not None
        assert (item.name, item.mode, item.uid, file.read()) == ("warden", 0o555, 0, b"elf")


def test_a_directory_is_given_to_its_user_by_an_archive() -> None:
    with tarfile.open(fileobj=io.BytesIO(own_directory_tar("1000:2000"))) as archive:
        (item,) = archive.getmembers()
    assert (item.name, item.isdir(), item.uid, item.gid) == ("workspace", True, 1000, 2000)


class TestSeccompProfiles:
    PROFILE = '{ "defaultAction": "SCMP_ACT_ALLOW" }'

    def test_it_may_be_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "profile.json"
        path.write_text(self.PROFILE)
        assert json.loads(seccomp_json(str(path))) == {"defaultAction": "SCMP_ACT_ALLOW"}

    @pytest.mark.parametrize("profile", ["{", "{}", '{"defaultAction": 3}', "/no/such/file"])
    def test_what_is_none_is_refused(self, profile: str) -> None:
        with pytest.raises(ConfigError, match="seccomp_profile"):
            seccomp_json(profile)
