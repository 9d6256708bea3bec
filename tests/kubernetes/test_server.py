"""The server of `deploy/kubernetes`, run in the cluster as its manifest says, and called."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

import ringfence
from scripts.services.kubernetes import Kubernetes
from scripts.services.kubernetes_server import server_packages
from scripts.services.steps import free_ports, until

from ..mcp.serving import Served, text
from .asked import RefusedError
from .conftest import MINIMAL, NOT_FOUND, PATIENCE, PYTHON, Cluster
from .deployed import SERVER, Deployed, Manifest, deployed, path_of, read, until_available
from .pods import names, nothing_left

__all__ = ("deployed",)

pytestmark = pytest.mark.timeout(4 * PATIENCE)

TOKEN = "a-token-of-these-tests-" + "x" * 20
SOURCE = Path(ringfence.__file__).parent.parent


def test_a_client_runs_commands_through_the_server(
    cluster: Cluster, deployed: Deployed, own_parts: Kubernetes
) -> None:
    (port,) = free_ports(1, "127.0.0.1")
    secret = {"metadata": {"name": SERVER}, "stringData": {"token": TOKEN}}
    asked, core = deployed.asked, f"/api/v1/namespaces/{deployed.workers}"
    asked.call("POST", f"{core}/secrets", secret)
    config, deployment = (deployed.named(of_kind(kind)) for kind in ("ConfigMap", "Deployment"))
    config["data"] |= {
        "RINGFENCE_NAMESPACE": deployed.sandboxes,
        "RINGFENCE_IMAGE": MINIMAL,
        "RINGFENCE_PULL_POLICY": "Never",
    }
    asked.apply(path_of(config), config)
    run_here(deployment, asked.server, port)
    asked.apply(path_of(deployment), deployment)
    until_available(asked, path_of(deployment))

    async def main() -> None:
        async with Served(f"http://127.0.0.1:{port}/mcp", port).client(token=TOKEN) as client:
            result = await client.call_tool("run_command", {"command": "echo kept >f; id -u"})
            assert "65534" in text(result)
            assert len(names(cluster, deployed.sandboxes, "jobs")) == 1
            result = await client.call_tool("run_command", {"command": "cat f"})
            assert "kept" in text(result)

    anyio.run(main)
    until(
        lambda: not names(cluster, deployed.sandboxes, "jobs"),
        seconds=PATIENCE,
        what="the end of the client's session",
    )
    nothing_left(cluster, deployed.sandboxes)

    asked.call("DELETE", path_of(deployment), propagationPolicy="Foreground")
    until(lambda: is_gone(deployed, path_of(deployment)), seconds=PATIENCE, what="no server")
    assert names(cluster, deployed.sandboxes, "leases") == []


def of_kind(kind: str) -> Manifest:
    (found,) = (one for one in read("server.yaml") if one["kind"] == kind)
    return found


def run_here(deployment: Manifest, api: str, port: int) -> None:
    """Have the server's image be one of the tests', and let it reach what listens on this machine.

    The API server of the tests' cluster does so on its loopback alone, and no service has an
    address that works. All else is as the manifest has it.
    """
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    pod["hostNetwork"] = True
    (container,) = pod["containers"]
    container["image"], container["imagePullPolicy"] = PYTHON, "Never"
    container["command"] = ["/usr/bin/python3", "-m", "ringfence"]
    container["args"] = [word.replace(":8000", f":{port}") for word in container["args"]]
    container["ports"][0]["containerPort"] = port
    env = {
        "PYTHONPATH": "/source:/packages",
        "KUBERNETES_SERVICE_HOST": str(urlsplit(api).hostname),
        "KUBERNETES_SERVICE_PORT": str(urlsplit(api).port),
    }
    container["env"] += [{"name": name, "value": value} for name, value in env.items()]
    for name, path in (("source", SOURCE), ("packages", server_packages())):
        pod["volumes"].append({"name": name, "hostPath": {"path": str(path)}})
        mount = {"name": name, "mountPath": f"/{name}", "readOnly": True}
        container["volumeMounts"].append(mount)


def is_gone(deployed: Deployed, path: str) -> bool:
    try:
        deployed.asked.get(path)
    except RefusedError as error:
        return error.code == NOT_FOUND
    return False
