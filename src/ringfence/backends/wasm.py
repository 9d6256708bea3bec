"""Programs compiled to WebAssembly: isolation by construction, in this process.

Theory of operation. A module is compiled to machine code once, when the backend is opened, and
every command runs in a fresh instance of it: its own memory, tables and globals, freed at the
end. Such code can't name an address outside of its memory nor call anything that it does not
import. What it imports is WASI preview 1: arguments, three streams and an exit, and by default
nothing else. Files are there only below directories that were given, which the runtime opens part
by part so that no link leads out. Clock and random bytes are the same in every run unless they
are asked to be real.

A program runs on a thread of its own, outside of Python's lock, so the event loop is free. Its
streams, sleeps and exit are functions of ours, on that thread, and wake when it has to end. Its
loops look at a counter of the engine, which is moved to end it: by the clock, a kill, or the end of
the sandbox. Memory, table, stack, instance and open-file limits are the runtime's. Output past
its cap is counted and dropped where it is written; nothing of it reaches the disk.

What this does not protect against: faults of the runtime's compiler, against which there is no
second wall in this process (run the whole of it in a jail for that); timing as a side channel; a
full disk, for nobody counts what a program writes to its workspace; other programs' share of the
processor, which each may use fully until its deadline. A module that waits in the host's kernel,
for a FIFO that lies in a given directory, holds its thread until that ends.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread

from ..backend import BASE_LIMITS, Backend, Sandbox
from ..config import WasmConfig
from ..errors import (
    ConfigError,
    MissingDependencyError,
    SandboxClosedError,
    UnsupportedError,
)
from ..models import (
    Capabilities,
    Enforced,
    Enforcement,
    Isolation,
    Limits,
    Probe,
    SandboxSpec,
    new_sandbox_id,
)
from ._wasm_carriers import CARRIERS, Carrier, carrier
from ._wasm_live import LiveInterpreter
from ._wasm_loading import Loader
from ._wasm_place import Place, make_place, require_directory
from ._wasm_program import Program
from ._wasm_sandbox import WasmSandbox
from ._wasm_turns import DRIVER_ARGV, Spares
from ._wasm_world import World

__all__ = ("WasmBackend",)

_PAGE = 65536
_OPEN_FILES = 256
_NOWHERE = Place()

CAPABILITIES = Capabilities(
    isolation=Isolation.WASM,
    mounts=True,
    arbitrary_programs=False,
    limits=Enforced(
        memory_bytes=Enforcement.ENFORCED,
        pids=Enforcement.ENFORCED,
        open_files=Enforcement.ENFORCED,
    ),
    notes=(
        "It runs one program, compiled to WASI preview 1; argv[0] is a name and starts nothing.",
        "A program is one thread: it has no children, and a limit on processes always holds.",
        "Memory past the limit is refused to the program, which goes on; it is not killed.",
        "There are no signals: any that would end a process ends the program at once.",
        "Arguments and variables have to be UTF-8.",
        "CPU time is bounded by the deadline only, disk space by nothing.",
    ),
)


class WasmBackend(Backend):
    """Runs a module, or a packaged interpreter. See the module for how, and for what it can't do.

    Args:
        config: Which module, and what it may use.
    """

    name = "wasm"

    def __init__(self, config: WasmConfig | None = None) -> None:
        self._config = config or WasmConfig()
        if self._config.network != "none":
            raise ConfigError(
                f"the wasm backend has no network {self._config.network!r}",
                backend=self.name,
                hint="'none' is all that it has",
            )
        name = self._config.interpreter
        self._carrier: Carrier | None = carrier(name) if name else None
        self._loader = Loader(self._config, self._carrier)
        self._program: Program | None = None
        self._is_open = False
        self._spares: Spares | None = None
        self._plain: tuple[SandboxSpec, Limits, World] | None = None
        self._closed = False

    @classmethod
    def python(cls, *, scientific: bool = False, **settings: Any) -> Self:
        """Return a backend that runs Python.

        Args:
            scientific: The one that has NumPy and pandas, which takes minutes to compile once.
            settings: Other settings of `WasmConfig`.
        """
        name = "python-scientific" if scientific else "python"
        return cls(WasmConfig(interpreter=name, **settings))

    @classmethod
    def javascript(cls, **settings: Any) -> Self:
        """Return a backend that runs JavaScript.

        Args:
            settings: Other settings of `WasmConfig`.
        """
        return cls(WasmConfig(interpreter="javascript", **settings))

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def default_limits(self) -> Limits:
        pages = self._config.memory_limit_pages
        base = Limits(memory_bytes=pages * _PAGE, open_files=_OPEN_FILES)
        return self._config.limits.over(base).over(BASE_LIMITS)

    def _asked(self) -> frozenset[str]:
        return self._config.limits.asked()

    @property
    def interpreter_name(self) -> str:
        """The interpreter that it runs; empty if it runs a module."""
        return self._config.interpreter

    @property
    def is_prepared(self) -> bool:
        """Whether opening it would find its interpreter compiled; true of a module."""
        return self._loader.is_prepared

    async def probe(self) -> Probe:
        details = {"wasmtime": version("wasmtime")}
        for name, row in CARRIERS.items():
            try:
                row.path()
            except MissingDependencyError as error:
                details[name] = f"not installed: {error.hint}"
            else:
                details[name] = row.build
        return Probe(True, details=details)

    async def _open(self) -> None:
        fs_dir = self._config.fs_dir
        if fs_dir is not None and not Path(fs_dir).is_dir():
            raise ConfigError(f"fs_dir {str(fs_dir)!r} is not a directory", hint="make it first")
        for mount in self._config.mounts:
            require_directory(mount)
        await self.prepare()
        self._is_open = True
        if self._has_spares:
            world = self._world(SandboxSpec(), self.default_limits, Place())
            self._spares = Spares(self._require_open(), world, self._config.spares)
            self._spares.fill()

    async def prepare(self) -> None:
        """Compile the module, or fetch it compiled; opening does so too.

        Raises:
            ConfigError: It can't be run.
            MissingDependencyError: The package of its interpreter is not installed.
        """
        if self._program is None:
            limit = self.default_limits.memory_bytes or 0
            self._program = await anyio.to_thread.run_sync(self._loader.load, limit)

    @property
    def _has_spares(self) -> bool:
        """Whether CPython is started ahead; not where that would take of a program's fuel."""
        is_cpython = self._config.interpreter == "python"
        return is_cpython and self._config.fuel is None and self._config.spares > 0

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        return await self._live(spec, limits, sandbox_id, self._config.spares)

    async def _live(
        self, spec: SandboxSpec, limits: Limits, sandbox_id: str, count: int
    ) -> WasmSandbox:
        program = self._require_open()
        if self._config.fs_dir is not None:
            place = Place(root=os.path.realpath(self._config.fs_dir), owns_spares=True)
        else:
            is_interpreter = self._carrier is not None
            place = await anyio.to_thread.run_sync(make_place, sandbox_id, is_interpreter)
        spares = None
        if self._has_spares and count:
            world = self._world(spec, limits, place)
            world = world._replace(dirs=(*place.dirs(), *world.dirs))
            spares = Spares(program, world, count)
            spares.fill()
        return self._sandbox(place, spec, limits, sandbox_id, spares)

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        """Give a one-shot no files at all where none were asked for: there is nothing to make."""
        self._require_open()
        if self._config.fs_dir is not None:
            return await self.create(spec)
        if spec is not None:
            wanted, limits = self._resolve(spec)
            return self._sandbox(_NOWHERE, wanted, limits, new_sandbox_id())
        if self._plain is None:
            wanted, limits = self._resolve(None)
            self._plain = wanted, limits, self._world(wanted, limits, _NOWHERE)
        wanted, limits, world = self._plain
        return self._sandbox(_NOWHERE, wanted, limits, new_sandbox_id(), self._spares, world)

    async def interpreter(self, spec: SandboxSpec | None = None) -> LiveInterpreter:
        """Start an interpreter that keeps its variables from one turn to the next.

        Args:
            spec: What kind of sandbox to make for it; its workspace is the interpreter's.

        Raises:
            UnsupportedError: This backend runs a module and no interpreter.
        """
        row = self._carrier
        if row is None:
            raise UnsupportedError(
                "a module has no turns", backend=self.name, hint="use WasmBackend.python()"
            )
        sandbox = await self._live(*self._resolve(spec), new_sandbox_id(), 0)
        argv = DRIVER_ARGV if row.turns is None else (row.interpreter.encode(),)
        resident = sandbox.resident(argv, row.turns)
        return LiveInterpreter(sandbox, resident, is_cpython=row.turns is None)

    def _require_open(self) -> Program:
        if self._closed:
            raise SandboxClosedError("the backend is closed", backend=self.name)
        if not self._is_open or self._program is None:
            raise SandboxClosedError("the backend is not open", backend=self.name)
        return self._program

    def _sandbox(
        self,
        place: Place,
        spec: SandboxSpec,
        limits: Limits,
        sandbox_id: str,
        spares: Spares | None = None,
        world: World | None = None,
    ) -> WasmSandbox:
        program = self._require_open()
        return WasmSandbox(
            program,
            world or self._world(spec, limits, place),
            place,
            spec=spec,
            limits=limits,
            capabilities=self.capabilities,
            sandbox_id=sandbox_id,
            spares=spares,
        )

    def _world(self, spec: SandboxSpec, limits: Limits, place: Place) -> World:
        for mount in spec.mounts:
            require_directory(mount)
        dirs = [(mount.source, mount.target, False) for mount in self._config.mounts + spec.mounts]
        if self._loader.library is not None:
            dirs.append((self._loader.library, "/usr/local/lib", False))
        return World(
            argv=(),
            env=tuple((name.encode(), value.encode()) for name, value in place.env),
            dirs=tuple(dirs),
            memory_bytes=limits.memory_bytes or 0,
            table_elements=self._config.table_elements,
            open_files=limits.open_files or _OPEN_FILES,
            fuel=self._config.fuel,
        )

    async def reap(self) -> int:
        return 0  # a program dies with this process, whatever ends it

    async def aclose(self) -> None:
        self._closed = True
        self._program = None
        if self._spares is not None:
            self._spares.close()
