"""What the API server itself says, asked by other means than what is tested."""

from __future__ import annotations

import functools
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import anyio
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import load_kube_config

SECONDS = 60
APPLY = "application/apply-patch+yaml"


class RefusedError(Exception):
    """The API server refused.

    Attributes:
        code: The HTTP status.
        reason: Its own word for it.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class Asked:
    """An API server, asked as its administrator or as whoever a token belongs to.

    Attributes:
        kubeconfig: The file that leads to it.
        token: Of a service account; without it the file says who we are.
    """

    kubeconfig: str
    token: str = ""

    @property
    def server(self) -> str:
        """Its address."""
        return str(_configuration(self.kubeconfig).host)

    def get(self, path: str) -> Any:
        """Return an object or a list."""
        return self.call("GET", path)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = "application/json",
        **query: str,
    ) -> Any:
        """Make one request and return what is answered.

        Raises:
            RefusedError: The answer is a refusal.
        """
        found = _configuration(self.kubeconfig)
        request = Request(
            f"{found.host}{path}?{urlencode(query)}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": kind, "Accept": "application/json"},
        )
        context = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        elif header := found.api_key.get("BearerToken"):
            request.add_header("Authorization", header)
        if found.cert_file and not self.token:
            context.load_cert_chain(found.cert_file, found.key_file)
        try:
            with urlopen(request, timeout=SECONDS, context=context) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            with error:
                raise _refusal(error.code, error.read()) from None

    def apply(self, path: str, body: object, **query: str) -> Any:
        """Apply an object on the server's side, as kubectl does for us."""
        return self.call(
            "PATCH", path, body, kind=APPLY, fieldManager="tests", force="true", **query
        )

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a file that leads to the same server as whoever the token belongs to."""
        found = _configuration(self.kubeconfig)
        cluster = {"server": found.host, "certificate-authority": found.ssl_ca_cert}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config), "utf-8")
        return path


@functools.cache
def _configuration(kubeconfig: str) -> Configuration:
    found = Configuration()
    load = functools.partial(
        load_kube_config, kubeconfig, client_configuration=found, persist_config=False
    )
    anyio.run(load)
    return found


def _refusal(code: int, text: bytes) -> RefusedError:
    try:
        said = json.loads(text)
    except ValueError:
        said = {}
    return RefusedError(code, said.get("reason", ""), said.get("message", repr(text)))
