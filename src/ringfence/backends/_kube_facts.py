"""What a cluster can do and what we may, as it says itself, and what follows for sandboxes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import KubernetesConfig
from ..errors import BackendUnavailableError
from ..models import Capabilities, Enforced, Enforcement, Isolation
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_objects import POLICY, Access, access_review, needed_access

__all__ = ("Facts", "isolation_of", "learn")

_NAME = "kubernetes"
_OLDEST = (1, 19)  # in which a pod's seccomp profile and a ConfigMap that stays as it is are new
_SIZED = (1, 22)  # from which on nodes hold volumes in memory to their size
_FIRST_SECONDS = 8.0
_UNAUTHORIZED = 401
_MAKE_POLICY = Access("create", "networking.k8s.io", "networkpolicies")
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Facts:
    """What there is to know of a cluster.

    Attributes:
        version: The server's, as major and minor number.
        details: Versions and the like, for people.
    """

    version: tuple[int, int] = (1, 22)
    details: Mapping[str, str] = field(default_factory=dict)

    def capabilities(self, config: KubernetesConfig) -> Capabilities:
        """Return what sandboxes of this cluster can promise."""
        warden = config.transport == "warden"
        return Capabilities(
            isolation=isolation_of(config),
            live=warden,
            files=warden,
            separate_streams=warden,
            network_modes=("none",) if config.network_policy == "deny" else ("cluster",),
            terminal=warden and isolation_of(config) is not Isolation.GVISOR,
            limits=self._enforced(config),
            notes=tuple(self._notes(config)),
        )

    def _enforced(self, config: KubernetesConfig) -> Enforced:
        enforced, nobody = Enforcement.ENFORCED, Enforcement.NONE
        sized = enforced if config.volume_medium == "memory" and self._is_sized(config) else nobody
        return Enforced(
            memory_bytes=enforced,
            cpus=enforced,
            pids=nobody,
            open_files=Enforcement.PER_PROCESS if config.transport == "warden" else nobody,
            workspace_bytes=sized,
            workspace_files=nobody,
            tmp_bytes=sized,
        )

    def _is_sized(self, config: KubernetesConfig) -> bool:
        return self.version >= _SIZED if config.sized_volumes is None else config.sized_volumes

    def _notes(self, config: KubernetesConfig) -> list[str]:
        notes = ["How many processes a pod may have is the node's to limit (podPidsLimit)."]
        if isolation_of(config) is Isolation.POD:
            notes.append("Pods of a node share its kernel, unless runtime_class says otherwise.")
        if config.network_policy == "deny":
            notes.append(
                "A policy denies all traffic, which holds where the cluster's network enforces it."
            )
        else:
            notes.append("Programs reach what the cluster's network lets pods reach.")
        if config.volume_medium == "disk":
            notes.append("The node evicts a pod whose volumes have grown too large, late.")
        elif not self._is_sized(config):
            notes.append("Volumes in memory have no size of their own; the memory limit holds.")
        else:
            notes.append("The workspace is in memory, and counts against the memory limit.")
        if config.transport == "logs":
            notes.append("Output is the pod's log: merged, on the node's disk, and no stdin.")
            notes.append("How a program was killed can't be told but for running out of memory.")
        return notes


def isolation_of(config: KubernetesConfig) -> Isolation:
    """Return what level a runtime class is, by what was said of it or else by its name."""
    told = {"container": Isolation.POD, "gvisor": Isolation.GVISOR, "kata": Isolation.KATA}
    if config.isolation:
        return told[config.isolation]
    name = config.runtime_class.lower()
    if "gvisor" in name or "runsc" in name:
        return Isolation.GVISOR
    return Isolation.KATA if "kata" in name else Isolation.POD


async def learn(api: Api, config: KubernetesConfig) -> Facts:
    """Ask a cluster what it is, and whether we may do what has to be done.

    Raises:
        BackendUnreachableError: It does not answer.
        BackendUnavailableError: It is too old, does not know us, or something is not permitted.
    """
    try:
        told = await api.call("GET", "/version", seconds=_FIRST_SECONDS, patience=0)
    except RefusedError as error:
        if error.status == _UNAUTHORIZED:
            raise _unknown(api, error) from error
        raise api.unreachable(f"answers with an error: {error}") from error
    version = parse_version(told)
    if version < _OLDEST:
        raise BackendUnavailableError(
            f"the cluster at {api.where} is too old: version {version[0]}.{version[1]}, and 1.19 "
            "is the first that will do",
            backend=_NAME,
        )
    await check_access(api, config)
    return Facts(
        version=version,
        details={
            "cluster": f"{api.where}, version {told.get('gitVersion', '?')}",
            "namespace": config.namespace,
            "credentials": api.source,
        },
    )


def parse_version(told: Mapping[str, Any]) -> tuple[int, int]:
    """Return the numbers of a server's version; some write `27+`.

    One that does not tell, as a build without its version does not, is taken for the oldest.
    """
    numbers = [re.match(r"\d+", str(told.get(name) or "")) for name in ("major", "minor")]
    if numbers[0] is None or numbers[1] is None:
        return _OLDEST
    found = int(numbers[0][0]), int(numbers[1][0])
    return _OLDEST if found == (0, 0) else found


async def check_access(api: Api, config: KubernetesConfig) -> None:
    """Ask for each verb that is needed whether it is permitted.

    Raises:
        BackendUnavailableError: One is not; the message names all of them.
    """
    needed = needed_access(config)
    try:
        answers = await asyncio.gather(*(_may(api, access, config) for access in needed))
    except RefusedError as error:
        if error.status == _UNAUTHORIZED:
            raise _unknown(api, error) from error
        raise BackendUnavailableError(
            f"the cluster does not say what we may do: {error}", backend=_NAME
        ) from error
    missing = [str(access) for access, may in zip(needed, answers, strict=True) if not may]
    if missing:
        raise BackendUnavailableError(
            f"not permitted in namespace {config.namespace or 'default'!r}: {', '.join(missing)}",
            backend=_NAME,
            hint="docs/kubernetes.md has the role that is needed",
        )


async def _may(api: Api, access: Access, config: KubernetesConfig) -> bool:
    review = access_review(access, config.namespace)
    answer = await api.call("POST", _REVIEWS, review, patience=0)
    if (answer.get("status") or {}).get("allowed"):
        return True
    # Whoever may make policies can open what another shuts, so who administers the namespace may
    # have made ours, and kept that to himself.
    return access == _MAKE_POLICY and await _policy_is_there(api, config)


async def _policy_is_there(api: Api, config: KubernetesConfig) -> bool:
    path = f"/apis/networking.k8s.io/v1/namespaces/{config.namespace}/networkpolicies/{POLICY}"
    try:
        await api.call("GET", path, patience=0)
    except RefusedError:
        return False
    return True


def _unknown(api: Api, error: RefusedError) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"the cluster at {api.where} does not know us: {error.message or error.reason}",
        backend=_NAME,
        hint=f"the credentials are from {api.source}",
    )
