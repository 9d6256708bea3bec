"""Where the engine is: from the config, the environment, docker's contexts, or the usual sockets.

In this order: what the config names; `DOCKER_HOST`; the context of `DOCKER_CONTEXT` or of
`~/.docker/config.json`; and the first of the usual sockets that exists, Docker's before Podman's.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from ..config import ContainerConfig
from ..errors import BackendUnavailableError, ConfigError
from ._docker_tls import Tls, read_certificates

__all__ = ("Endpoint", "connector", "find_endpoint")

_NAME = "container"
_DEFAULT_SOCKET = "/var/run/docker.sock"
_PLAIN_PORT, _TLS_PORT = 2375, 2376


@dataclass(frozen=True)
class Endpoint:
    """How to reach an engine.

    Attributes:
        socket: The path of its Unix socket, or empty where it is reached over TCP.
        address: Its host and port over TCP.
        tls: Speaks for us and checks the engine over TCP, or None for a plain connection.
        source: What named it, in words.
    """

    socket: str = ""
    address: tuple[str, int] = ("", 0)
    tls: Tls | None = None
    source: str = ""

    @property
    def url(self) -> str:
        """The engine as one text, as docker writes it."""
        return f"unix://{self.socket}" if self.socket else "tcp://{}:{}".format(*self.address)

    @property
    def is_local(self) -> bool:
        """Whether the engine is on this machine, as far as its address tells."""
        return bool(self.socket) or self.address[0] in ("localhost", "127.0.0.1", "::1")


def find_endpoint(
    config: ContainerConfig,
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> Endpoint:
    """Return where the engine is.

    Args:
        config: Its `host`, `socket_path`, `context` and `tls_dir` come first.
        environ: Variables; default: this process's.
        home: Where `.docker` is; default: the user's home directory.

    Raises:
        ConfigError: What names the engine is malformed, or its certificates can't be read.
        BackendUnavailableError: Nothing names one, and none of the usual sockets exists.
    """
    environ = os.environ if environ is None else environ
    docker_dir = Path(environ.get("DOCKER_CONFIG") or (home or Path.home()) / ".docker")
    if config.socket_path is not None:
        return Endpoint(socket=str(config.socket_path), source="socket_path")
    if config.host:
        return _parse(config.host, _tls(config, environ), "host")
    if config.context:
        return _from_context(docker_dir, config.context, config, "context")
    if environ.get("DOCKER_HOST"):
        return _parse(environ["DOCKER_HOST"], _tls(config, environ), "DOCKER_HOST")
    if context := environ.get("DOCKER_CONTEXT") or _current_context(docker_dir):
        if context != "default":
            return _from_context(docker_dir, context, config, f"the context {context!r}")
    return _usual_socket(environ, docker_dir)


def _parse(host: str, tls: Tls | None, source: str) -> Endpoint:
    parts = urlsplit(host)
    if parts.scheme == "unix" and os.path.isabs(parts.path) and not parts.netloc:
        return Endpoint(socket=parts.path, source=source)
    try:
        name, port = parts.hostname, parts.port
    except ValueError:
        name, port = None, None
    if parts.scheme not in ("tcp", "http", "https") or not name or parts.path.strip("/"):
        raise ConfigError(
            f"{source}: {host!r:.200} is no engine's address",
            backend=_NAME,
            hint="give unix:///path or tcp://name:port; over ssh, forward the socket and name that",
        )
    if parts.scheme == "https" and tls is None:
        tls = read_certificates(None)
    return Endpoint(
        address=(name, port or (_TLS_PORT if tls else _PLAIN_PORT)), tls=tls, source=source
    )


def _tls(config: ContainerConfig, environ: Mapping[str, str]) -> Tls | None:
    if config.tls_dir is not None:
        return read_certificates(config.tls_dir)
    if not environ.get("DOCKER_TLS_VERIFY"):
        return None
    place = environ.get("DOCKER_CERT_PATH")
    return read_certificates(Path(place) if place else None)


def _current_context(docker_dir: Path) -> str:
    try:
        found = json.loads((docker_dir / "config.json").read_bytes())
    except (OSError, ValueError):
        return ""  # none was chosen, as for docker itself
    name = found.get("currentContext") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""


def _from_context(docker_dir: Path, name: str, config: ContainerConfig, source: str) -> Endpoint:
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = docker_dir / "contexts" / "meta" / key / "meta.json"
    try:
        engine = json.loads(meta.read_bytes())["Endpoints"]["docker"]
        host, skip = engine["Host"], bool(engine.get("SkipTLSVerify"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"there is no usable docker context {name!r}: {meta} is missing or malformed",
            backend=_NAME,
            hint="`docker context ls` lists them",
        ) from error
    place = docker_dir / "contexts" / "tls" / key / "docker"
    tls = read_certificates(place, verify=not skip) if place.is_dir() else None
    if config.tls_dir is not None:
        tls = read_certificates(config.tls_dir)
    return _parse(str(host), tls, source)


def _usual_socket(environ: Mapping[str, str], docker_dir: Path) -> Endpoint:
    """Return the first of the sockets that engines have by default."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    usual = [_DEFAULT_SOCKET]
    if os.path.isabs(runtime):  # rootless
        usual.append(f"{runtime}/docker.sock")
    usual.append(str(docker_dir / "run" / "docker.sock"))
    if os.path.isabs(runtime):
        usual.append(f"{runtime}/podman/podman.sock")
    usual.append("/run/podman/podman.sock")
    for path in usual:
        if _is_socket(path):
            return Endpoint(socket=path, source="the usual place")
    raise BackendUnavailableError(
        f"there is no container engine: {_DEFAULT_SOCKET} does not exist",
        backend=_NAME,
        hint="start one, or name it with host, socket_path, context or DOCKER_HOST",
    )


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def connector(endpoint: Endpoint) -> tuple[str, aiohttp.BaseConnector]:
    """Return the address in the library's sense, and what connects to it.

    Each request has a connection of its own: one that is kept would be broken after a restart of
    the engine, and making one costs a tenth of a millisecond.
    """
    if endpoint.socket:
        return "unix://engine", aiohttp.UnixConnector(endpoint.socket, force_close=True)
    scheme = "http" if endpoint.tls is None else "https"
    tls = endpoint.tls.context if endpoint.tls else False
    host, port = endpoint.address
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}", aiohttp.TCPConnector(ssl=tls, force_close=True)
