"""A container engine driven without us: by its API, as plainly as can be, and by its command."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from typing import Any
from urllib.parse import quote, urlencode

from ringfence.backends._docker_endpoint import find_endpoint
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUnavailableError

from .measure import TOTAL, Times, check
from .processes import descendants

__all__ = ("LABEL", "PlainEngine", "config", "run_argv")

LABEL = "ringfence-benchmark-copy"
_SECONDS = 60.0
_TEST_IMAGE = "ringfence-test:minimal"  # small, where the project's own tests have made it


class PlainEngine:
    """The API of a local engine, over connections that are kept; whatever it does blocks.

    Raises:
        BackendUnavailableError: There is none on a Unix socket.
    """

    def __init__(self) -> None:
        endpoint = find_endpoint(ContainerConfig())
        self.url = endpoint.url
        if not self.url.startswith("unix://"):
            raise BackendUnavailableError("the rows about containers need an engine on a socket")
        self._path = self.url.removeprefix("unix://")
        self._kept: _Connection | None = None

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Make a request and return what its answer says, or None if there is no such thing."""
        if self._kept is None:
            self._kept = _Connection(self._path)
        try:
            status, text = _request(self._kept, method, path, body)
        except (OSError, http.client.HTTPException):
            self._kept.close()
            self._kept = None
            raise
        if status == http.client.NOT_FOUND:
            return None
        check(status < http.client.BAD_REQUEST, f"{method} {path}: {status} {text!r:.200}")
        return json.loads(text) if text else {}

    def has_image(self, name: str) -> bool:
        """Whether it has an image."""
        return self.call("GET", f"/images/{quote(name, safe='')}/json") is not None

    def build(self, name: str, context: bytes) -> None:
        """Build an image of a Dockerfile and files beside it, given as a tar archive."""
        connection = _Connection(self._path)
        headers = {"Content-Type": "application/x-tar"}
        where = f"/build?{urlencode({'t': name, 'networkmode': 'none', 'rm': '1'})}"
        try:
            connection.request("POST", where, context, headers)
            answer = connection.getresponse()
            said = answer.read().decode("utf-8", "replace").strip()
        finally:
            connection.close()
        done = answer.status == http.client.OK and '"error"' not in said
        check(done, f"{name} can't be built: {said[-300:]}")

    def remove_labelled(self) -> None:
        """Remove the containers that bear the benchmarks' label, whoever has left them."""
        filters = quote(json.dumps({"label": [LABEL]}))
        for found in self.call("GET", f"/containers/json?all=1&filters={filters}"):
            self.call("DELETE", f"/containers/{found['Id']}?force=1&v=1")

    def pids(self, name: str) -> list[int]:
        """Return the processes of a container, as the host sees them."""
        first = self.call("GET", f"/containers/{name}/json")["State"]["Pid"]
        return [first, *descendants(first)]

    def exec(self, name: str, argv: list[str], stdout: bytes) -> Times:
        """Run a program in a container by the exec API: create, start, read, inspect."""
        began = time.perf_counter()
        made = {"Cmd": argv, "AttachStdout": True, "AttachStderr": True}
        number = self.call("POST", f"/containers/{name}/exec", made)["Id"]
        stream = _Connection(self._path)
        try:
            _, output = _request(stream, "POST", f"/exec/{number}/start", {"Tty": False})
        finally:
            stream.close()
        code = self.call("GET", f"/exec/{number}/json")["ExitCode"]
        took = time.perf_counter() - began
        check(code == 0 and output[8:] == stdout, f"exec gave {code} and {output!r}")
        return {TOTAL: took}

    def copy_of(self, name: str) -> dict[str, Any]:
        """Return a request for a container like one that there is, but for what was its alone."""
        found = self.call("GET", f"/containers/{name}/json")
        host = found["HostConfig"]
        mounts = [
            mount
            for mount in host["Mounts"]
            if mount["Type"] != "bind" or os.path.exists(mount["Source"])
        ]
        host = {**host, "Mounts": mounts}
        return {**found["Config"], "Labels": {LABEL: ""}, "HostConfig": host}

    def make_and_remove(self, body: dict[str, Any]) -> None:
        """Create, start and remove a container."""
        name = self.call("POST", "/containers/create", body)["Id"]
        try:
            self.call("POST", f"/containers/{name}/start")
        finally:
            self.call("DELETE", f"/containers/{name}?force=1")

    def wait_until_removed(self, name: str) -> None:
        """Return when a container is there no more."""
        deadline = time.monotonic() + _SECONDS
        while self.call("GET", f"/containers/{name}/json") is not None:
            check(time.monotonic() < deadline, f"container {name} is not removed")
            time.sleep(0.002)

    def close(self) -> None:
        """Let it go."""
        if self._kept is not None:
            self._kept.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=_SECONDS)
        self._socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(self._socket_path)


def _request(connection: _Connection, method: str, path: str, body: object) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def config(engine: PlainEngine, **settings: Any) -> ContainerConfig:
    """Return settings with the image that is measured: the small one if it is there."""
    image = ContainerConfig().image
    if engine.has_image(_TEST_IMAGE):
        image = _TEST_IMAGE
    return ContainerConfig(image=image, start_timeout=120.0, reconnect_timeout=0.0, **settings)


def run_argv(engine: PlainEngine, image: str, command: list[str]) -> list[str]:
    """Return `docker run --rm` of a command, hardened as our containers are.

    Raises:
        BackendUnavailableError: There is no such command line tool.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise BackendUnavailableError("there is no docker command to compare with")
    options = {
        "--network": "none",
        "--user": "65534:65534",
        "--cap-drop": "ALL",
        "--security-opt": "no-new-privileges",
        "--memory": "256m",
        "--memory-swap": "256m",
        "--cpus": "0.5",
        "--pids-limit": "128",
        "--ulimit": "nofile=1024",
        "--shm-size": "64m",
        "--log-driver": "none",
        "--label": LABEL,
    }
    given = [word for option in options.items() for word in option]
    scratch = ["--tmpfs", "/tmp:rw,noexec,nosuid,nodev,size=64m"]
    scratch += ["--tmpfs", "/workspace:rw,exec,nosuid,nodev,size=128m,uid=65534"]
    return [docker, "-H", engine.url, "run", "--rm", "--read-only", *given, *scratch, image,
            *command]  # fmt: skip


def run_once(argv: list[str], stdout: bytes) -> Times:
    """Run a command of the host and check what it wrote."""
    began = time.perf_counter()
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, env=dict(os.environ))
    took = time.perf_counter() - began
    check(done.returncode == 0, f"{argv[0]} failed: {done.stderr.decode(errors='replace')!r:.300}")
    check(done.stdout == stdout, f"{argv[0]} wrote {done.stdout!r:.100}")
    return {TOTAL: took}
