"""What is in the image, seen from inside a hardened sandbox, whichever way it was built."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator

import pytest

from ringfence import Backend, Sandbox, open_backend
from ringfence.config import ContainerConfig
from ringfence.image import BuiltImage, apt_sources, list_images, recipe
from scripts.services.engine import Engine

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.container,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # it may have to be built first
]


def backend_on(image: BuiltImage, **settings: object) -> Backend:
    return open_backend(ContainerConfig(image=image.tag, **settings))  # type: ignore[arg-type]


@pytest.fixture
async def sandbox(image: BuiltImage) -> AsyncIterator[Sandbox]:
    async with backend_on(image) as backend, await backend.create() as made:
        yield made


async def said(sandbox: Sandbox, *argv: str) -> str:
    """Return what a program wrote, which must end well."""
    return (await sandbox.exec(argv[0], argv[1:], timeout=120)).check().stdout_text


async def test_the_programs_that_it_promises_run(sandbox: Sandbox) -> None:
    assert (await said(sandbox, "python", "--version")).startswith("Python 3.")
    assert (await said(sandbox, "node", "-p", "6 * 7")).strip() == "42"
    assert "git version" in await said(sandbox, "git", "--version")
    assert "curl" in await said(sandbox, "curl", "--version")
    assert (await said(sandbox, "bash", "-c", "echo $BASH_VERSION | cut -c1")).strip() == "5"
    await said(sandbox, "python", "-c", "import bs4, requests, sqlite3, ssl, venv")


async def test_everything_is_the_sandbox_users(sandbox: Sandbox) -> None:
    assert (await said(sandbox, "id")).startswith("uid=65534(sandbox) gid=65534(sandbox)")
    assert (await said(sandbox, "pwd")).strip() == "/workspace"
    await said(sandbox, "sh", "-c", "echo 1 >/workspace/a && ! (echo 1 >/usr/a) 2>/dev/null")


def wheel() -> bytes:
    """Return a package with a module and a program, since no index can be reached."""
    files = {
        "ringfence_toy.py": b"def main():\n    print('toy')\n",
        "ringfence_toy-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: ringfence-toy\n"
        b"Version: 1\n",
        "ringfence_toy-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
        "ringfence_toy-1.dist-info/entry_points.txt": b"[console_scripts]\n"
        b"toy = ringfence_toy:main\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()[:-1]},"
        f"{len(content)}\n"
        for name, content in files.items()
    )
    files["ringfence_toy-1.dist-info/RECORD"] = record.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


WHEEL = "ringfence_toy-1-py3-none-any.whl"
INSTALL = ["pip", "install", "--no-index", f"/workspace/{WHEEL}"]
WHERE = "import ringfence_toy; print(ringfence_toy.__file__)"


PREFIX = "import sys; print(sys.prefix, sys.base_prefix)"


@pytest.mark.parametrize("writable", [False, True], ids=["read_only", "writable"])
async def test_pip_installs_upgrades_and_removes(image: BuiltImage, writable: bool) -> None:
    async with (
        backend_on(image, writable_rootfs=writable) as backend,
        await backend.create() as sandbox,
    ):
        await sandbox.write_file(WHEEL, wheel())
        await said(sandbox, *INSTALL)
        assert (await said(sandbox, "python", "-c", PREFIX)).split() == ["/workspace/.venv", "/usr"]
        assert (await said(sandbox, "python", "-c", WHERE)).startswith("/workspace/.venv/lib/")
        assert (await said(sandbox, "toy")).strip() == "toy"
        assert "ringfence-toy" in await said(sandbox, "pip", "list")
        await said(sandbox, "python", "-c", "import bs4, requests")  # the image's are there too
        await said(sandbox, *INSTALL, "--upgrade", "--force-reinstall")
        await said(sandbox, "python", "-m", "pip", "uninstall", "-y", "ringfence-toy")
        assert (await sandbox.exec("toy")).exit_code == 127


async def test_an_install_past_the_environment_is_a_part_of_it(sandbox: Sandbox) -> None:
    """`python -m pip`, before there is an environment and after it has been made."""
    await sandbox.write_file(WHEEL, wheel())
    await said(sandbox, "python", "-m", *INSTALL)
    assert (await said(sandbox, "python", "-c", PREFIX)).split() == ["/usr", "/usr"]
    assert (await said(sandbox, "toy")).strip() == "toy"
    await said(sandbox, *INSTALL)  # has it, and makes the environment
    assert (await said(sandbox, "python", "-c", PREFIX)).split() == ["/workspace/.venv", "/usr"]
    assert (await said(sandbox, "toy")).strip() == "toy"
    await said(sandbox, "pip", "uninstall", "-y", "ringfence-toy")
    assert (await sandbox.exec("toy")).exit_code == 127


async def test_a_workspace_is_empty_until_something_is_installed(sandbox: Sandbox) -> None:
    await said(sandbox, "pip", "list")
    await said(sandbox, "pip", "--version")
    assert (await sandbox.list_files()).total == 0


async def test_a_virtual_environment_of_ones_own_can_be_made(sandbox: Sandbox) -> None:
    await sandbox.write_file(WHEEL, wheel())
    await said(sandbox, "python", "-m", "venv", "own")
    await said(sandbox, "own/bin/pip", *INSTALL[1:])
    assert (await said(sandbox, "own/bin/toy")).strip() == "toy"


PRIVILEGED = """
import os
for top, directories, files in os.walk("/"):
    directories[:] = [name for name in directories if top + name not in ("/proc", "/sys", "/dev")]
    for path in (os.path.join(top, name) for name in directories + files):
        if os.path.islink(path):
            continue
        if os.stat(path).st_mode & 0o6000 or "security.capability" in os.listxattr(path):
            print(path)
