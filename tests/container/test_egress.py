"""What sandboxes on a bridge reach: the world outside, and nothing of the machine's own."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from ringfence.backend import Sandbox
from ringfence.models import Command, Network, SandboxSpec

from .conftest import MINIMAL, PYTHON, containers
from .seen import Left, Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

BRIDGE = SandboxSpec(network=Network("bridge"))
HERE, WORLD = "198.51.100.1", "198.51.100.7"  # of a network that is for examples
METADATA = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192")
PORT = 8099
RULES = 7

SERVER = f"""
import socket
server = socket.create_server(("0.0.0.0", {PORT}))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"here")
    connection.close()
"""
CLIENT = """
import socket, sys
for address in sys.argv[2:]:
    try:
        with socket.create_connection((address, int(sys.argv[1])), 5) as connection:
            connection.settimeout(5)
            if connection.recv(9) == b"here":
                print(address, flush=True)
    except OSError:
        pass
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    """Something beyond this machine: a namespace with a server, on addresses of metadata too."""
    word = secrets.token_hex(3)
    space, near, far = f"rfns{word}", f"rv{word}a", f"rv{word}b"
    ip("netns", "add", space)
    with contextlib.ExitStack() as stack:
        stack.callback(ip, "netns", "del", space)
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        ip("addr", "add", f"{HERE}/24", "dev", near)
        ip("link", "set", near, "up")
        inside = ("-n", space)
        for address in (f"{WORLD}/24", *(f"{address}/32" for address in METADATA)):
            ip(*inside, "addr", "add", address, "dev", far)
        for device in ("lo", far):
            ip(*inside, "link", "set", device, "up")
        ip(*inside, "route", "add", "default", "via", HERE)
        for address in METADATA:
            ip("route", "add", f"{address}/32", "via", WORLD)
        server = subprocess.Popen(
            ["ip", "netns", "exec", space, sys.executable, "-c", SERVER], stdout=subprocess.PIPE
        )
        stack.callback(server.communicate)
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        assert reached_from_here(WORLD, *METADATA) == [WORLD, *METADATA]
        yield


def reached_from_here(*addresses: str) -> list[str]:
    argv = [sys.executable, "-c", CLIENT, str(PORT), *addresses]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


async def reached(box: Sandbox, *addresses: str, port: int = PORT) -> list[str]:
    result = await box.exec("python3", ["-c", CLIENT, str(port), *addresses])
    return result.check().stdout_text.split()


@dataclass
class OwnService:
    """A service of this machine that listens on all of its addresses.

    Attributes:
        port: Its port.
    """

    port: int


