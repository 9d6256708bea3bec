"""What containers are made of, and what they reach."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
from collections.abc import Iterator

import anyio
import pytest

from ringfence import inventory
from ringfence.backend import Sandbox
from ringfence.backends import _docker_maker
from ringfence.backends._docker_warden import load_warden, volume_name
from ringfence.errors import ConfigError
from ringfence.models import Command, Network, Result, SandboxSpec
from scripts.services.engine import Engine

from .conftest import MINIMAL, PYTHON, containers
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

BRIDGE = SandboxSpec(network=Network("bridge"))


def test_an_image_without_a_shell_or_a_libc(seen: Seen) -> None:
    async def main() -> None:
        async with (
            containers(seen.socket, image="ringfence-test:scratch") as backend,
            await backend.create() as box,
        ):
            assert (await box.exec("/bin/hello")).stdout == b"hello\n"
            assert (await box.exec("sh")).exit_code == 127
            await box.write_file("f", "x")
            assert await box.read_file("f") == b"x"
            assert [info.name for info in (await box.list_files()).entries] == ["f"]

    anyio.run(main)


def test_it_bears_labels_by_which_it_is_found(seen: Seen) -> None:
    async def main() -> None:
        spec = SandboxSpec(labels={"tenant": "a"})
        async with (
            containers(seen.socket, labels={"team": "b"}) as backend,
            await backend.create(spec) as box,
        ):
            labels = seen.inspect(box.id)["Config"]["Labels"]
            assert labels["ringfence.sandbox"] == box.id
            assert labels["ringfence.store"] == inventory.store_id()
            assert int(labels["ringfence.expires"]) - int(labels["ringfence.created"]) == 3600
            assert (labels["tenant"], labels["team"]) == ("a", "b")
            (found,) = [item for item in inventory.scan() if item.entry.id == box.id]
            assert (found.alive, found.entry.engine) == (True, f"unix://{seen.socket}")

    anyio.run(main)


@pytest.fixture
def greedy(seen: Seen) -> str:
    """An image that wants volumes, a health check, an entry point and a user of its own."""
    name = "ringfence-test:greedy"
    changes = (
        "VOLUME /data /var/cache",
        'HEALTHCHECK --interval=1s CMD ["touch", "/tmp/checked"]',
        'ENTRYPOINT ["/bin/false"]',
        "USER root",
        "ENV PATH=/own:/bin HOME=/root OWN=yes",
    )
    made = seen.call("POST", "/commit", {}, container=_created(seen), repo="ringfence-test",
                     tag="greedy", changes="\n".join(changes))  # fmt: skip
    assert made
    return name


def _created(seen: Seen) -> str:
    found = seen.call("POST", "/containers/create", {"Image": MINIMAL, "Cmd": ["true"]})
    return str(found["Id"])


def test_what_an_image_wants_for_itself_it_does_not_get(seen: Seen, greedy: str) -> None:
    """Its volumes would be writable without a limit, and its health check a program beside ours."""

    async def main() -> None:
        async with containers(seen.socket, image=greedy) as backend, await backend.create() as box:
            shown = await box.exec("sh", ["-c", "id -u; env; df -k /data | tail -n 1"])
            lines = shown.stdout_text.split()
            assert lines[0] == "65534"
            assert {"PATH=/own:/bin", "OWN=yes", "HOME=/tmp/home"} <= set(lines)
            assert "65536" in lines  # KiB of a tmpfs
            await anyio.sleep(1.5)
            assert not (await box.exec("ls", ["/tmp/checked"])).ok

    before = _unnamed_volumes(seen)
    try:
        anyio.run(main)
        assert _unnamed_volumes(seen) <= before
    finally:
        for item in seen.call("GET", "/containers/json", all="1") or ():
            if item["Command"] == "true" and item["Image"].startswith(MINIMAL):
                seen.remove_quietly(item["Id"])
        seen.call("DELETE", f"/images/{greedy}", force="1")


def _unnamed_volumes(seen: Seen) -> set[str]:
    """Return the volumes that an engine made because an image wanted them."""
    found = seen.call("GET", "/volumes")["Volumes"] or ()
    return {item["Name"] for item in found if re.fullmatch("[0-9a-f]{64}", item["Name"])}


def test_a_profile_of_ones_own_holds(seen: Seen) -> None:
    """Everything is let through but one call."""
    profile = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}],
    }

    async def main() -> None:
        # The warden makes a home for its commands with that call, and does without.
        async with (
            containers(seen.socket, seccomp_profile=json.dumps(profile)) as backend,
            await backend.create() as box,
        ):
            tried = await box.exec("mkdir", ["d"])
            assert b"Operation not permitted" in tried.stderr
            assert (await box.exec("touch", ["f"])).ok

    anyio.run(main)


def test_neighbours_on_a_bridge_do_not_see_one_another(seen: Seen) -> None:
    async def main() -> None:
        async with (
            containers(seen.socket, image=PYTHON) as backend,
            await backend.create(BRIDGE) as one,
            await backend.create(BRIDGE) as two,
        ):
            assert len(seen.left().networks) == 2
            address = await _address(two)
            assert address != await _address(one)
            await _serve(two)
            assert (await _fetch(two, "127.0.0.1")).stdout == b"here\n"
            assert not (await _fetch(one, address)).ok
        await seen.until_nothing_left()

    anyio.run(main)


async def _address(box: Sandbox) -> str:
    code = "import socket; print(socket.gethostbyname(socket.gethostname()))"
    return (await box.exec("python3", ["-c", code])).check().stdout_text.strip()


SERVER = """
import socket
server = socket.create_server(("0.0.0.0", 8080))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"here")
    connection.close()
