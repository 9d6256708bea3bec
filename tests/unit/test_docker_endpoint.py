"""Where an engine is looked for, and in which order."""

from __future__ import annotations

import hashlib
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiodocker")

from ringfence.backends import _docker_endpoint
from ringfence.backends._docker_endpoint import Endpoint, find_endpoint
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUnavailableError, ConfigError


def found(home: Path, environ: dict[str, str] | None = None, **settings: Any) -> Endpoint:
    return find_endpoint(ContainerConfig(**settings), environ or {}, home)


def context(home: Path, name: str, host: str, *, current: bool = False) -> Path:
    """Make a context as docker does, and return where its certificates would be."""
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = home / ".docker" / "contexts" / "meta" / key
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Endpoints": {"docker": {"Host": host}}}))
    if current:
        (home / ".docker" / "config.json").write_text(json.dumps({"currentContext": name}))
    return home / ".docker" / "contexts" / "tls" / key / "docker"


def test_what_comes_first_wins(tmp_path: Path) -> None:
    context(tmp_path, "chosen", "unix:///context.sock", current=True)
    context(tmp_path, "named", "unix:///named.sock")
    environ = {"DOCKER_HOST": "unix:///environ.sock", "DOCKER_CONTEXT": "named"}
    for settings, variables, path, source in (
        ({"socket_path": Path("/given.sock")}, environ, "/given.sock", "socket_path"),
        ({"host": "unix:///host.sock"}, environ, "/host.sock", "host"),
        ({"context": "named"}, environ, "/named.sock", "context"),
        ({}, environ, "/environ.sock", "DOCKER_HOST"),
        ({}, {"DOCKER_CONTEXT": "named"}, "/named.sock", "the context 'named'"),
        ({}, {}, "/context.sock", "the context 'chosen'"),
    ):
        endpoint = found(tmp_path, variables, **settings)
        assert (endpoint.socket, endpoint.source) == (path, source)
        assert endpoint.is_local


def test_a_configuration_of_docker_s_elsewhere_is_taken(tmp_path: Path) -> None:
    context(tmp_path, "c", "unix:///c.sock", current=True)
    environ = {"DOCKER_CONFIG": str(tmp_path / ".docker")}
    assert found(tmp_path / "nowhere", environ).socket == "/c.sock"


@pytest.mark.parametrize(
    ("host", "address", "is_local"),
    [
        ("tcp://10.0.0.7:1234", ("10.0.0.7", 1234), False),
        ("tcp://engine", ("engine", 2375), False),
        ("http://localhost:99", ("localhost", 99), True),
        ("tcp://[::1]:2375", ("::1", 2375), True),
    ],
)
def test_an_engine_over_tcp(
    tmp_path: Path, host: str, address: tuple[str, int], is_local: bool
) -> None:
    endpoint = found(tmp_path, host=host)
    assert (endpoint.address, endpoint.is_local, endpoint.tls) == (address, is_local, None)
    assert endpoint.url == "tcp://{}:{}".format(*address)


@pytest.mark.parametrize(
    "host",
    ["ssh://user@host", "unix://relative", "tcp://", "tcp://h:port", "10.0.0.7:2375", "tcp://h/x"],
)
def test_what_is_no_address_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="no engine's address"):
        found(tmp_path, host=host)


def test_tls_checks_the_engine_unless_a_context_says_not_to(tmp_path: Path) -> None:
    environ = {"DOCKER_HOST": "tcp://engine", "DOCKER_TLS_VERIFY": "1"}
    endpoint = found(tmp_path, environ)
    assert endpoint.tls is not None
    assert (endpoint.tls.context.verify_mode, endpoint.tls.context.check_hostname) == (
        ssl.CERT_REQUIRED,
        True,
    )
    assert endpoint.address == ("engine", 2376)
    place = context(tmp_path, "c", "tcp://other:5")
    assert found(tmp_path, context="c").tls is None
    place.mkdir(parents=True)
    endpoint = found(tmp_path, context="c")
    assert endpoint.tls is not None
    assert endpoint.tls.context.check_hostname


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem"])
def test_certificates_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("no certificate")
    with pytest.raises(ConfigError, match="can't be used"):
        found(tmp_path, host="tcp://engine", tls_dir=tmp_path)


def test_a_context_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Catches a fall-back to an engine that nobody meant."""
    with pytest.raises(ConfigError, match="no usable docker context 'gone'"):
        found(tmp_path, {"DOCKER_CONTEXT": "gone"})


def test_the_default_context_means_the_usual_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's own comes first, then the rootless one, then Podman's."""
    there: set[str] = set()
    monkeypatch.setattr(_docker_endpoint, "_is_socket", there.__contains__)
    environ = {"XDG_RUNTIME_DIR": "/run/user/7", "DOCKER_CONTEXT": "default"}
    for path in (
        "/run/podman/podman.sock",
        "/run/user/7/podman/podman.sock",
        f"{tmp_path}/.docker/run/docker.sock",
        "/run/user/7/docker.sock",
        "/var/run/docker.sock",
    ):
        there.add(path)
        assert found(tmp_path, environ).socket == path


def test_without_any_it_says_what_would_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_docker_endpoint, "_is_socket", lambda path: False)
    with pytest.raises(BackendUnavailableError, match="no container engine") as caught:
        found(tmp_path)
    assert "DOCKER_HOST" in str(caught.value.hint)
