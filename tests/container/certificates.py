"""Certificates for one test: an authority, and what it signs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class Authority:
    """Signs certificates.

    Args:
        place: Where its files are; made if it is not there.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir()
        self.certificate = place / "ca.pem"
        self._key = _key(place / "ca-key.pem")
        _openssl("req", "-x509", "-key", self._key, "-subj", "/CN=authority", "-days", "1",
                 "-out", self.certificate)  # fmt: skip

    def issue(self, directory: Path, *, names: str = "", days: int = 1) -> Path:
        """Make a directory with `ca.pem`, `cert.pem` and `key.pem`, and return it.

        Args:
            directory: It.
            names: What it is for, as `IP:127.0.0.1,DNS:name`. Default: a client's, without a name.
            days: How long it lasts; of one below zero the end has passed.
        """
        directory.mkdir()
        key = _key(directory / "key.pem")
        request, extensions = directory / "request", directory / "extensions"
        use = f"serverAuth\nsubjectAltName={names}" if names else "clientAuth"
        extensions.write_text(f"extendedKeyUsage={use}\n")
        _openssl("req", "-new", "-key", key, "-subj", "/CN=test", "-out", request)
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key,
                 "-CAcreateserial", "-days", str(days), "-extfile", extensions,
                 "-out", directory / "cert.pem")  # fmt: skip
        shutil.copy(self.certificate, directory / "ca.pem")
        return directory


def _key(path: Path) -> Path:
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
    return path


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
