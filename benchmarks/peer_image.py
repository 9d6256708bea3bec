"""An image for a package that wants a part of its own inside of its containers.

No registry is asked: what is installed on the host, for the Python that Debian's images have, goes
into an image that the engine has.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

from ringfence.config import ContainerConfig

from .engine import PlainEngine
from .peer import CACHE, INSTALL_SECONDS, Peer, PeerError, last_line

__all__ = ("base_image", "with_package")

_TEST_IMAGE = "ringfence-test:python"
_PYTHON = "3.11"  # of Debian 12, which both images are made of
_INSIDE = "/opt/peer"


def base_image(engine: PlainEngine) -> str:
    """Return an image with Python, a shell and a user root.

    Raises:
        PeerError: The engine has neither ours nor that of the tests.
    """
    for name in (ContainerConfig().image, _TEST_IMAGE):
        if engine.has_image(name):
            return name
    raise PeerError("it needs an image with Python and a shell: `ringfence image build` makes one")


def with_package(engine: PlainEngine, peer: Peer, program: str, module: str) -> str:
    """Return an image in which a package's own program can be run.

    Args:
        engine: Where it is made.
        peer: The package.
        program: The program.
        module: The module whose `main` it is.

    Raises:
        PeerError: It can't be made.
    """
    base, name = base_image(engine), f"ringfence-benchmark:{peer.name}-{peer.version}"
    files = _packages(peer)
    lines = [
        f"FROM {base}",
        "USER 0",
        f"COPY packages {_INSIDE}",
        f"COPY {program} /usr/local/bin/",
    ]
    lines += [f"ENV PYTHONPATH={_INSIDE}", "ENV PATH=/usr/local/bin:/usr/bin:/bin"]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(files, "packages")
        _add(tar, "Dockerfile", "\n".join(lines))
        _add(tar, program, f"#!/usr/bin/python3\nfrom {module} import main\nmain()\n")
    engine.build(name, buffer.getvalue())
    return name


def _add(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text), 0o755
    tar.addfile(info, io.BytesIO(text.encode()))


def _packages(peer: Peer) -> Path:
    """Return a directory with the package and all that it needs, for the Python inside."""
    place = CACHE / f"{peer.name}-{peer.version}-inside"
    done = place / "installed"
    if done.exists():
        return place
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
        "--upgrade",
    ]
    wanted = ["--target", str(place), "--python-version", _PYTHON, "--only-binary", ":all:"]
    run = subprocess.run(
        [*pip, *wanted, f"{peer.name}=={peer.version}"],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
    )
    if run.returncode:
        raise PeerError(f"it can't be installed: {last_line(run.stderr)}")
    done.touch()
    return place
