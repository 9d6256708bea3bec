"""How the Kubernetes backend is opened: which cluster, as whom, and what has to be there."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import anyio
import pytest

from ringfence import inventory
from ringfence.backends import _kube_access
from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.config import KubernetesConfig
from ringfence.errors import (
    BackendUnavailableError,
    BackendUnreachableError,
    ConfigError,
)

from ..own_places import own_places
from .kube_running import run, sandbox_of
from .kube_server import KubeServer

__all__ = ("own_places",)


@pytest.fixture(autouse=True)
def owner(own_places: Path) -> None:
    """Be an owner already: its file stays open from the first time to the end of this process."""
    inventory.owner()


@pytest.mark.parametrize("version", ["v4.channel.k8s.io", "v5.channel.k8s.io"])
def test_a_command_runs_over_either_version_of_the_stream(tmp_path: Path, version: str) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.protocols = (version,)
        async with sandbox_of(backend) as sandbox:
            assert (await sandbox.exec("echo", ["hi"])).stdout == b"hi\n"
            assert server.spoken == [version]
            assert len(server.names("jobs")) == 1
        assert server.names("jobs") == server.names("leases") == []
        assert server.names("networkpolicies") == ["ringfence-deny-all"]
        assert len(server.names("configmaps")) == 1

    run(tmp_path, body)


def test_an_exec_that_comes_too_early_is_tried_again(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.not_yet = ["ended", "refused", "ended", "refused"]
        async with backend:
            assert (await backend.execute("echo", ["hi"])).stdout == b"hi\n"
        assert server.not_yet == []

    run(tmp_path, body)


def test_it_prefers_the_newer_version(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            await backend.execute("true")
        assert server.spoken == ["v5.channel.k8s.io"]

    run(tmp_path, body)


@pytest.mark.parametrize(
    ("denied", "said"),
    [
        ("create jobs", "create jobs.batch"),
        ("get pods/exec", "get pods/exec"),
        ("patch leases", "patch leases.coordination.k8s.io"),
        ("create networkpolicies", "create networkpolicies.networking.k8s.io"),
    ],
)
def test_the_verb_that_is_missing_is_named(tmp_path: Path, denied: str, said: str) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.denied = {denied}
        probe = await backend.probe()
        assert not probe.ok
        assert said in probe.reason
        with pytest.raises(BackendUnavailableError, match=said):
            await backend.__aenter__()
        assert server.objects == {}

    run(tmp_path, body)


def test_a_verb_that_is_not_needed_may_be_missing(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.denied = {"create networkpolicies", "get networkpolicies", "get pods/log"}
        async with backend:
            await backend.execute("true")

    run(tmp_path, body, network_policy="none")


def test_a_policy_that_is_there_need_not_be_made(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            pass
        server.denied = {"create networkpolicies"}
        assert (await backend.probe()).ok
        async with backend:
            await backend.execute("true")

    run(tmp_path, body)


def test_a_host_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        path = KubeServer().kubeconfig(tmp_path / "config", "http://127.0.0.1:9")
        backend = KubernetesBackend(KubernetesConfig(image="i", kubeconfig=path))
        with anyio.fail_after(5), pytest.raises(BackendUnreachableError, match=r"127\.0\.0\.1:9"):
            await backend.__aenter__()

    anyio.run(main)


def test_bad_credentials_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    good = KubeServer().kubeconfig(tmp_path / "good", "http://127.0.0.1:9")
    (tmp_path / "torn").write_text("{")
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, BackendUnavailableError, "no cluster to speak to"),
        ({"kubeconfig": tmp_path / "none"}, ConfigError, "no kubeconfig"),
        ({"kubeconfig": tmp_path / "torn"}, ConfigError, "can't be read"),
        ({"kubeconfig": good, "context": "nope"}, ConfigError, "nope"),
    ]

    async def main() -> None:
        for settings, kind, said in cases:
            backend = KubernetesBackend(KubernetesConfig(image="i", **settings))
            with pytest.raises(kind, match=said):
                await backend.__aenter__()

    anyio.run(main)


def test_what_kubeconfig_names_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with KubeServer().running() as server:
            monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "config")))
            probe = await KubernetesBackend(KubernetesConfig()).probe()
            assert probe.ok
            assert server.url in probe.details["cluster"]

    anyio.run(main)


def test_our_own_service_account_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with KubeServer().running() as server:
            (tmp_path / "token").write_text("t")

            def load(client_configuration: Any) -> None:
                client_configuration.host = server.url
                client_configuration.api_key = {"BearerToken": "Bearer t"}

            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "of-somebody-else"))
            monkeypatch.setattr(_kube_access, "_TOKEN", tmp_path / "token")
            monkeypatch.setattr(_kube_access, "load_incluster_config", load)
            probe = await KubernetesBackend(KubernetesConfig()).probe()
            assert probe.ok, probe.reason
            assert "service account" in probe.details["credentials"]
            named = KubernetesConfig(kubeconfig=server.kubeconfig(tmp_path / "config"))
            probe = await KubernetesBackend(named).probe()
            assert probe.details["credentials"] == str(tmp_path / "config")

    anyio.run(main)


def test_credentials_that_have_run_out_are_read_anew(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            server.token = "another"
            server.kubeconfig(tmp_path / "config")
            assert (await backend.execute("true")).ok
            server.token = "one that nobody has written"
            with pytest.raises(BackendUnavailableError, match="does not know us"):
                await backend.create()
            server.token = "another"

    run(tmp_path, body)


def test_an_image_is_required(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        with pytest.raises(ConfigError, match="needs an image"):
            await backend.__aenter__()
        assert server.requests == []

    run(tmp_path, body, image="")


def test_an_old_server_is_refused(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        server.version = {"major": "1", "minor": "18"}
        with pytest.raises(BackendUnavailableError, match=r"1\.18"):
            await backend.__aenter__()

    run(tmp_path, body)


def test_a_warden_that_was_tampered_with_is_not_used(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            pass
        path = next(path for path in server.objects if "/configmaps/" in path)
        good = server.objects[path]
        for bad in (
            {**good, "binaryData": {"warden": base64.b64encode(b"\x7fELF").decode()}},
            {**good, "immutable": False},
        ):
            server.objects[path] = bad
            with pytest.raises(BackendUnavailableError, match="does not hold"):
                await backend.__aenter__()

    run(tmp_path, body)


def test_a_policy_that_lets_something_through_is_not_taken_for_ours(tmp_path: Path) -> None:
    async def body(server: KubeServer, backend: KubernetesBackend) -> None:
        async with backend:
            pass
        path = next(path for path in server.objects if "/networkpolicies/" in path)
        server.objects[path]["spec"]["egress"] = [{}]
        with pytest.raises(BackendUnavailableError, match="does not deny all traffic"):
            await backend.__aenter__()

    run(tmp_path, body)
