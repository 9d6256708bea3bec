"""A workspace out of a container and into a store, and what a large one costs in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from secrets import token_hex

import anyio.to_thread

from ringfence import export_workspace, open_backend
from ringfence.backend import Sandbox
from ringfence.export import ExportLimits
from ringfence.models import Command
from ringfence.storage import ArtifactStore, LocalStore, S3StoreConfig, open_store

from ..measure import TOTAL, Side, Times, alternate, check, summarize
from ..report import Line, compare
from ..settings import Settings
from .output import PeakMemory

__all__ = ("IMAGE", "plain_container", "run")

IMAGE = "ringfence-test:minimal"
"""What its own containers run and ours too."""

_LABEL = "ringfence-benchmark"
_FILES = 1000
_SIZE = 100_000
_LARGE_FILE = 50 << 20
_GROWTH_LIMIT = 64.0  # MiB
_RATE = 1 / 3  # of the time that the other way takes
_COPY = "docker cp, then uploading one by one"
_MAKE = (
    f"mkdir -p t && head -c {_SIZE} /dev/urandom > t/0 && i=1 && "
    f"while [ $i -lt {_FILES} ]; do cp t/0 t/$i; i=$((i+1)); done"
)
_S3 = tuple(
    f"RINGFENCE_TEST_S3_{word}" for word in ("ENDPOINT", "BUCKET", "ACCESS_KEY", "SECRET_KEY")
)


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure many small files out of a container, and a large workspace out of a directory."""
    with tempfile.TemporaryDirectory() as scratch:
        lines = await _containers(settings, not_run, Path(scratch))
        if PeakMemory.works():
            lines.append(await _large(settings, Path(scratch)))
        else:
            not_run.append("this process's growth: /proc/self/clear_refs can't be written")
    return lines


async def _containers(settings: Settings, not_run: list[str], scratch: Path) -> list[Line]:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "image", "inspect", IMAGE], capture_output=True).returncode
    ):
        not_run.append(f"out of a container: there is no docker command with {IMAGE}")
        return []
    stores = ["a directory"]
    if all(map(os.environ.get, _S3)):
        stores.append("S3")
    else:
        not_run.append("into S3: RINGFENCE_TEST_S3_ENDPOINT and the like are not set")
    config = {"backend": "container", "image": IMAGE, "cpus": 2.0, "memory_bytes": 512 << 20}
    lines = []
    async with open_backend(config) as backend, await backend.create() as sandbox:
        made = await sandbox.exec(Command(["sh", "-c", _MAKE], timeout=300))
        check(made.ok, made.stderr_text)
        with plain_container(docker) as name:
            inside = f"mkdir -p /workspace && cd /workspace && {_MAKE}"
            subprocess.run([docker, "exec", name, "sh", "-c", inside], check=True)
            for where in stores:
                used: list[ArtifactStore] = []
                sides = {
                    "ours": _ours(sandbox, where, scratch, used),
                    _COPY: _theirs(docker, name, where, scratch, used),
                }
                taken = await alternate(sides, settings.rounds(7, 2), warm_up=1)
                # Only now: ext4 is slow to make files where some were removed a moment ago.
                for store in used:
                    await _empty(store)
                what = f"{_FILES:,} files of {_SIZE // 1000} kB into {where}"
                lines.append(compare(what, taken, limit=_RATE))
    return lines


@contextmanager
def plain_container(docker: str) -> Iterator[str]:
    """Give the name of a container that is not ours, with its own file system: cp sees no other."""
    name = f"{_LABEL}-{token_hex(4)}"
    run = (docker, "run", "-d", "--label", _LABEL, "--name", name, "--network=none")
    subprocess.run([*run, IMAGE, "sleep", "3600"], check=True, stdout=subprocess.DEVNULL)
    try:
        yield name
    finally:
        subprocess.run([docker, "rm", "-f", name], check=True, stdout=subprocess.DEVNULL)


_numbers = count()


def _new_store(where: str, scratch: Path, used: list[ArtifactStore]) -> ArtifactStore:
    """Return an empty store, noted in `used`: a second export would bring nothing."""
    store: ArtifactStore
    if where == "S3":
        endpoint, bucket, key, secret = (os.environ[name] for name in _S3)
        prefix = f"benchmark-{token_hex(6)}"
        store = open_store(
            S3StoreConfig(bucket, prefix, endpoint, access_key_id=key, secret_access_key=secret)
        )
    else:
        store = LocalStore(scratch / f"store-{next(_numbers)}")
    used.append(store)
    return store


async def _empty(store: ArtifactStore) -> None:
    for key in [item.key async for item in store.list()]:
        await store.delete(key)


def _ours(sandbox: Sandbox, where: str, scratch: Path, used: list[ArtifactStore]) -> Side:
    async def side() -> Times:
        store = _new_store(where, scratch, used)
        began = time.perf_counter()
        report = await export_workspace(sandbox, store, prefix="tenant/execution")
        took = time.perf_counter() - began
        check(report.total_bytes == _FILES * _SIZE, f"{report.total_bytes} bytes came out")
        return {TOTAL: took}

    return side


def _theirs(docker: str, name: str, where: str, scratch: Path, used: list[ArtifactStore]) -> Side:
    async def side() -> Times:
        store = _new_store(where, scratch, used)
        out = scratch / f"copied-{next(_numbers)}"
        began = time.perf_counter()
        copy = [docker, "cp", f"{name}:/workspace", str(out)]
        await anyio.to_thread.run_sync(
            lambda: subprocess.run(copy, check=True, stderr=subprocess.DEVNULL)
        )
        copied = time.perf_counter() - began
        size = 0
        for path in sorted((out / "t").iterdir()):
            stored = await store.put(f"tenant/execution/{path.name}", path.read_bytes())
            size += stored.size
        took = time.perf_counter() - began
        check(size == _FILES * _SIZE, f"{size} bytes were uploaded")
        return {TOTAL: took, "copy": copied}

    return side


async def _large(settings: Settings, scratch: Path) -> Line:
    """Measure this process's growth; the workspace is a directory, for memory would not hold it."""
    files = 8 if settings.quick else 100
    workspace = scratch / "workspace"
    workspace.mkdir()
    block = os.urandom(1 << 20)
    for number in range(files):
        with open(workspace / f"{number}", "wb") as file:
            for _ in range(_LARGE_FILE >> 20):
                file.write(block)
    async with (
        open_backend({"backend": "process", "work_dir": str(workspace)}) as backend,
        await backend.create() as sandbox,
    ):
        peak = PeakMemory()
        began = time.perf_counter()
        report = await export_workspace(
            sandbox, scratch / "large", ExportLimits(total_bytes=1 << 40)
        )
        took = time.perf_counter() - began
        growth = peak.growth()
    size = files * _LARGE_FILE
    check(report.total_bytes == size, f"{report.total_bytes} bytes of {size} came out")
    return Line(
        f"growth of this process, {size / 1e9:.1f} GB exported",
        summarize([growth]),
        unit="MiB",
        limit=_GROWTH_LIMIT,
        note=f"into a directory, {size / took / 1e6:,.0f} MB/s",
    )
