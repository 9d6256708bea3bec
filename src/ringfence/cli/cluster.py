"""What the command line has for clusters alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config import KubernetesConfig
from ..registry import load_backend
from ..settings import Settings

if TYPE_CHECKING:
    from ..backends._kube_reap import Kept
    from ..backends.kubernetes import KubernetesBackend

__all__ = ("is_asked_for", "kept", "namespace", "reap_namespace")


def is_asked_for(settings: Settings) -> bool:
    """Whether a cluster is to be looked at: never one that happens to be within reach."""
    return settings.backend == "kubernetes"


def namespace(settings: Settings) -> str:
    """Return the namespace that is looked at."""
    return _config(settings).namespace


async def kept(settings: Settings) -> list[Kept]:
    """Return the sandboxes in the namespace, the oldest first.

    Raises:
        SandboxError: The cluster can't be looked at.
    """
    return await _backend(settings).sandboxes()


async def reap_namespace(settings: Settings) -> int:
    """Remove what dead owners left in the namespace, and return how many sandboxes that was.

    Raises:
        SandboxError: The cluster can't be looked at.
    """
    return await _backend(settings).reap()


def _backend(settings: Settings) -> KubernetesBackend:
    load_backend("kubernetes")  # which names the extra where a package is missing
    from ..backends.kubernetes import KubernetesBackend

    return KubernetesBackend(_config(settings))


def _config(settings: Settings) -> KubernetesConfig:
    names = ("kubeconfig", "context", "namespace")
    given = {name: value for name in names if (value := getattr(settings, name)) is not None}
    return KubernetesConfig(**given)
