"""A WASM sandbox: a directory of the host, and programs that see it and nothing else."""

from __future__ import annotations

import logging
import os
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import anyio
import anyio.to_thread

from .. import host_files
from ..backend import command_cwd
from ..errors import SandboxClosedError, SandboxError, WorkspaceError
from ..models import Capabilities, Exit, Limits, SandboxSpec
from ..process import Launch
from ._on_host import SandboxOnHost
from ._wasm_guest import Guest
from ._wasm_place import Place
from ._wasm_process import WasmProcess
from ._wasm_program import Entry, Program
from ._wasm_threads import alarms
from ._wasm_turns import Resident, Spares
from ._wasm_world import World

__all__ = ("WasmSandbox",)

_END_SECONDS = 1.0
"""How long closing waits for programs to end; one that hangs in the host's kernel is left."""

_log = logging.getLogger(__name__)


class WasmSandbox(SandboxOnHost):
    """Runs one program, each time in a fresh instance, with a workspace that stays.

    Args:
        program: What every command runs.
        world: What each run gets, but for the command's own.
        place: Its files.
        spec: What was asked for.
        limits: The limits in force.
        capabilities: Those of its backend.
        sandbox_id: Its name.
        spares: Interpreters that have been started for it.
    """

    backend = "wasm"
    keeps_deadlines = True

    def __init__(
        self,
        program: Program,
        world: World,
        place: Place,
        *,
        spec: SandboxSpec,
        limits: Limits,
        capabilities: Capabilities,
        sandbox_id: str,
        spares: Spares | None = None,
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.limits = limits
        self.capabilities = capabilities
        self.workspace = place.inside
        self._program = program
        self._world = world
        self._place = place
        self._spares = spares
        self._owns_spares = place.owns_spares
        self._cause = None
        self._closed = False
        self._is_removed = place.scratch is None
        self._processes: set[WasmProcess] = set()
        # A one-shot has no files and one command, which has a deadline of its own.
        age = None if place.root is None else limits.max_age
        # The clock may not keep a sandbox alive that everybody has forgotten: that must be told.
        held = weakref.ref(self)
        self._alarm = None if age is None else alarms().set(age, lambda: _too_old(held))

    async def aclose(self) -> None:
        self._closed = True
        if not self._processes and self._is_removed and not self._owns_spares:
            return  # a one-shot's command has ended, and it had nothing else
        with anyio.CancelScope(shield=True):
            await self._end(SandboxClosedError(f"sandbox {self.id} is closed", backend="wasm"))

    async def _start(self, launch: Launch) -> WasmProcess:
        self._require_open()
        is_home = command_cwd(launch.command, self.workspace) == b"."
        process = self._spares.start(launch) if self._spares is not None and is_home else None
        is_new = process is None
        if process is None:
            process = WasmProcess(self._program.engine, launch, self._program.traits)
        self._processes.add(process)
        process.on_end(partial(self._processes.discard, process))
        if process.is_over:
            self._processes.discard(process)
        if is_new:
            process.start(partial(self._run, launch))
        return process

    def _run(self, launch: Launch, guest: Guest) -> Exit:
        """Run a command; on its own thread."""
        command = launch.command
        world = self._world._replace(argv=command.argv_bytes)
        if command.env_bytes:
            env = {**dict(world.env), **dict(command.env_bytes)}
            world = world._replace(env=tuple(env.items()))
        if self._place.root is None:
            return self._program.run(guest, world)
        with self._dirs(launch, self._place.root) as dirs:
            return self._program.run(guest, world._replace(dirs=(*dirs, *world.dirs)))

    @contextmanager
    def _dirs(self, launch: Launch, root: str) -> Iterator[list[tuple[str, str, bool]]]:
        """Hold the directories that a command sees; relative paths begin at its cwd."""
        with ExitStack() as stack:
            cwd = command_cwd(launch.command, self.workspace)
            try:
                here = stack.enter_context(host_files.held_directory(root, cwd))
            except WorkspaceError as error:
                error.backend = self.backend
                raise
            first, *rest = self._place.dirs()
            yield [(here, *first[1:]), *rest]

    def resident(self, argv: tuple[bytes, ...], entry: Entry | None) -> Resident:
        """Start an interpreter that waits for its turns and sees this sandbox's files."""
        self._require_open()
        dirs = (*self._place.dirs(), *self._world.dirs)
        return Resident(self._program, self._world._replace(argv=argv, dirs=dirs), entry)

    async def _destroy(self, cause: str) -> None:
        self._set_cause(cause)
        await self._end(self._ended())

    def _set_cause(self, cause: str) -> None:
        self._cause = self._cause or cause

    @property
    def _root(self) -> str:
        assert self._place.root is not None
        return self._place.root

    async def _end(self, error: SandboxError) -> None:
        if self._alarm is not None:
            alarms().cancel(self._alarm)
        if self._spares is not None and self._owns_spares:
            self._spares.close()
        running = list(self._processes)
        self._processes.clear()  # none is waited for twice
        for process in running:
            process.lose(error)
        if running or not self._is_removed:
            await anyio.to_thread.run_sync(self._remove, running)

    def _remove(self, running: list[WasmProcess]) -> None:
        deadline = time.monotonic() + _END_SECONDS
        for process in running:
            if not process.wait_ended(max(0.0, deadline - time.monotonic())):
                _log.warning("a program of sandbox %s hangs in a call of the host", self.id)
        if not self._is_removed:
            self._is_removed = True
            assert self._place.scratch is not None
            if os.path.isdir(self._place.scratch):
                host_files.remove_tree(self._place.scratch)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._place.scratch is not None:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=1)


def _too_old(held: weakref.ref[WasmSandbox]) -> None:
    """End what runs in a sandbox whose time is up; its files are removed when it is closed."""
    if sandbox := held():
        sandbox._set_cause("it reached its maximum age")
        for process in list(sandbox._processes):
            process.lose(sandbox._ended())
