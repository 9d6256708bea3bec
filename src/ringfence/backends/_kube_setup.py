"""What has to be in a namespace before the first sandbox: the warden, and the policy."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import anyio.to_thread

from ..config import KubernetesConfig
from ..errors import BackendUnavailableError
from ..warden.binary import warden_for
from ._kube_answers import RefusedError
from ._kube_api import Api
from ._kube_body import ARCHITECTURES
from ._kube_objects import POLICY, configmap_body, configmap_name, deny_policy_body
from ._kube_reap import reap_namespace

__all__ = ("load_warden", "make_ready")

_NAME = "kubernetes"
_NOT_FOUND, _CONFLICT = 404, 409


def load_warden(architecture: str) -> bytes:
    """Return the warden's binary for a node.

    Raises:
        BackendUnavailableError: There is none.
    """
    path = warden_for(ARCHITECTURES[architecture])
    if path is None:
        raise BackendUnavailableError(
            f"there is no warden for nodes of {architecture}",
            backend=_NAME,
            hint="a wheel made for both architectures has it; `architecture` says which is used",
        )
    return path.read_bytes()


async def make_ready(api: Api, config: KubernetesConfig) -> str:
    """Remove what dead owners left, and see to it that what sandboxes need is there.

    Returns:
        The name of the ConfigMap with the warden; empty where the settings want none.

    Raises:
        BackendUnavailableError: It can't be done.
    """
    try:
        await reap_namespace(api, config.namespace)
        if config.network_policy == "deny":
            await deny_traffic(api, config.namespace)
        if config.transport != "warden":
            return ""
        binary = await anyio.to_thread.run_sync(load_warden, config.architecture)
        return await bring_warden(api, config.namespace, binary)
    except RefusedError as error:
        raise BackendUnavailableError(
            f"namespace {config.namespace!r} can't be made ready: {error}", backend=_NAME
        ) from error


async def bring_warden(api: Api, namespace: str, binary: bytes) -> str:
    """See to it that the ConfigMap with the warden is there, and return its name.

    Nothing in it is trusted before it has been found right, and unchangeable.

    Raises:
        RefusedError: The server does not let us.
        BackendUnavailableError: What is there under its name is not the warden.
    """
    name = configmap_name(binary)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    found = await _get_or_make(api, path, name, configmap_body(binary))
    try:
        content = base64.b64decode((found.get("binaryData") or {}).get("warden") or "")
    except (ValueError, binascii.Error):
        content = b""
    if content != binary or found.get("immutable") is not True:
        raise BackendUnavailableError(
            f"the ConfigMap {name} does not hold what was put into it",
            backend=_NAME,
            hint=f"`kubectl -n {namespace} delete configmap {name}` makes room for a new one",
        )
    return name


async def deny_traffic(api: Api, namespace: str) -> None:
    """See to it that the policy is there that lets nothing in or out of our pods.

    Raises:
        RefusedError: The server does not let us.
        BackendUnavailableError: There is another of its name, that does not do that.
    """
    body = deny_policy_body()
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    found = await _get_or_make(api, path, POLICY, body)
    spec = found.get("spec") or {}
    lets = spec.get("ingress") or spec.get("egress")
    same = all(spec.get(key) == value for key, value in body["spec"].items())
    if lets or not same:
        raise BackendUnavailableError(
            f"the NetworkPolicy {POLICY} does not deny all traffic of sandboxes",
            backend=_NAME,
            hint="delete it, and it is made anew, or set network_policy='none'",
        )


async def _get_or_make(api: Api, path: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return an object that is there already, or is made now."""
    try:
        found = await api.call("GET", f"{path}/{name}")
    except RefusedError as error:
        if error.status != _NOT_FOUND:
            raise
        try:
            found = await api.call("POST", path, body)
        except RefusedError as again:
            if again.status != _CONFLICT:  # another process was quicker
                raise
            found = await api.call("GET", f"{path}/{name}")
    return dict(found)
