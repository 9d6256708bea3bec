"""Settings of the Kubernetes backend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, field_validator, model_validator

from ..errors import ConfigError, LimitError
from ..models import SandboxSpec
from .base import PathSetting, Settings, TextSetting
from .container import NUMERIC_USER

__all__ = ("KubernetesConfig",)

_NAME = "kubernetes"
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
_TOLERATION = frozenset(("key", "operator", "value", "effect", "tolerationSeconds"))
_IMAGE = re.compile(r"[^\s\0]{1,500}\Z")


class KubernetesConfig(Settings):
    """Settings of the Kubernetes backend.

    Attributes:
        image: What the pods run; the cluster must be able to pull it. Required. Any image will
            do, also one without a shell.
        namespace: Where everything is made; empty means `default`.
        service_account: What the pods run as, of which they get no token. Default: the
            namespace's own.
        kubeconfig: A kubeconfig file. Default: the service account of the pod that we run in,
            else what `KUBECONFIG` names, else `~/.kube/config`.
        context: The name of a context in the kubeconfig; default: its current one.
        transport: How commands reach a sandbox: `warden` (a live sandbox with everything), or
            `logs` (a pod for each command, whose log is its output: nothing of ours runs inside,
            and the streams are merged).
        runtime_class: The `runtimeClassName`, such as one for gVisor or Kata.
        isolation: What the runtime class is, where its name does not tell: `container`, `gvisor`
            or `kata`. Default: by its name.
        architecture: Of the nodes that pods may run on: `amd64` or `arm64`.
        node_selector: Labels that a node must have.
        tolerations: Taints to tolerate, as in a pod's manifest.
        priority_class: The `priorityClassName`.
        pull_secrets: Names of secrets with the registry's credentials.
        pull_policy: `Always`, `IfNotPresent` or `Never`. Default: the cluster's own.
        user: Numeric `uid:gid` that everything runs as; neither may be 0.
        cpu_request: Cores that a pod reserves; default: a tenth, or its limit if that is less.
        memory_request_bytes: Memory that a pod reserves; default: its limit.
        volume_medium: What `/workspace` and `/tmp` are made of: `memory` (counted as such), or
            `disk` (of the node).
        sized_volumes: Whether nodes hold volumes in memory to their size. Default: from version
            1.22 on.
        network_policy: `deny` keeps a policy in the namespace that lets nothing in or out of the
            pods, so that they have the network `none`. It holds where the cluster's network
            enforces policies, which can't be asked. `none` keeps no policy: then the pods have
            the network `cluster`.
        labels: More labels for the pods.
        ttl: Seconds after its end in which the cluster removes a Job that nobody has removed.
        schedule_timeout: Seconds that a pod which fits on no node waits for one.
        reconnect_timeout: Seconds that a live sandbox waits to be taken up again when its stream
            has broken, before it ends. One-shots end at once.
    """

    backend: Literal["kubernetes"] = "kubernetes"
    image: TextSetting = ""
    namespace: TextSetting = "default"
    service_account: TextSetting | None = None
    kubeconfig: PathSetting | None = None
    context: TextSetting = ""
    transport: Literal["warden", "logs"] = "warden"
    runtime_class: TextSetting = ""
    isolation: Literal["", "container", "gvisor", "kata"] = ""
    architecture: Literal["amd64", "arm64"] = "amd64"
    node_selector: dict[TextSetting, TextSetting] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    priority_class: TextSetting = ""
    pull_secrets: tuple[TextSetting, ...] = ()
    pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    user: TextSetting = "65534:65534"
    cpu_request: StrictFloat | None = Field(default=None, gt=0, le=1e6)
    memory_request_bytes: StrictInt | None = Field(default=None, ge=1, lt=2**63)
    volume_medium: Literal["memory", "disk"] = "memory"
    sized_volumes: StrictBool | None = None
    network_policy: Literal["deny", "none"] = "deny"
    labels: dict[TextSetting, TextSetting] = Field(default_factory=dict)
    ttl: StrictInt = Field(default=60, ge=0, le=86400)
    schedule_timeout: StrictFloat = Field(default=5.0, gt=0, le=3600)
    reconnect_timeout: StrictFloat = Field(default=30.0, ge=0, le=86400)

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, value: str) -> str:
        if value and not _DNS_LABEL.match(value):
            raise ConfigError(
                f"namespace {value!r:.80} is no name of a namespace",
                backend=_NAME,
                hint="small letters, digits and hyphens, 63 at most",
            )
        return value or "default"

    @field_validator("service_account", "runtime_class", "priority_class")
    @classmethod
    def _object(cls, value: str | None) -> str | None:
        if value and not _DNS_NAME.match(value):
            raise ConfigError(f"{value!r:.80} is no name of an object", backend=_NAME)
        return value or (None if value is None else "")

    @field_validator("image")
    @classmethod
    def _image(cls, value: str) -> str:
        if value and not _IMAGE.match(value):
            raise ConfigError(f"image {value!r:.80} has blanks or is too long", backend=_NAME)
        return value

    @field_validator("pull_secrets")
    @classmethod
    def _secrets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _DNS_NAME.match(name):
                raise ConfigError(f"pull_secrets: {name!r:.80} is no secret's name", backend=_NAME)
        return value

    @field_validator("tolerations")
    @classmethod
    def _tolerations(cls, value: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
        for item in value:
            if not item or item.keys() - _TOLERATION:
                raise ConfigError(
                    f"tolerations: {dict(item)!r:.80} is no toleration",
                    backend=_NAME,
                    hint="its keys are " + ", ".join(sorted(_TOLERATION)),
                )
        return value

    @field_validator("user")
    @classmethod
    def _not_root(cls, value: str) -> str:
        if not NUMERIC_USER.match(value):
            raise ConfigError(
                f"user is a numeric uid:gid of which neither is 0, not {value!r:.80}",
                backend=_NAME,
                hint="leave it out for 65534:65534",
            )
        return value

    @field_validator("labels")
    @classmethod
    def _free_labels(cls, value: dict[str, str]) -> dict[str, str]:
        SandboxSpec(labels=value)  # which checks them
        for name in value:
            if name.startswith("ringfence.") or "kubernetes.io/" in name or name == "job-name":
                raise ConfigError(f"label {name!r} belongs to ringfence or to the cluster")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.cpu_request is not None and self.cpus is not None and self.cpu_request > self.cpus:
            raise LimitError(
                "cpus",
                f"cpu_request {self.cpu_request:g} is above the limit of {self.cpus:g} cpus",
                backend=_NAME,
            )
        limit, request = self.memory_bytes, self.memory_request_bytes
        if request is not None and limit is not None and request > limit:
            raise LimitError(
                "memory_bytes",
                f"memory_request_bytes {request} is above the limit of {limit} bytes",
                backend=_NAME,
            )
        return self
