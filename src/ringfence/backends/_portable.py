"""Sandboxes of the process backend where there is no warden: asyncio and process groups.

Each command is a child of this process and leads a session and process group of its own. The
host's event loop reads its pipes, holds its deadline and signals its group. A process that leaves
the group, by `setsid`, is out of reach: it survives a deadline, a kill and the sandbox. On Windows
there are no groups at all, and only the main process of a command can be ended.

What a command leaves running keeps its pipes: they are read and dropped until the sandbox ends,
so that a server that logs is not killed by a closed pipe. This isolates nothing: the program has
the rights of the user who runs it, sees the host's files and can reach the network.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from .. import host_files
from ..backend import command_cwd
from ..errors import SandboxError, WorkspaceError
from ..models import Capabilities, Isolation, Limits, SandboxSpec
from ..process import Launch
from ._on_host import SandboxOnHost
from ._portable_process import PortableProcess
from ._portable_spawn import spawn

__all__ = ("PORTABLE_CAPABILITIES", "PortableSandbox")

PORTABLE_CAPABILITIES = Capabilities(
    isolation=Isolation.PROCESS,
    kill_tree=False,
    network_modes=("host",),
    notes=(
        "There is no boundary: programs have the rights and see the files of their user.",
        "Programs have the host's network.",
        "A process that leaves its group (setsid, a daemon) survives kills and the sandbox.",
        "On Windows only the main process of a command is ended, not its children.",
        "No limit on memory, CPU, processes, files or disk is enforced.",
        "CPU time, peak memory and the reason out_of_memory can't be told.",
        "If this process is killed, running commands live on.",
        "It runs on asyncio only.",
    ),
)

_WINDOWS_VARIABLES = ("COMSPEC", "PATHEXT", "SYSTEMDRIVE", "SYSTEMROOT", "WINDIR")
"""What programs can't start without on Windows."""

_T = TypeVar("_T")


class PortableSandbox(SandboxOnHost):
    """A directory of the host in which commands are run as children of this process.

    Args:
        spec: What was asked for.
        limits: The limits in force; only the clock's are held.
        sandbox_id: Its name.
        work_dir: The directory that is its workspace; it must exist.
        owns_work_dir: Whether to remove it at the end.
        scratch: A private directory with `home` and `tmp` in it, removed at the end.
    """

    backend = "process"
    capabilities = PORTABLE_CAPABILITIES

    def __init__(
        self,
        spec: SandboxSpec,
        limits: Limits,
        sandbox_id: str,
        work_dir: str,
        owns_work_dir: bool,
        scratch: str,
    ) -> None:
        self.spec = spec
        self.limits = limits
        self.id = sandbox_id
        self.workspace = work_dir
        self._owns_work_dir = owns_work_dir
        self._cause = None
        self._closed = False
        self._processes: set[PortableProcess] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._end_task: asyncio.Task[None] | None = None
        self._scratch = scratch
        loop = asyncio.get_running_loop()
        age = limits.max_age
        self._clock = loop.call_later(age, _too_old, weakref.ref(self)) if age else None

    async def aclose(self) -> None:
        """End every command that is known, and remove what is the sandbox's own."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._end()

    async def _start(self, launch: Launch) -> PortableProcess:
        self._require_open()
        self._processes = {process for process in self._processes if not process.over}
        starting = self._run(self._spawn(launch))
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It may have started all the same, and nobody would get it to end it.
            with anyio.CancelScope(shield=True):
                await asyncio.shield(self._run(_abandon(starting, self._ended())))
            raise
        self._processes.add(process)
        if self._end_task is not None:
            await process.aclose(self._ended())
            self._require_open()
        return process

    async def _spawn(self, launch: Launch) -> PortableProcess:
        place = command_cwd(launch.command, self.workspace)
        try:
            with host_files.held_directory(self.workspace, place) as cwd:
                return await spawn(launch, self._environment(launch), cwd)
        except WorkspaceError as error:
            error.backend = self.backend
            raise

    async def _destroy(self, cause: str) -> None:
        self._cause = self._cause or cause
        await self._end()

    @property
    def _root(self) -> str:
        return self.workspace

    def _environment(self, launch: Launch) -> dict[bytes, bytes]:
        """Return the few variables that a program needs, and the caller's."""
        home, tmp = os.path.join(self._scratch, "home"), os.path.join(self._scratch, "tmp")
        plain = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": home,
            "TMPDIR": tmp,
            "XDG_CACHE_HOME": os.path.join(home, ".cache"),
            "MPLCONFIGDIR": os.path.join(home, ".cache", "matplotlib"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        if sys.platform == "win32":
            plain |= {"TEMP": tmp, "TMP": tmp, "USERPROFILE": home}
            plain |= {name: os.environ.get(name, "") for name in _WINDOWS_VARIABLES}
        env = {os.fsencode(name): os.fsencode(value) for name, value in plain.items()}
        return env | dict(launch.command.env_bytes)

    async def _end(self) -> None:
        if self._end_task is None:
            self._end_task = asyncio.get_running_loop().create_task(self._end_all())
        await asyncio.shield(self._end_task)

    async def _end_all(self) -> None:
        if self._clock:
            self._clock.cancel()
        running, self._processes = self._processes, set()
        await asyncio.gather(*(process.aclose(self._ended()) for process in running))
        await anyio.to_thread.run_sync(self._remove)

    def _remove(self) -> None:
        if self._owns_work_dir and os.path.isdir(self.workspace):
            host_files.remove_tree(self.workspace)
        if os.path.isdir(self._scratch):
            host_files.remove_tree(self._scratch)

    def _run(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)


def _too_old(held: weakref.ref[PortableSandbox]) -> None:
    # The clock may not keep a sandbox alive that everybody has forgotten: that must be told.
    if sandbox := held():
        sandbox._cause = "it reached its maximum age"
        _ = sandbox._run(sandbox._end())


async def _abandon(starting: asyncio.Task[PortableProcess], error: SandboxError) -> None:
    with suppress(SandboxError):
        await (await starting).aclose(error)
