"""The few calls of the Docker Engine API that bringing it up needs, with the standard library."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

from .steps import ServiceError

DEFAULT = "unix:///var/run/docker.sock"


class Engine:
    """An engine by its address: `unix:///path` or `tcp://host:port` without TLS."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("DOCKER_HOST") or DEFAULT

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        kind: str = "application/x-tar",
        seconds: float = 60.0,
    ) -> Any:
        """Make one request and return the JSON of the answer's last line, or None if it is 404.

        Raises:
            OSError: It can't be reached.
            ServiceError: It refused, or what it answered is no HTTP.
        """
        connection = self._connect(seconds)
        try:
            where = f"{path}?{urlencode(query)}" if query else path
            headers = {"Host": "docker"} | ({} if body is None else {"Content-Type": kind})
            connection.request(method, where, body, headers)
            answer = connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except http.client.HTTPException as error:
            raise ServiceError(f"{self.address} speaks no HTTP: {error!r}") from None
        finally:
            connection.close()
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise ServiceError(f"{method} {path}: {answer.status} {text.strip()}")
        lines = text.strip().splitlines()
        return json.loads(lines[-1]) if lines else {}

    def is_ready(self) -> bool:
        """Whether it answers a request that it has to think about."""
        try:
            return bool(self.call("GET", "/info", seconds=10))
        except (OSError, ServiceError):
            return False

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=seconds)
        if parts.scheme != "unix":
            raise ServiceError(f"DOCKER_HOST is {self.address}, which is neither unix: nor tcp:")
        return _UnixConnection(parts.path, seconds)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, seconds: float) -> None:
        super().__init__("docker", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