@pytest.fixture
def own_service() -> Iterator[OwnService]:
    with socket.create_server(("0.0.0.0", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(b"here")

        thread = threading.Thread(target=serve)
        thread.start()
        yield OwnService(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def own_addresses() -> list[str]:
    """Return all the addresses of this machine, bridges' too."""
    found = json.loads(subprocess.check_output(["ip", "-j", "-4", "addr"]))
    return [
        item["local"] for link in found for item in link["addr_info"] if item["scope"] != "host"
    ]


def rules() -> list[str]:
    found = subprocess.check_output(["iptables", "-S"], text=True)
    return [line for line in found.splitlines() if "rf-+" in line]


def bridges() -> list[str]:
    return [path.name for path in Path("/sys/class/net").glob("rf-*")]


def test_a_bridge_leads_out_and_not_to_metadata(world: None, seen: Seen) -> None:
    async def main() -> None:
        async with (
            containers(seen.socket, PYTHON) as backend,
            await backend.create(BRIDGE) as box,
        ):
            assert await reached(box, WORLD, *METADATA) == [WORLD]
        await seen.until_nothing_left()

    anyio.run(main)


def test_a_bridge_does_not_lead_to_the_machine_itself(seen: Seen, own_service: OwnService) -> None:
    """By none of its addresses: the bridge's own, other bridges', and those to the outside."""

    async def main() -> None:
        async with (
            containers(seen.socket, PYTHON) as backend,
            await backend.create(BRIDGE) as box,
        ):
            addresses = await anyio.to_thread.run_sync(own_addresses)
            assert len(addresses) >= 3
            assert await reached(box, *addresses, port=own_service.port) == []
            assert not (await box.exec("cat", ["/proc/net/if_inet6"])).check().stdout
            with socket.create_connection((addresses[0], own_service.port), 5) as connection:
                assert connection.recv(9) == b"here"

    anyio.run(main)


def test_neighbours_are_on_other_bridges(seen: Seen) -> None:
    """Nor does one reach another by it, of the same backend or of another."""

    async def main() -> None:
        async with (
            containers(seen.socket, PYTHON) as backend,
            containers(seen.socket, PYTHON) as another,
            await backend.create(BRIDGE) as one,
            await backend.create(BRIDGE) as two,
            await another.create(BRIDGE) as three,
        ):
            assert len(seen.left().networks) == 3
            addresses = []
            for box in (two, three):
                name = "import socket; print(socket.gethostbyname(socket.gethostname()))"
                found = await box.exec("python3", ["-c", name])
                addresses.append(found.check().stdout_text.strip())
                server = await box.start(Command(("python3", "-c", SERVER)))
                assert await server.receive() is not None
                assert await reached(box, addresses[-1]) == addresses[-1:]
            assert await reached(one, *addresses) == []

    anyio.run(main)


def test_without_a_network_there_is_only_the_loopback(world: None, seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket, PYTHON) as backend, await backend.create() as box:
            assert await reached(box, WORLD, *METADATA, *own_addresses()) == []
            names = await box.exec("ls", ["/sys/class/net"])
            assert names.stdout == b"lo\n"

    anyio.run(main)


def test_rules_go_with_the_last_bridge(seen: Seen) -> None:
    """And not before: another process's sandbox may be behind them."""

    async def main() -> None:
        async with containers(seen.socket) as backend:
            one = await backend.create(BRIDGE)
            two = await backend.create(BRIDGE)
            there = rules()
            assert there
            await one.aclose()
            await seen.until_nothing_left(Left((two.id,), (), (f"{two.id}-net",)))
            assert rules() == there
            await two.aclose()
        await seen.until_nothing_left()
        assert not {one.id, two.id} & set(bridges())
        assert bool(rules()) == bool(bridges())  # others' may be there

    anyio.run(main)


def test_rules_that_somebody_flushed_are_there_again(world: None, seen: Seen) -> None:
    async def main() -> None:
        async with containers(seen.socket, PYTHON) as backend, await backend.create(BRIDGE) as one:
            there = rules()
            for line in there:
                subprocess.run(["iptables", "-D", *line.split()[1:]], check=True)
            assert await reached(one, METADATA[0]) == [METADATA[0]]  # what they are there for
            async with await backend.create(BRIDGE) as two:
                assert sorted(rules()) == sorted(there)
                assert await reached(two, METADATA[0]) == []
                assert await reached(one, METADATA[0]) == []

    anyio.run(main)


PROGRAM = """
import json, sys
import anyio
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.models import Network, SandboxSpec

async def main(settings):
    async with ContainerBackend(ContainerConfig.model_validate(json.loads(settings))) as backend:
        box = await backend.create(SandboxSpec(network=Network("bridge")))
        print(box.id, flush=True)
        await anyio.sleep(600)

anyio.run(main, sys.argv[1])
"""


def test_a_killed_worker_s_bridge_is_reaped(seen: Seen) -> None:
    settings = json.dumps({"image": MINIMAL, "socket_path": seen.socket})
    argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, settings]
    worker = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    name = worker.stdout.readline().decode().strip()
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert name in bridges()
    assert rules()

    async def main() -> None:
        async with containers(seen.socket):
            pass

    anyio.run(main)
    seen.nothing_left()
    assert name not in bridges()
    assert bool(rules()) == bool(bridges())


CHURN = """
import json, subprocess, sys
import anyio
from ringfence.backends.docker import ContainerBackend
from ringfence.config import ContainerConfig
from ringfence.models import Network, SandboxSpec

async def main(settings):
    async with ContainerBackend(ContainerConfig.model_validate(json.loads(settings))) as backend:
        for _ in range(4):
            async with await backend.create(SandboxSpec(network=Network("bridge"))):
                print(subprocess.check_output(["iptables", "-w", "-S"], text=True).count("-i rf-+"))

anyio.run(main, sys.argv[1])
"""


@pytest.mark.slow
def test_processes_that_come_and_go_leave_no_bridge_unguarded(seen: Seen) -> None:
    """Catches rules that one takes away between another's look at them and its bridge."""
    settings = json.dumps({"image": MINIMAL, "socket_path": seen.socket})
    argv = [sys.executable, "-W", "ignore", "-c", CHURN, settings]
    workers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    counts = [int(count) for worker in workers for count in worker.communicate()[0].split()]
    assert len(counts) == 12
    assert set(counts) == {RULES}
