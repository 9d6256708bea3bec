"""The images of a cluster: those that the engine's tests run, and one that does nothing.

They are given to the node as one archive, of the kind that `docker save` writes, so neither an
engine nor a registry is asked.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path

from . import elf, images
from .steps import CACHE, step

PAUSE_NAME = f"localhost/{images.REPOSITORY}:pause"
"""The image that holds a pod's namespaces, by a whole name, which the runtime wants."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive() -> Path:
    """Return the archive, made if the one that is kept is of other recipes."""
    recipes = PAUSE_NAME + "".join(image.digest for image in (*images.IMAGES, PAUSE))
    digest = hashlib.sha256(recipes.encode()).hexdigest()
    kept = CACHE / "images" / f"cluster-{digest[:16]}-{platform.machine()}.tar"
    if not kept.is_file():
        images.install()
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        with step("kubernetes: made its images"):
            layers = {image.name: image.make() for image in images.IMAGES}
            write(partial, {**layers, PAUSE_NAME: PAUSE.make()})
        partial.rename(kept)
    return kept


def write(path: Path, layers: Mapping[str, bytes]) -> None:
    """Write an archive of images with one layer each, from their names and files (a tar)."""
    with tarfile.open(path, "w") as tar:
        manifest = []
        for name, layer in layers.items():
            digest = hashlib.sha256(layer).hexdigest()
            config = json.dumps(_config(digest)).encode()
            named = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(tar, f"{digest}.tar", layer)
            _add(tar, named, config)
            manifest.append({"Config": named, "RepoTags": [name], "Layers": [f"{digest}.tar"]})
        _add(tar, "manifest.json", json.dumps(manifest).encode())


def _config(layer: str) -> dict[str, object]:
    machine = platform.machine()
    return {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Env": [f"PATH={images.PATH}"], "WorkingDir": "/workspace", "Cmd": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
    }


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _pause() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("pause")
        program = elf.pause(platform.machine())
        info.size, info.mode = len(program), 0o755
        tar.addfile(info, io.BytesIO(program))
    return buffer.getvalue()


PAUSE = images.Image("pause", "pause 1", _pause)
