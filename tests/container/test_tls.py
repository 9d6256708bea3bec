"""An engine over TCP with TLS, which wants a certificate of its callers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUntrustedError
from ringfence.models import Command

from ..machine import held, nothing_left
from .certificates import Authority
from .conftest import MINIMAL
from .own_engine import OwnEngine
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(180)]


@dataclass(frozen=True)
class Secured:
    """An engine over TLS.

    Attributes:
        engine: It.
        port: Where it listens, on 127.0.0.1.
        place: A directory of the test's own.
        authority: Who has signed its certificate, and signs those that it takes.
        right: A directory with the certificates of a caller that it takes.
        serve: Starts it again, with the certificate of a directory.
    """

    engine: OwnEngine
    port: int
    place: Path
    authority: Authority
    right: Path
    serve: Callable[[Path], None]

    @property
    def host(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def backend(self, **settings: object) -> ContainerBackend:
        asked = {"host": self.host, "tls_dir": self.right, "image": MINIMAL, "start_timeout": 60.0}
        return ContainerBackend(ContainerConfig.model_validate({**asked, **settings}))


@pytest.fixture(scope="module")
def secured(own_engine: OwnEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    place = tmp_path_factory.mktemp("tls")
    authority = Authority(place / "authority")
    own = authority.issue(place / "engine", names="IP:127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(directory: Path) -> None:
            own_engine.stop()
            files = {"tlscacert": "ca.pem", "tlscert": "cert.pem", "tlskey": "key.pem"}
            places = {name: str(directory / file) for name, file in files.items()}
            own_engine.start(listener, {"tlsverify": True, **places})

        serve(own)
        right = authority.issue(place / "right")
        port = listener.getsockname()[1]
        yield Secured(own_engine, port, place, authority, right, serve)


def test_everything_works_over_it(secured: Secured) -> None:
    """Commands, streams of some size both ways, files, a one-shot, and nothing is left."""

    async def main() -> None:
        before = held()
        async with secured.backend() as backend:
            async with await backend.create() as box:
                data = bytes(range(256)) * 8192
                echoed = await box.exec(Command(("cat",), stdin=data))
                assert echoed.stdout == data[: 1 << 20]
                assert echoed.stdout_bytes == len(data)
                await box.write_file("f", data)
                assert await box.read_file("f") == data
                heard = b""
                async for chunk in await box.start(Command(("sh", "-c", "echo a; echo b >&2"))):
                    heard += chunk.data
                assert sorted(heard.split()) == [b"a", b"b"]
            assert (await backend.execute("echo", ["hi"])).stdout == b"hi\n"
        await nothing_left(before)

    anyio.run(main)
    Seen(secured.engine.socket).nothing_left()


def told(backend: ContainerBackend) -> str:
    """Return what the error says that opening a backend must end with."""
    caught: list[str] = []

    async def main() -> None:
        # Names are looked up in a thread, which the loop keeps.
        await asyncio.get_running_loop().getaddrinfo("localhost", 1)
        before = held()
        with pytest.raises(BackendUntrustedError) as found:
            await backend.__aenter__()
        assert not found.value.retryable
        assert found.value.hint
        caught.append(found.value.message)
        probe = await backend.probe()
        assert (probe.ok, probe.reason) == (False, found.value.message)
        await nothing_left(before)

    anyio.run(main)
    return caught[0]


def test_an_engine_of_another_authority_is_told(secured: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other").issue(tmp_path / "certificates")
    assert "authority that ca.pem does not have" in told(secured.backend(tls_dir=other))


def test_a_missing_certificate_of_ours_is_told(secured: Secured, tmp_path: Path) -> None:
    shutil.copy(secured.right / "ca.pem", tmp_path / "ca.pem")
    assert "it wants a certificate of ours" in told(secured.backend(tls_dir=tmp_path))


@pytest.mark.parametrize("whose", ["expired", "another's"])
def test_a_certificate_of_ours_that_it_does_not_take_is_told(
    secured: Secured, tmp_path: Path, whose: str
) -> None:
    if whose == "expired":
        ours = secured.authority.issue(tmp_path / "old", days=-1)
    else:
        ours = Authority(tmp_path / "other").issue(tmp_path / "theirs")
        shutil.copy(secured.right / "ca.pem", ours / "ca.pem")
    assert "cert.pem" in told(secured.backend(tls_dir=ours))


def test_a_certificate_for_another_name_is_told(secured: Secured) -> None:
    named = secured.backend(host=f"tcp://localhost:{secured.port}")
    assert "for another host name" in told(named)


def test_an_expired_certificate_of_the_engine_s_is_told(secured: Secured, tmp_path: Path) -> None:
    old = secured.authority.issue(tmp_path / "old", names="IP:127.0.0.1", days=-1)
    secured.serve(old)
    try:
        assert "its certificate has expired" in told(secured.backend())
    finally:
        secured.serve(secured.place / "engine")


def test_without_tls_the_engine_says_what_it_is_told(secured: Secured) -> None:
    """Plain HTTP to its port."""

    async def main() -> None:
        before = held()
        probe = await secured.backend(tls_dir=None).probe()
        assert not probe.ok
        assert "HTTPS" in probe.reason
        await nothing_left(before)

    anyio.run(main)


@pytest.mark.parametrize("way", ["variables", "context"])
def test_it_is_found_as_docker_finds_it(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """By DOCKER_HOST, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH, and by a context's certificates."""
    for name in ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    if way == "variables":
        monkeypatch.setenv("DOCKER_HOST", secured.host)
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(secured.right))
    else:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        monkeypatch.setenv("DOCKER_CONTEXT", "far")
        write_context(tmp_path, "far", secured)

    async def main() -> None:
        before = held()
        config = ContainerConfig(image=MINIMAL, start_timeout=60.0)
        async with ContainerBackend(config) as backend:
            assert (await backend.execute("echo", ["hi"])).stdout == b"hi\n"
            assert (await backend.probe()).details["address"] == secured.host
        await nothing_left(before)

    anyio.run(main)


def write_context(place: Path, name: str, secured: Secured) -> None:
    """Write a context as `docker context create` does."""
    key = hashlib.sha256(name.encode()).hexdigest()
    meta = place / "contexts" / "meta" / key
    meta.mkdir(parents=True)
    endpoint = {"Host": secured.host, "SkipTLSVerify": False}
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": endpoint}}))
    files = place / "contexts" / "tls" / key / "docker"
    files.mkdir(parents=True)
    for file in ("ca.pem", "cert.pem", "key.pem"):
        shutil.copy(secured.right / file, files / file)
