"""Many small files into a workspace, against `docker cp` and against one write for each."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import anyio.to_thread

from ringfence import import_files, open_backend
from ringfence.backend import Sandbox
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.incoming import Source

from ..hardening import check_sandbox
from ..measure import TOTAL, Side, Times, alternate, check
from ..report import Line, compare
from ..settings import Settings
from .exports import IMAGE, plain_container

__all__ = ("run",)

_FILES = 1000
_SIZE = 1000
_numbers = count()


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure a tree of small files, in directories of a hundred."""
    files = {f"{n // 100}/{n}": os.urandom(_SIZE) for n in range(_FILES)}
    what = f"{_FILES:,} files of {_SIZE // 1000} kB"
    rounds = settings.rounds(10, 1)
    lines = []
    async with BubblewrapBackend() as backend, await backend.create() as sandbox:
        await check_sandbox(sandbox)
        sides = {"ours": _ours(sandbox, files), "one write_file() each": _each(sandbox, files)}
        lines.append(compare(f"{what} into a jail", await alternate(sides, rounds)))
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "image", "inspect", IMAGE], capture_output=True).returncode
    ):
        not_run.append(f"into a container: there is no docker command with {IMAGE}")
        return lines
    with tempfile.TemporaryDirectory() as scratch, plain_container(docker) as name:
        tree = Path(scratch, "tree")
        for path, content in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        config = {"backend": "container", "image": IMAGE, "cpus": 2.0, "memory_bytes": 512 << 20}
        async with open_backend(config) as engine, await engine.create() as sandbox:
            sides = {"ours": _ours(sandbox, tree), "docker cp": _copied(docker, name, tree)}
            taken = await alternate(sides, rounds)
            lines.append(compare(f"a directory of {what} into a container", taken, limit=1.0))
    return lines


def _ours(sandbox: Sandbox, source: Source) -> Side:
    async def side() -> Times:
        into = f"t{next(_numbers)}"
        began = time.perf_counter()
        report = await import_files(sandbox, source, into=into)
        took = time.perf_counter() - began
        check(len(report.paths) == _FILES, f"{len(report.paths)} files came in")
        await _check_there(sandbox, into)
        return {TOTAL: took}

    return side


def _each(sandbox: Sandbox, files: Mapping[str, bytes]) -> Side:
    async def side() -> Times:
        into = f"t{next(_numbers)}"
        began = time.perf_counter()
        for path, content in files.items():
            await sandbox.write_file(f"{into}/{path}", content)
        took = time.perf_counter() - began
        await _check_there(sandbox, into)
        return {TOTAL: took}

    return side


async def _check_there(sandbox: Sandbox, into: str) -> None:
    found = (await sandbox.list_files(f"{into}/9")).entries
    check([info.size for info in found] == [_SIZE] * 100, f"{len(found)} files are there")
    await sandbox.remove(into)


def _copied(docker: str, name: str, tree: Path) -> Side:
    async def side() -> Times:
        into = f"/t{next(_numbers)}"
        began = time.perf_counter()
        copy = [docker, "cp", str(tree), f"{name}:{into}"]
        await anyio.to_thread.run_sync(
            lambda: subprocess.run(copy, check=True, stderr=subprocess.DEVNULL)
        )
        took = time.perf_counter() - began
        script = f"ls {into}/9 | wc -l && rm -r {into}"
        listed = subprocess.run(
            [docker, "exec", name, "sh", "-c", script], check=True, capture_output=True, text=True
        )
        check(listed.stdout.strip() == "100", f"{listed.stdout!r} files are there")
        return {TOTAL: took}

    return side