"""


async def test_nothing_in_it_gives_privileges(sandbox: Sandbox) -> None:
    assert await said(sandbox, "python", "-c", PRIVILEGED) == ""


AUTHORITIES = """
import pathlib, re
def found(text): return set(re.findall("-----BEGIN[^-]*-----([^-]*)-----END", text))
bundle = found(pathlib.Path("/etc/ssl/certs/ca-certificates.crt").read_text())
debian = set()
for path in pathlib.Path("/usr/share/ca-certificates").rglob("*.crt"):
    debian |= found(path.read_text())
assert len(bundle) > 50, len(bundle)
print(len(bundle - debian), list(pathlib.Path("/usr/local/share/ca-certificates").iterdir()))
"""


async def test_it_trusts_whom_debian_trusts_and_nobody_else(sandbox: Sandbox) -> None:
    """An authority of the building machine would be able to read what sandboxes send."""
    assert (await said(sandbox, "python", "-c", AUTHORITIES)).split() == ["0", "[]"]


async def test_nothing_of_the_building_machines_apt_is_in_it(sandbox: Sandbox) -> None:
    mirrors = {uri for _, stanza in apt_sources.read_sources() for uri in stanza["URIs"].split()}
    assert mirrors, "the machine that built it has sources"
    for mirror in mirrors:
        places = ("/etc", "/opt", "/var")
        result = await sandbox.exec("grep", ["-rIlsF", "--", mirror, *places])
        assert result.stdout == b""
    left = await said(sandbox, "sh", "-c", "ls /etc/apt /var/lib/apt/lists 2>/dev/null || true")
    assert left == ""


async def test_its_variables_are_those_of_the_recipe(image: BuiltImage) -> None:
    """Proxies, indexes and certificates of the building machine are none of them."""
    config = Engine().call("GET", f"/images/{image.tag}/json")["Config"]
    told = [line.removeprefix("ENV ") for line in recipe.settings() if line.startswith("ENV ")]
    assert sorted(config["Env"]) == sorted(told)
    assert config["User"] == "65534:65534"
    assert config["WorkingDir"] == "/workspace"


async def test_data_packages_are_left_out_unless_asked_for(by_engine: BuiltImage) -> None:
    async with backend_on(by_engine) as backend:
        installed = (await backend.execute("cat", ["/opt/apt-arguments"])).stdout_text
    assert "install -y --no-install-recommends bash ca-certificates" in installed
    assert "pandas" not in installed


async def test_it_is_listed_as_current(image: BuiltImage) -> None:
    listed = {found.tag: found for found in await list_images()}
    assert listed[image.tag] == image
    assert image.is_current
    assert image.size_bytes < 400_000_000


async def test_one_of_an_older_recipe_is_told_as_such(
    of_packages: BuiltImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "digest", lambda: "another")
    listed = {found.tag: found for found in await list_images()}
    assert not listed[of_packages.tag].is_current
