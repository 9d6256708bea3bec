"""A cluster driven without us: by its API, through its own client library."""

from __future__ import annotations

import time
from typing import Any, Self

from kubernetes_asyncio import client, config
from kubernetes_asyncio.stream import WsApiClient

from .measure import TOTAL, Times, check

__all__ = ("PlainCluster",)

_NAMESPACE = "default"


class PlainCluster:
    """The API of the cluster that the kubeconfig leads to."""

    async def __aenter__(self) -> Self:
        found = client.Configuration()
        await config.load_kube_config(client_configuration=found, persist_config=False)
        self._plain = client.ApiClient(found)
        self._streams = WsApiClient(found)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._plain.close()
        await self._streams.close()

    async def pod_of(self, job: str) -> str:
        """Return the name of a Job's pod."""
        api: Any = client.CoreV1Api(self._plain)
        pods = await api.list_namespaced_pod(_NAMESPACE, label_selector=f"job-name={job}")
        return str(pods.items[0].metadata.name)

    async def exec(self, pod: str, argv: list[str], stdout: bytes) -> Times:
        """Run a program in a pod by `pods/exec`, to its end."""
        api: Any = client.CoreV1Api(self._streams)
        began = time.perf_counter()
        output = await api.connect_get_namespaced_pod_exec(
            pod, _NAMESPACE, command=argv, stdout=True, stderr=True
        )
        took = time.perf_counter() - began
        check(output.encode() == stdout, f"pods/exec gave {output!r}")
        return {TOTAL: took}
