"""The few questions to an API server that bringing it up needs, with the standard library."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from .kubernetes_pki import NODE
from .steps import ServiceError


class Api:
    """The API server of our own cluster, asked as its administrator."""

    def __init__(self, server: str, pki: Path) -> None:
        self.server = server
        self._pki = pki

    def get(self, path: str, *, seconds: float = 5.0) -> Any:
        """Return what it answers: JSON as what it says, everything else as text.

        Raises:
            OSError: It can't be reached, or it refused.
        """
        context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
        context.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        with urllib.request.urlopen(self.server + path, timeout=seconds, context=context) as answer:
            text = answer.read().decode("utf-8")
            kind = answer.headers.get_content_type()
        return json.loads(text) if kind == "application/json" else text

    def answers(self) -> bool:
        """Whether it says that it is ready."""
        try:
            return bool(self.get("/readyz") == "ok")
        except OSError:
            return False

    def runs_pods(self) -> bool:
        """Whether a pod may be made and would find a node."""
        try:
            self.get("/api/v1/namespaces/default/serviceaccounts/default")
            node = self.get(f"/api/v1/nodes/{NODE}")
        except OSError:
            return False
        conditions = node["status"].get("conditions", ())
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        return ready and not node["spec"].get("taints")


def given_answers(path: str) -> bool:
    """Whether the cluster that a kubeconfig leads to says that it is ready.

    Raises:
        ServiceError: The file can't be read.
    """
    return asyncio.run(_given_answers(path))


async def _given_answers(path: str) -> bool:
    # One of the development packages: whoever has a cluster may sign in to it in many ways.
    from aiohttp import ClientError
    from kubernetes_asyncio.client import ApiClient, ApiException, Configuration
    from kubernetes_asyncio.config import ConfigException, load_kube_config

    found = Configuration()
    try:
        await load_kube_config(path, client_configuration=found, persist_config=False)
    except ConfigException as error:
        raise ServiceError(f"KUBECONFIG is {path}: {error}") from None
    async with ApiClient(found) as client:
        try:
            await client.call_api("/readyz", "GET", auth_settings=["BearerToken"])
        except (ApiException, ClientError, TimeoutError):
            return False
    return True
