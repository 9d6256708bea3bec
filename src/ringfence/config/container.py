"""Settings of the container backend."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, field_validator, model_validator

from ..errors import ConfigError, LimitError
from ..models import Mount, SandboxSpec
from .base import MountSetting, PathSetting, Settings, TextSetting

__all__ = ("NUMERIC_USER", "ContainerConfig")

NUMERIC_USER = re.compile(r"([1-9]\d{0,9}):([1-9]\d{0,9})\Z", re.ASCII)
"""`uid:gid`, neither of them 0."""
_CAPABILITY = re.compile(r"[A-Z][A-Z_]{2,40}\Z")
_RESERVED_LABELS = ("ringfence.", "com.docker.")


class ContainerConfig(Settings):
    """Settings of the container backend.

    Engines have other names for some of them, which are taken too: `network_mode`, `pids_limit`,
    `nofile_limit`, `nproc_limit`, and `cpu_quota` (microseconds in each 100 ms) for `cpus`.

    Attributes:
        image: What the sandboxes are made of; any image, also one without a shell.
        host: The engine: `unix:///path` or `tcp://name:port`. Default: what `DOCKER_HOST`, the
            current docker context, or the usual sockets say.
        socket_path: The engine's socket, as a path.
        context: The name of a docker context.
        tls_dir: Where `ca.pem`, `cert.pem` and `key.pem` for a `tcp://` host are. Default: as
            `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH` say.
        user: Numeric `uid:gid` that everything runs as; neither may be 0.
        nproc: RLIMIT_NPROC. It counts the uid's processes in all containers of the machine, so it
            must lie far above `pids`, which is the limit of one sandbox. Default: the engine's.
        cap_add: Capabilities to give back; all are dropped.
        seccomp_profile: A custom profile, as JSON or as the path of a file. Default: the engine's
            own. The warden's filter comes on top of either.
        runtime: The OCI runtime, such as `runsc` or `kata-runtime`. Default: the engine's.
        network: `none`, `bridge` (outbound connections; each sandbox has one of its own), or the
            name of a network of the engine.
        bridge_guard: Whether `bridge` must be kept away from the engine's machine, link-local
            addresses and clouds' metadata. That takes root and iptables on that machine.
            `required`: where it can't be, there is no `bridge`. `preferred`: then it is open.
        tmpfs: More writable memory file systems, by mount point, each with its mount options.
            `/tmp` is there unless it is given here.
        shm_bytes: Size of `/dev/shm`. Default: the same as `/tmp`.
        writable_rootfs: Let programs write to the root file system. That has no size limit.
        workspace_storage: What `/workspace` is made of: `tmpfs` (in memory, and counted as such),
            `volume` (on disk, no size limit), or `loop` (on disk, with a size limit; needs root
            on the engine's own machine).
        mounts: Host paths shown read-only in every sandbox; needs a local engine.
        labels: More labels for everything that is made.
        pull: When to fetch the image: `never`, if it is `missing`, or `always` when the backend is
            opened.
        pull_timeout: Seconds that fetching it may take.
        transport: How commands reach the sandbox: `attach`, over the container's own streams;
            `auto`, past the engine over a socket of this machine where it is on it, else as
            `attach`; or `exec`, by the engine's exec API.
        reconnect_timeout: Seconds that a live sandbox waits to be taken up again when its stream
            has broken, before it ends. One-shots end at once.
    """

    backend: Literal["container"] = "container"
    image: TextSetting = "ringfence-sandbox:latest"
    host: TextSetting = ""
    socket_path: PathSetting | None = None
    context: TextSetting = ""
    tls_dir: PathSetting | None = None
    user: TextSetting = "65534:65534"
    nproc: StrictInt | None = Field(default=None, ge=1, lt=2**31)
    cap_add: tuple[TextSetting, ...] = ()
    seccomp_profile: TextSetting = ""
    runtime: TextSetting = ""
    network: TextSetting = "none"
    bridge_guard: Literal["required", "preferred"] = "required"
    tmpfs: dict[TextSetting, TextSetting] = Field(default_factory=dict)
    shm_bytes: StrictInt | None = Field(default=None, ge=1, lt=2**63)
    writable_rootfs: StrictBool = False
    workspace_storage: Literal["tmpfs", "volume", "loop"] = "tmpfs"
    mounts: tuple[MountSetting, ...] = ()
    labels: dict[TextSetting, TextSetting] = Field(default_factory=dict)
    pull: Literal["never", "missing", "always"] = "never"
    pull_timeout: StrictFloat = Field(default=600.0, gt=0, le=86400)
    transport: Literal["auto", "attach", "exec"] = "auto"
    reconnect_timeout: StrictFloat = Field(default=30.0, ge=0, le=86400)

    @field_validator("user")
    @classmethod
    def _not_root(cls, value: str) -> str:
        if not NUMERIC_USER.match(value):
            raise ConfigError(
                f"user is a numeric uid:gid of which neither is 0, not {value!r:.80}",
                backend="container",
                hint="leave it out for 65534:65534; names are the image's to choose",
            )
        return value

    @field_validator("cap_add")
    @classmethod
    def _capabilities(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(name.upper().removeprefix("CAP_") for name in value)
        for name in names:
            if name == "ALL" or not _CAPABILITY.match(name):
                raise ConfigError(f"cap_add: {name!r:.80} is not one capability's name")
        return names

    @field_validator("network")
    @classmethod
    def _own_network(cls, value: str) -> str:
        if value in ("", "host") or ":" in value or "/" in value:
            raise ConfigError(
                f"network {value!r:.80} would be somebody else's",
                backend="container",
                hint="give none, bridge or the name of a network",
            )
        return value

    @field_validator("seccomp_profile")
    @classmethod
    def _confined(cls, value: str) -> str:
        if value.strip().lower() in ("unconfined", "builtin", "default"):
            raise ConfigError(
                f"seccomp_profile {value!r} is no profile",
                backend="container",
                hint="leave it out for the engine's own; there is no way to have none",
            )
        return value

    @field_validator("labels")
    @classmethod
    def _free_labels(cls, value: dict[str, str]) -> dict[str, str]:
        SandboxSpec(labels=value)  # which checks them
        for name in value:
            if name.startswith(_RESERVED_LABELS):
                raise ConfigError(f"label {name!r} belongs to ringfence or to the engine")
        return value

    @field_validator("tmpfs")
    @classmethod
    def _free_places(cls, value: dict[str, str]) -> dict[str, str]:
        for place in value:
            Mount(place)  # which checks the path
            if place == "/" or place.split("/")[1] in ("dev", "proc", "run", "sys", "workspace"):
                raise ConfigError(f"tmpfs {place!r} is a place of the sandbox's own")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        given = [name for name in ("host", "socket_path", "context") if getattr(self, name)]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} each name the engine; give one of them")
        pids = self.pids or 128
        if self.nproc is not None and self.nproc < 16 * pids:
            raise LimitError(
                "nproc",
                f"nproc {self.nproc} is too near to {pids} pids: it counts the processes of this "
                "uid in all containers of the machine",
                backend="container",
                hint="leave it out; pids is the limit of one sandbox",
            )
        return self
