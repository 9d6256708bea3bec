"""Every setting of a run, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..models import MAX_TIMEOUT, Limits, Mount

__all__ = ("BACKEND_SETTINGS", "CLUSTER", "Settings")

_AGE_MARGIN = 60.0  # what a sandbox may live beyond its command, to be exported

CLUSTER = ("kubeconfig", "context", "namespace", "service_account", "runtime_class")
"""Those that say where pods are made, and as whom."""

BACKEND_SETTINGS = (
    "root_dir",
    "bwrap_path",
    "image",
    "host",
    "network",
    "runtime",
    "pull",
    "workspace_storage",
    *CLUSTER,
    "pull_policy",
)
"""The settings that are a backend's own, under the names that its config has for them."""


@dataclass(frozen=True)
class Settings:
    """Every setting of a run; None means: not set, take the backend's default.

    Attributes:
        backend: A backend's name, or `auto`.
        memory: Bytes of all processes together.
        cpus: CPU cores' worth of time.
        pids: Processes and threads together.
        open_files: Open descriptors of each process.
        workspace_size: Bytes of the workspace.
        workspace_files: Files and directories of the workspace.
        tmp_size: Bytes of `/tmp`.
        output_size: Bytes kept of each stream where output is collected.
        timeout: Seconds until the command's tree is killed.
        env: Variables of the command.
        mounts: Host paths shown read-only.
        python: The interpreter for scripts: a path on the host, or a name in the sandbox.
        root_dir: A root file system instead of the host's.
        bwrap_path: The `bwrap` program.
        image: The image of containers and pods.
        host: The container engine: `unix:///path` or `tcp://name:port`.
        network: What a sandbox may reach: `none`, `bridge`, or a network of the engine.
        runtime: The OCI runtime of containers.
        pull: When to fetch the image: `never`, `missing` or `always`.
        workspace_storage: What a container's workspace is made of: `tmpfs`, `volume` or `loop`.
        kubeconfig: The file that leads to a cluster.
        context: The name of a context in it, or of a docker context.
        namespace: Where pods are made.
        service_account: What they run as.
        runtime_class: Their `runtimeClassName`.
        pull_policy: When a cluster fetches the image: `Always`, `IfNotPresent` or `Never`.
        origins: Where each setting came from, by its name; without those that nobody set.
        file: The settings file that was read, or None.
    """

    backend: str = "auto"
    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    open_files: int | None = None
    workspace_size: int | None = None
    workspace_files: int | None = None
    tmp_size: int | None = None
    output_size: int | None = None
    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    python: str | None = None
    root_dir: str | None = None
    bwrap_path: str | None = None
    image: str | None = None
    host: str | None = None
    network: str | None = None
    runtime: str | None = None
    pull: str | None = None
    workspace_storage: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    service_account: str | None = None
    runtime_class: str | None = None
    pull_policy: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None

    @property
    def of_backend(self) -> dict[str, Any]:
        """Those of a backend's own that were set, under the names that its config has."""
        found = {name: getattr(self, name) for name in BACKEND_SETTINGS}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def limits(self) -> Limits:
        """The limits that were set. A timeout of more than five minutes raises its ceiling."""
        longest = self.timeout if self.timeout and self.timeout > MAX_TIMEOUT else None
        return Limits(
            memory_bytes=self.memory,
            cpus=self.cpus,
            pids=self.pids,
            open_files=self.open_files,
            workspace_bytes=self.workspace_size,
            workspace_files=self.workspace_files,
            tmp_bytes=self.tmp_size,
            output_bytes=self.output_size,
            timeout=self.timeout,
            max_timeout=longest,
            max_age=max(3600.0, longest + _AGE_MARGIN) if longest else None,
        )
