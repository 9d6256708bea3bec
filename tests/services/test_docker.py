"""The engine that the tests run against: brought up, found again, put down, and left if given.

Each test has a machine of its own as far as an engine can tell: a network, a /run and a place for
its data that nobody else sees. All of it ends with the first process in it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.services.__main__ import SERVICES as NAMES
from scripts.services.images import IMAGES
from scripts.services.steps import CACHE

pytestmark = [
    pytest.mark.container,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may start an engine"),
]

PROJECT = Path(__file__).parent.parent.parent
SERVICES = f"{shlex.quote(sys.executable)} -m scripts.services"
RECORD = CACHE / "docker" / "process.json"
PLACES = [CACHE / name for name in NAMES]

MACHINE = f"""
set -eu
no() {{ if "$@"; then echo "it did: $*" >&2; exit 1; fi; }}  # -e does not see what `!` turns round
mount -t tmpfs none /run
mount -t tmpfs none /var/lib/docker
for place in {shlex.join(map(str, PLACES))}; do mount -t tmpfs none "$place"; done
pid() {{ cut -d, -f1 {shlex.quote(str(RECORD))} | tr -d '['; }}
"""


@pytest.fixture(scope="module", autouse=True)
def _what_is_kept() -> None:
    """Have what is downloaded once on disk: those machines have no network."""
    for image in IMAGES:
        image.make()


def on_a_machine(script: str) -> str:
    """Run a shell script there and return what it wrote, which must end well."""
    for place in (*PLACES, Path("/var/lib/docker")):
        place.mkdir(parents=True, exist_ok=True)
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    environ = {name: value for name, value in os.environ.items() if name != "DOCKER_HOST"}
    done = subprocess.run(
        [*namespaces, "bash", "-c", MACHINE + script],
        cwd=PROJECT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_started_once_and_put_down() -> None:
    on_a_machine(f"""
        no {SERVICES} ready docker
        {SERVICES} up docker
        {SERVICES} ready docker
        first=$(pid)
        {SERVICES} up docker
        [ "$(pid)" = "$first" ]
        {SERVICES} down docker
        no kill -0 $first
        no {SERVICES} ready docker
        {SERVICES} down docker
    """)


@pytest.mark.parametrize("killed", ["dockerd", "dockerd containerd"])
def test_one_that_was_killed_is_started_again(killed: str) -> None:
    """Its pid files are still there then, with numbers that are other processes' by now."""
    on_a_machine(f"""
        {SERVICES} up docker
        for name in {killed}; do
            for directory in /proc/[0-9]*; do
                [ "$(cat $directory/comm 2>/dev/null)" = $name ] && kill -9 "${{directory#/proc/}}"
            done
        done
        [ -e /run/docker.pid ]
        echo $$ >/run/docker.pid
        while {SERVICES} ready docker; do sleep 0.1; done
        {SERVICES} up docker
        {SERVICES} ready docker
    """)


def test_what_a_command_brought_up_is_put_down_after_it_and_nothing_else() -> None:
    on_a_machine(f"""
        code=0
        {SERVICES} around -- sh -c "{SERVICES} up docker && exit 7" || code=$?
        [ $code = 7 ]
        no {SERVICES} ready docker
        {SERVICES} up docker
        {SERVICES} around -- {SERVICES} up docker
        {SERVICES} ready docker
    """)


def test_an_engine_that_is_there_is_used_and_left_alone() -> None:
    out = on_a_machine(f"""
        dockerd >/dev/null 2>&1 &
        until {SERVICES} up docker; do sleep 0.2; done
        [ ! -e {shlex.quote(str(RECORD))} ]
        {SERVICES} down docker
        {SERVICES} ready docker
        {SERVICES} env docker
    """)
    assert out == "export DOCKER_HOST=unix:///var/run/docker.sock\n"


def test_an_address_where_nothing_answers_is_no_reason_to_start_one() -> None:
    on_a_machine(f"""
        export DOCKER_HOST=unix:///run/none.sock
        no {SERVICES} up docker
        [ ! -e {shlex.quote(str(RECORD))} ]
    """)


def test_it_has_gvisor_and_the_images() -> None:
    """As the tests find it, that is the one that is shared."""
    out = subprocess.run(
        [sys.executable, "-c", CODE], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout
    found = json.loads(out)
    assert "runsc" in found["runtimes"]
    assert found["images"] == [image.digest for image in IMAGES]
    assert max(found["sizes"]) < 140_000_000, "what apt had downloaded is not left in it"


CODE = """
import json
from scripts.services.engine import Engine
from scripts.services.images import IMAGES, LABEL
engine = Engine()
images = [engine.call("GET", f"/images/{image.name}/json") for image in IMAGES]
print(json.dumps({
    "runtimes": list(engine.call("GET", "/info")["Runtimes"]),
    "images": [image["Config"]["Labels"][LABEL] for image in images],
    "sizes": [image["Size"] for image in images],
}))
"""
