"""The images that tests run, made on the machine itself: no registry is asked.

`minimal` has a busybox, `scratch` one program of eight instructions and neither a shell nor a
libc, `python` a Debian Python. Each carries the digest of its recipe as a label, so a changed
recipe makes it anew and the same one costs a look.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringfence.image.apt_sources import source_files
from ringfence.image.debian import bootstrap_argv
from ringfence.image.recipe import SUITE
from ringfence.image.scratch import scratch

from . import debian, elf, kernel
from .engine import Engine
from .steps import CACHE, ServiceError, need_root, step

REPOSITORY = "ringfence-test"
LABEL = "ringfence.test.recipe"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PACKAGES = ("mmdebstrap",)
PROGRAMS = ("mmdebstrap",)
"""What making images, also the one that tests of `ringfence image` build, takes."""

NOBODY = 65534
PASSWD = "root:x:0:0:root:/root:/bin/sh\nsandbox:x:65534:65534:sandbox:/workspace:/bin/sh\n"
GROUP = "root:x:0:\nsandbox:x:65534:\n"

HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost\n"  # without it an engine has to set up a network

RELEASE = "ID=debian\\nNAME=Debian\\n"  # what comes with packages that are not in it

PYTHON_PACKAGES = (
    *("python3", "dash", "coreutils", "findutils", "grep", "sed", "util-linux"),
    *("procps", "python-is-python3"),  # frameworks' suites call `ps` and `python`
    "libstdc++6",  # what pip installs is linked with it
)


@dataclass(frozen=True)
class Image:
    """A test image.

    Attributes:
        tag: Its tag in the repository `ringfence-test`.
        recipe: What it is made by; another text makes it anew.
        make: Returns its files as a tar archive.
    """

    tag: str
    recipe: str
    make: Callable[[], bytes]

    @property
    def name(self) -> str:
        """Its whole name."""
        return f"{REPOSITORY}:{self.tag}"

    @property
    def digest(self) -> str:
        """The digest of its recipe."""
        return hashlib.sha256(self.recipe.encode()).hexdigest()


def make_all(engine: Engine) -> None:
    """Make the images that are missing or of another recipe, and have what that takes."""
    install()
    for image in IMAGES:
        if _is_there(engine, image):
            continue
        with step(f"made {image.name} at {engine.address}"):
            _import(engine, image)
    kernel.kernel_packages()  # which tests mount into the one with Python


def install() -> None:
    """Have what making them takes, where we may install it."""
    if os.geteuid() == 0:
        debian.install(PACKAGES, programs=PROGRAMS)


def all_there(engine: Engine) -> bool:
    """Whether every image is there, of the recipe that is in force."""
    return kernel.place().is_dir() and all(_is_there(engine, image) for image in IMAGES)


def _is_there(engine: Engine, image: Image) -> bool:
    found = engine.call("GET", f"/images/{image.name}/json")
    labels = (found or {}).get("Config", {}).get("Labels") or {}
    return bool(labels.get(LABEL) == image.digest)


def _import(engine: Engine, image: Image) -> None:
    # What a list of changes can't say is not needed here: they are parsed as a Dockerfile's lines.
    changes = [f"LABEL {LABEL}={image.digest}", f"ENV PATH={PATH}", "WORKDIR /workspace"]
    # The tag goes with the name: Podman does not look at one that is told apart from it.
    query = [("fromSrc", "-"), ("repo", image.name)]
    query += [("changes", change) for change in changes]
    said = engine.call("POST", "/images/create", query=query, body=image.make(), seconds=120)
    if not said or "error" in said:
        raise ServiceError(f"{image.name} can't be imported: {said}")


class _Tar:
    """An archive that is the same whenever it is made."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115  # see close()

    def directory(self, name: str, mode: int = 0o755, owner: int = 0) -> None:
        self._add(name, b"", mode, owner, tarfile.DIRTYPE)

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        self._add(name, content, mode, 0, tarfile.REGTYPE)

    def link(self, name: str, target: str) -> None:
        self._add(name, b"", 0o777, 0, tarfile.SYMTYPE, target)

    def _add(
        self, name: str, content: bytes, mode: int, owner: int, kind: bytes, target: str = ""
    ) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.uid, info.gid = len(content), mode, owner, owner
        info.type, info.linkname = kind, target
        self._tar.addfile(info, io.BytesIO(content))

    def close(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def _skeleton() -> _Tar:
    tar = _Tar()
    for name in ("bin", "dev", "etc", "proc", "sys"):
        tar.directory(name)
    tar.directory("tmp", 0o1777)
    tar.directory("workspace", 0o755, NOBODY)
    tar.file("etc/passwd", PASSWD.encode())
    tar.file("etc/group", GROUP.encode())
    tar.file("etc/hosts", HOSTS.encode())
    return tar


def _minimal() -> bytes:
    busybox = debian.unpack("busybox-static") / "bin" / "busybox"
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    tar = _skeleton()
    tar.file("bin/busybox", busybox.read_bytes(), 0o755)
    for name in listed.stdout.split():
        if name != "busybox":
            tar.link(f"bin/{name}", "busybox")
    tar.link("usr", ".")  # so that /usr/bin/env and its like are found as well
    return tar.close()


def _scratch() -> bytes:
    tar = _skeleton()
    tar.file("bin/hello", elf.hello(platform.machine()), 0o755)
    return tar.close()


def _python() -> bytes:
    kept = CACHE / "images" / f"python-{PYTHON.digest[:16]}-{platform.machine()}.tar"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        _bootstrap(partial)
        partial.rename(kept)
    return kept.read_bytes()


def _bootstrap(target: Path) -> None:
    need_root("mmdebstrap", f"{REPOSITORY}:python is made by it")
    with scratch(in_memory=True) as place:
        place.chmod(0o755)  # apt downloads as a user of its own
        hooks = [
            f"printf '{PASSWD}' >\"$1\"/etc/passwd",
            f"printf '{GROUP}' >\"$1\"/etc/group",
            f"printf '{RELEASE}' >\"$1\"/etc/os-release",
            f'install -d -o {NOBODY} -g {NOBODY} "$1"/workspace',
            'rm -rf "$1"/var/lib/dpkg',  # what is there is taken for the host's
        ]
        argv = bootstrap_argv(
            variant="extract",
            packages=PYTHON_PACKAGES,
            hooks=hooks,
            sources=source_files(SUITE),
            target=target,
        )
        debian.checked(argv, env={"TMPDIR": str(place)})


MINIMAL = Image("minimal", f"busybox-static 2 {PASSWD} {GROUP} {HOSTS}", _minimal)
SCRATCH = Image("scratch", f"hello 2 {PASSWD} {GROUP} {HOSTS}", _scratch)
PYTHON = Image("python", f"{SUITE} {PYTHON_PACKAGES} 5 {PASSWD} {GROUP} {RELEASE}", _python)
IMAGES = (MINIMAL, SCRATCH, PYTHON)
