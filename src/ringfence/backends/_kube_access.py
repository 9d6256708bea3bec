"""Which cluster, and as whom: what kubectl would take, with our own service account before it."""

from __future__ import annotations

import os
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from ..config import KubernetesConfig
from ..errors import BackendUnavailableError, ConfigError

__all__ = ("load_client",)

_NAME = "kubernetes"
_DEFAULT = "~/.kube/config"
_MALFORMED = (
    *(ConfigException, yaml.YAMLError),
    *(OSError, ValueError, TypeError, KeyError, AttributeError),  # of a file of another shape
)
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


def is_in_cluster() -> bool:
    """Whether we run in a pod with a service account's token."""
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and _TOKEN.is_file()


async def load_client(config: KubernetesConfig) -> tuple[ApiClient, str]:
    """Return the client library's object, and where its credentials are from.

    Raises:
        ConfigError: The file or the context that was named is not there, or is malformed.
        BackendUnavailableError: There are no credentials at all.
    """
    found = Configuration()
    found.connection_pool_maxsize = 0  # each sandbox holds one, and nothing has to wait for it
    named = config.kubeconfig or config.context
    try:
        if not named and is_in_cluster():
            load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
            return ApiClient(found), "the service account of this pod"
        path = str(config.kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT)
        _check_file(path, named=bool(named))
        await load_kube_config(
            config_file=path,
            context=config.context or None,
            client_configuration=found,
            persist_config=False,  # somebody else's file
        )
        return ApiClient(found), path
    except _MALFORMED as error:
        raise ConfigError(
            f"the cluster's credentials can't be read: {error}",
            backend=_NAME,
            hint="`kubectl config view` shows what is there",
        ) from error


def _check_file(path: str, *, named: bool) -> None:
    files = [Path(part).expanduser() for part in path.split(os.pathsep) if part]
    if any(file.is_file() for file in files):
        return
    if named:
        raise ConfigError(f"there is no kubeconfig {path!r}", backend=_NAME)
    raise BackendUnavailableError(
        f"there is no cluster to speak to: no service account of a pod, and no file {path}",
        backend=_NAME,
        hint="set KUBECONFIG, or kubeconfig in the settings",
    )