"""
CLIENT = """
import socket, sys
print(socket.create_connection((sys.argv[1], 8080), 3).recv(9).decode())
"""


async def _serve(box: Sandbox) -> None:
    server = await box.start(Command(("python3", "-c", SERVER)))
    chunk = await server.receive()
    assert chunk is not None
    assert chunk.data == b"ready\n"


async def _fetch(box: Sandbox, address: str) -> Result:
    return await box.exec("python3", ["-c", CLIENT, address])


@pytest.mark.parametrize("name", ["no-such-network", "none-of-ours"])
def test_a_network_that_is_not_there_is_refused(seen: Seen, name: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="has no network"):
            async with containers(seen.socket, network=name):
                raise AssertionError

    anyio.run(main)


@pytest.fixture
def volume(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from own_volume(seen, monkeypatch)


def own_volume(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The volume of a warden of one test's own, so that nobody else's is spoilt."""
    binary = load_warden(platform.machine()) + os.urandom(16)  # what follows is no part of it
    monkeypatch.setattr(_docker_maker, "load_warden", lambda architecture: binary)
    yield volume_name(binary)
    seen.call("DELETE", f"/volumes/{volume_name(binary)}", force="1")


def test_four_workers_that_begin_at_once_fill_one_volume(seen: Seen, volume: str) -> None:
    begin_at_once(seen, volume)


def begin_at_once(seen: Seen, volume: str) -> None:
    """Each sandbox starts, though the volume was not there, and one of the wrong content was."""

    async def work(outputs: list[bytes]) -> None:
        async with containers(seen.socket) as backend:
            outputs.append((await backend.execute("echo", ["hi"])).stdout)

    async def main() -> None:
        async with containers(seen.socket) as backend:
            assert backend._maker is not None
            name = backend._maker.warden_volume
            assert name == volume
        spoil(seen, volume)
        outputs: list[bytes] = []
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(work, outputs)
        assert outputs == [b"hi\n"] * 4

    anyio.run(main)


def spoil(seen: Seen, volume: str) -> None:
    """Put another program in the warden's place."""
    mount = {"Type": "volume", "Source": volume, "Target": "/v"}
    body = {"Image": MINIMAL, "Cmd": ["true"], "HostConfig": {"Mounts": [mount]}}
    name = seen.call("POST", "/containers/create", body)["Id"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        item = tarfile.TarInfo("warden")
        item.mode = 0o555
        archive.addfile(item)
    Engine(f"unix://{seen.socket}").call(
        "PUT", f"/containers/{name}/archive", query=[("path", "/v")], body=buffer.getvalue()
    )
    seen.remove(name)
