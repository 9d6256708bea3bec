"""The settings of every backend in one flat object, and the backends' names."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from ..errors import ConfigError
from .base import MountSetting, PathSetting, Settings, TextSetting
from .container import ContainerConfig
from .kubernetes import KubernetesConfig
from .small import BubblewrapConfig, FakeConfig, ProcessConfig, WasmConfig

__all__ = ("CONFIGS", "AnyConfig", "BackendConfig", "parse_backend")

_ALIASES = {
    "bwrap": "bubblewrap",
    "docker": "container",
    "jail": "bubblewrap",
    "job": "kubernetes",
    "k8s": "kubernetes",
    "k8s-job": "kubernetes",
    "k8s_job": "kubernetes",
    "k8sjob": "kubernetes",
    "local": "process",
    "namespace": "bubblewrap",
    "oci": "container",
    "proc": "process",
    "subprocess": "process",
    "wasi": "wasm",
    "webassembly": "wasm",
}

AnyConfig: TypeAlias = (
    BubblewrapConfig | ContainerConfig | FakeConfig | KubernetesConfig | ProcessConfig | WasmConfig
)

CONFIGS: dict[str, type[AnyConfig]] = {
    "bubblewrap": BubblewrapConfig,
    "container": ContainerConfig,
    "fake": FakeConfig,
    "kubernetes": KubernetesConfig,
    "process": ProcessConfig,
    "wasm": WasmConfig,
}
"""The model of each backend's settings, by the backend's name."""


def parse_backend(text: str) -> str:
    """Return a backend's name as this package writes it.

    Args:
        text: A name or alias (`docker`, `k8s`, `bwrap`, `wasi`, ...) in any case, or `auto`.

    Raises:
        ConfigError: It is none of the known ones, which the message lists.
    """
    if not isinstance(text, str):
        raise ConfigError(f"a backend's name is a text, not {text!r}")
    name = text.strip().lower()
    name = _ALIASES.get(name, name)
    if name in CONFIGS or name == "auto":
        return name
    known = ["auto", *CONFIGS]
    close = get_close_matches(name, [*known, *_ALIASES], 1)
    raise ConfigError(
        f"unknown backend {text!r}; known are " + ", ".join(known),
        hint=f"did you mean {close[0]!r}?" if close else None,
    )


class BackendConfig(Settings):
    """The settings of every backend in one flat object, as files, flags and JSON carry them.

    A setting that differs from its default and that the chosen backend does not have is refused.

    Attributes:
        backend: Which one; an alias is replaced by its name. Empty means `process`, and warns
            when it is opened. `auto` means the strongest that can run here.
        work_dir: process: the workspace; empty means `.`.
        image: container, kubernetes: the image to run.
        network: container, bubblewrap, wasm: what a sandbox may reach. Empty: the backend's own.
        runtime: container: the OCI runtime, such as `runsc`.
        host: container: the engine, as `unix:///path` or `tcp://name:port`.
        socket_path: container: the engine's socket, as a path.
        context: container, kubernetes: the name of a docker context, or of a kubeconfig's.
        tls_dir: container: where the certificates for a `tcp://` host are.
        user: container, kubernetes: the numeric `uid:gid` that everything runs as.
        nproc: container: RLIMIT_NPROC, far above pids.
        cap_add: container: capabilities to give back.
        seccomp_profile: container: a custom profile, as JSON or as a path.
        tmpfs: container: more writable memory file systems.
        shm_bytes: container: size of `/dev/shm`.
        writable_rootfs: container: let programs write to the root file system.
        bridge_guard: container: `required` or `preferred`.
        workspace_storage: container: `tmpfs`, `volume` or `loop`.
        labels: container, kubernetes: more labels for everything that is made.
        pull: container: `never`, `missing` or `always`.
        pull_timeout: container: seconds that fetching an image may take.
        transport: container: `auto`, `attach` or `exec`; kubernetes: `warden` or `logs`.
        reconnect_timeout: container, kubernetes: seconds that a sandbox waits when its stream has
            broken.
        namespace: kubernetes: where the pods are made.
        service_account: kubernetes: what the pods run as.
        kubeconfig: kubernetes: a kubeconfig file.
        runtime_class: kubernetes: the `runtimeClassName`.
        isolation: kubernetes: what the runtime class is.
        architecture: kubernetes: of the nodes, `amd64` or `arm64`.
        node_selector: kubernetes: labels that a node must have.
        tolerations: kubernetes: taints to tolerate.
        priority_class: kubernetes: the `priorityClassName`.
        pull_secrets: kubernetes: names of secrets with a registry's credentials.
        pull_policy: kubernetes: `Always`, `IfNotPresent` or `Never`.
        cpu_request: kubernetes: cores that a pod reserves.
        memory_request_bytes: kubernetes: memory that a pod reserves.
        volume_medium: kubernetes: `memory` or `disk`.
        sized_volumes: kubernetes: whether nodes hold volumes in memory to their size.
        network_policy: kubernetes: `deny` or `none`.
        ttl: kubernetes: seconds after which the cluster removes a Job that has ended.
        schedule_timeout: kubernetes: seconds that a pod waits for a node.
        wasm_path: wasm: the module.
        interpreter: wasm: a packaged interpreter instead of a module.
        memory_limit_pages: wasm: the most memory, in pages of 64 KiB.
        fs_dir: wasm: a directory shown read-write at `/`.
        clock: wasm: `real` or `fixed`.
        random: wasm: `real` or `fixed`.
        fuel: wasm: the most instructions of a run.
        stack_bytes: wasm: the most that a program's call stack may take.
        table_elements: wasm: the most elements of a table.
        cache_dir: wasm: where compiled modules are kept.
        root_dir: bubblewrap: a root file system instead of the host's.
        bwrap_path: bubblewrap: the `bwrap` program.
        mounts: bubblewrap, container, wasm: host paths shown read-only.
        spares: bubblewrap, wasm: sandboxes kept ready for one-shot commands.
        portable: process: do without the warden.
    """

    AUTO_ORDER: ClassVar[tuple[str, ...]] = ("container", "bubblewrap")
    """What `auto` may choose, the strongest first; never what isolates nothing."""

    backend: StrictStr = ""
    work_dir: TextSetting = "."
    image: TextSetting = ""
    network: TextSetting = ""
    runtime: TextSetting = ""
    host: TextSetting = ""
    socket_path: PathSetting | None = None
    context: TextSetting = ""
    tls_dir: PathSetting | None = None
    user: TextSetting = "65534:65534"
    nproc: StrictInt | None = Field(default=None, ge=1, lt=2**31)
    cap_add: tuple[TextSetting, ...] = ()
    seccomp_profile: TextSetting = ""
    tmpfs: dict[TextSetting, TextSetting] = Field(default_factory=dict)
    shm_bytes: StrictInt | None = Field(default=None, ge=1, lt=2**63)
    writable_rootfs: StrictBool = False
    bridge_guard: Literal["required", "preferred"] = "required"
    workspace_storage: Literal["tmpfs", "volume", "loop"] = "tmpfs"
    labels: dict[TextSetting, TextSetting] = Field(default_factory=dict)
    pull: Literal["never", "missing", "always"] = "never"
    pull_timeout: StrictFloat = Field(default=600.0, gt=0, le=86400)
    transport: Literal["", "auto", "attach", "exec", "warden", "logs"] = ""
    reconnect_timeout: StrictFloat = Field(default=30.0, ge=0, le=86400)
    namespace: TextSetting = ""
    service_account: TextSetting | None = None
    kubeconfig: PathSetting | None = None
    runtime_class: TextSetting = ""
    isolation: Literal["", "container", "gvisor", "kata"] = ""
    architecture: Literal["amd64", "arm64"] = "amd64"
    node_selector: dict[TextSetting, TextSetting] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    priority_class: TextSetting = ""
    pull_secrets: tuple[TextSetting, ...] = ()
    pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    cpu_request: StrictFloat | None = Field(default=None, gt=0, le=1e6)
    memory_request_bytes: StrictInt | None = Field(default=None, ge=1, lt=2**63)
    volume_medium: Literal["memory", "disk"] = "memory"
    sized_volumes: StrictBool | None = None
    network_policy: Literal["deny", "none"] = "deny"
    ttl: StrictInt = Field(default=60, ge=0, le=86400)
    schedule_timeout: StrictFloat = Field(default=5.0, gt=0, le=3600)
    wasm_path: TextSetting = ""
    interpreter: TextSetting = ""
    memory_limit_pages: StrictInt = Field(default=4096, ge=1, le=65536)
    fs_dir: PathSetting | None = None
    clock: Literal["", "fixed", "real"] = ""
    random: Literal["", "fixed", "real"] = ""
    fuel: StrictInt | None = Field(default=None, ge=1, lt=2**63)
    stack_bytes: StrictInt = Field(default=1024 * 1024, ge=64 * 1024, le=8 * 1024 * 1024)
    table_elements: StrictInt = Field(default=100_000, ge=0, le=100_000)
    cache_dir: PathSetting | None = None
    root_dir: PathSetting | None = None
    bwrap_path: PathSetting | None = None
    mounts: tuple[MountSetting, ...] = ()
    spares: StrictInt = Field(default=1, ge=0)
    portable: StrictBool = False

    @field_validator("backend")
    @classmethod
    def _name(cls, value: str) -> str:
        return parse_backend(value) if value.strip() else ""

    @field_validator("work_dir")
    @classmethod
    def _directory(cls, value: str) -> str:
        return value or "."

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.backend != "auto":
            self.narrowed()
        return self

    def narrowed(self, backend: str = "") -> AnyConfig:
        """Return the settings of one backend alone.

        Args:
            backend: Its name; default: the one chosen here, or `process` where none is.

        Raises:
            ConfigError: A setting was given that this backend does not have.
        """
        name = backend or self.backend or "process"
        model = CONFIGS[name]
        known = type(self).model_fields
        given = {
            key: getattr(self, key)
            for key, item in known.items()
            if key != "backend"
            and getattr(self, key) != item.get_default(call_default_factory=True)
        }
        for key in given:
            if key not in model.model_fields:
                owners = [other for other in CONFIGS if key in CONFIGS[other].model_fields]
                raise ConfigError(
                    f"{key} is not a setting of the {name} backend",
                    backend=name,
                    hint=f"leave it out, or choose {' or '.join(owners)}, which has it",
                )
        if name == "process":
            given["work_dir"] = self.work_dir
        return model(**given)
