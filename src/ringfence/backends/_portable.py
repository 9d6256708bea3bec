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
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Literal, ParamSpec, TypeVar

import anyio
import anyio.to_thread

from .. import host_files
from ..backend import Sandbox, command_cwd
from ..errors import SandboxClosedError, SandboxError, SandboxLostError, WorkspaceError
from ..models import Capabilities, FileInfo, Isolation, Limits, SandboxSpec
from ..process import Launch
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

_P = ParamSpec("_P")
_T = TypeVar("_T")


class PortableSandbox(Sandbox):
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
        self._cause: str | None = None
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

    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        await self._files(host_files.write_file, self.workspace, path, data, mode, append)

    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        return await self._files(host_files.read_file, self.workspace, path, offset, max_bytes)

    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        return await self._files(host_files.list_files, self.workspace, path, max_entries)

    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        if operation == "stat":
            return await self._files(host_files.stat, self.workspace, path)
        if operation == "move":
            await self._files(host_files.move, self.workspace, path, target)
        else:
            work = host_files.make_dir if operation == "make_dir" else host_files.remove
            await self._files(work, self.workspace, path)
        return None

    async def _files(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        self._require_open()
        return await self._in_thread(work, *args, **kwargs)

    async def _in_thread(self, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        assert not kwargs
        try:
            return await anyio.to_thread.run_sync(work, *args)
        except WorkspaceError as error:
            error.backend = self.backend
            raise

    def _require_open(self) -> None:
        if self._closed or self._cause is not None:
            raise self._ended()

    def _ended(self) -> SandboxError:
        if self._closed or self._cause is None:
            return SandboxClosedError(f"sandbox {self.id} is closed", backend=self.backend)
        return SandboxLostError(
            f"sandbox {self.id} was ended: {self._cause}",
            cause=self._cause,
            backend=self.backend,
            hint="make a new one",
        )

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
