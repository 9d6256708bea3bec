"""Who is who in the cluster: a certificate authority of its own, and what it has signed.

All of it is made for one cluster, lasts for as long as that, and is readable for us alone.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path

from . import debian

DAYS = "3650"
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
NODE = "localhost"
"""The node's name, which is also how the API server reaches it."""

SERVERS = (f"DNS:{NODE}", "IP:127.0.0.1")
SUBJECTS = {
    "etcd": "/CN=etcd",
    "api": "/CN=kube-apiserver",
    "api-to-node": "/O=system:masters/CN=kube-apiserver-kubelet-client",
    "admin": "/O=system:masters/CN=admin",
    "controllers": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "node": f"/O=system:nodes/CN=system:node:{NODE}",
}
"""What each certificate says, by its file: the API server knows them by these names."""


def make(place: Path) -> None:
    """Make the authority, its certificates and the key that service accounts' tokens are signed by.

    Raises:
        ServiceError: There is no openssl, or it failed.
    """
    debian.install(("openssl",), programs=("openssl",))
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o700)
    _certificate(
        place,
        "ca",
        "/CN=ringfence-test-cluster",
        ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,digitalSignature"],
    )
    for name, subject in SUBJECTS.items():
        extensions = [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=serverAuth,clientAuth",
            f"subjectAltName={','.join(SERVERS)}",
        ]
        signer = ("-CA", str(place / "ca.crt"), "-CAkey", str(place / "ca.key"))
        _certificate(place, name, subject, extensions, signer)
    tokens = str(place / "tokens.key")
    debian.checked(("openssl", "genpkey", "-algorithm", "RSA", "-out", tokens))
    debian.checked(("openssl", "pkey", "-in", tokens, "-pubout", "-out", f"{place}/tokens.pub"))


def write_kubeconfig(place: Path, name: str, server: str) -> Path:
    """Write a file by which one of `SUBJECTS` finds the API server, and return its path."""
    path = place / f"{name}.kubeconfig"
    path.touch(0o600)
    path.write_text(json.dumps(kubeconfig(place, name, server), indent=1), "utf-8")
    return path


def kubeconfig(place: Path, name: str, server: str) -> dict[str, object]:
    """Return what such a file says; everything is in it, so it may be moved."""

    def content(file: str) -> str:
        return base64.b64encode((place / file).read_bytes()).decode("ascii")

    cluster = {"server": server, "certificate-authority-data": content("ca.crt")}
    user = {
        "client-certificate-data": content(f"{name}.crt"),
        "client-key-data": content(f"{name}.key"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        "current-context": "test",
    }


def _certificate(
    place: Path, name: str, subject: str, extensions: Sequence[str], signer: Sequence[str] = ()
) -> None:
    key = place / f"{name}.key"
    key.touch(0o600)
    words = ["openssl", "req", "-x509", *CURVE, "-days", DAYS, "-subj", subject, *signer]
    for extension in extensions:
        words += ["-addext", extension]
    words += ["-keyout", str(key), "-out", str(place / f"{name}.crt")]
    # Without the system's settings, which add extensions of their own.
    debian.checked(words, env={"OPENSSL_CONF": os.devnull})
