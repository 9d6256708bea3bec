"""One run of a module: a store with its limits, a fresh instance in it, the call, and the end.

Everything here blocks and runs on the program's own thread. The store is freed at the end of the
run whatever happens, and with it all that the program had: memory, tables, open files.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import wasmtime

from ..errors import ConfigError, SandboxLostError
from ..models import Exit, ExitReason, Usage
from ._wasm_ends import ended, stopped
from ._wasm_engine import Engine, WasmModule, first_line
from ._wasm_ffi import NO_FINALIZER, ffi
from ._wasm_files import FileLinker, export
from ._wasm_guest import Guest, Traits
from ._wasm_host import define_host, running_as
from ._wasm_world import World, limit, show

__all__ = ("Calls", "EndedError", "Entry", "Program", "command")


class EndedError(Exception):
    """The call came to no return."""

    def __init__(self, exit_: Exit) -> None:
        super().__init__(exit_.message)
        self.exit = exit_


@dataclass
class Calls:
    """An instance, as whoever starts its program sees it."""

    context: Any
    instance: Any
    guest: Guest
    _found: dict[str, Any] = field(default_factory=dict)

    def call(self, name: str, *args: tuple[str, int]) -> int:
        """Call one of its functions and return what that returned, or 0.

        Args:
            name: The function's; it must be there.
            args: `i32` or `i64`, and a value, for each parameter.

        Raises:
            EndedError: The program ended in it.
        """
        function = self._found.get(name)
        if function is None:
            function = self._found[name] = export(self.context, self.instance, name)
            assert function is not None, name  # it was looked for when the module was opened
        given = (ffi.wasmtime_val_t * len(args))()
        for slot, (kind, value) in zip(given, args, strict=True):
            slot.kind = (ffi.WASMTIME_I64 if kind == "i64" else ffi.WASMTIME_I32).value
            setattr(slot.of, kind, value)
        results = (ffi.wasmtime_val_t * 1)()
        count = 0 if name == "_start" else _results(self.context, function)
        trap = ctypes.POINTER(ffi.wasm_trap_t)()
        error = ffi.wasmtime_func_call(
            self.context, ctypes.byref(function.of.func), given, len(args), results, count,
            ctypes.byref(trap),
        )  # fmt: skip
        if error or trap:
            thrown = bool(ffi.wasmtime_context_has_exception(self.context))
            raise EndedError(ended(self.guest, error, trap, thrown=thrown))
        if count == 0:
            return 0
        is_long = results[0].kind == ffi.WASMTIME_I64.value
        return int(results[0].of.i64 if is_long else results[0].of.i32)

    def set_global(self, name: str, value: int) -> None:
        """Set one of its 32-bit globals; it must be there."""
        item = export(self.context, self.instance, name)
        given = ffi.wasmtime_val_t()
        given.kind, given.of.i32 = ffi.WASMTIME_I32.value, value
        error = ffi.wasmtime_global_set(
            self.context, ctypes.byref(item.of.global_), ctypes.byref(given)
        )
        assert not error, name

    def write(self, at: int, data: bytes) -> None:
        """Put bytes into its memory."""
        base, total = self._memory()
        if not 0 < at <= at + len(data) <= total:
            raise SandboxLostError("an interpreter gave an address outside of its memory")
        ctypes.memmove(base + at, data, len(data))

    @property
    def memory_bytes(self) -> int:
        """How much memory it has; that never shrinks."""
        return self._memory()[1]

    def _memory(self) -> tuple[int, int]:
        item = export(self.context, self.instance, "memory")
        if item is None or item.kind != ffi.WASMTIME_EXTERN_MEMORY.value:
            return 0, 0
        memory = ctypes.byref(item.of.memory)
        data = ctypes.cast(ffi.wasmtime_memory_data(self.context, memory), ctypes.c_void_p)
        return data.value or 0, int(ffi.wasmtime_memory_data_size(self.context, memory))


Entry = Callable[[Calls, World], int]
"""Runs an instance's program and returns its exit code."""


def command(calls: Calls, _: World) -> int:
    """Run a command of WASI preview 1."""
    return calls.call("_start")


class Program:
    """A module that is ready to be run, any number of times and at the same time."""

    def __init__(
        self, engine: Engine, module: WasmModule, traits: Traits, entry: Entry = command
    ) -> None:
        self.engine = engine
        self.module = module
        self.traits = traits
        self._entry = entry
        linker = wasmtime.Linker(engine.engine)
        linker.define_wasi()
        linker.allow_shadowing = True
        self._kept = linker, define_host(linker, traits)
        try:
            self._pre = linker.instantiate_pre(module.module)
        except wasmtime.WasmtimeError as error:
            raise ConfigError(
                f"the module imports what no WASI host has: {first_line(error)}",
                backend="wasm",
                hint="build it for wasm32-wasip1",
            ) from None
        self._with_files = FileLinker(engine, module.module, traits)

    def run(self, guest: Guest, world: World, entry: Entry | None = None) -> Exit:
        """Run the program in a fresh instance to its end.

        Raises:
            LimitError: It can't even begin within its limits.
            UnsupportedError: An argument or a variable is not UTF-8.
        """
        began = time.thread_time()
        if not self._take_slot(guest):
            return stopped(guest)
        try:
            with running_as(guest):
                exit_, memory = self._run(guest, world, entry or self._entry)
        finally:
            self.engine.slots.release()
        if guest.fault is not None:
            raise guest.fault
        if guest.turns is not None:
            began = guest.turns.cpu_began or began
        usage = Usage(time.thread_time() - began, memory)
        return Exit(
            exit_.code, exit_.reason, guest.seen["stdout"], guest.seen["stderr"], usage,
            exit_.message,
        )  # fmt: skip

    def turn_exit(self, guest: Guest, status: int) -> Exit:
        """Return the end of a turn; asked on the program's thread."""
        assert guest.turns is not None
        usage = Usage(time.thread_time() - guest.turns.cpu_began)
        return Exit(status, ExitReason.EXITED, guest.seen["stdout"], guest.seen["stderr"], usage)

    def _take_slot(self, guest: Guest) -> bool:
        """Wait until there is room for one more instance; False if the program has to end first."""
        if self.engine.slots.acquire(blocking=False):
            return True
        while not self.engine.slots.acquire(timeout=0.05):
            if guest.stopped:
                return False
        return True

    def _run(self, guest: Guest, world: World, entry: Entry) -> tuple[Exit, int]:
        store = ffi.wasmtime_store_new(self.engine.engine.ptr(), None, NO_FINALIZER)
        try:
            context = ffi.wasmtime_store_context(store)
            limit(store, context, world)
            show(context, world)
            if guest.stopped:  # asked after the deadline was set: a stop before that moved nothing
                return stopped(guest), 0
            instance = ffi.wasmtime_instance_t()
            trap = ctypes.POINTER(ffi.wasm_trap_t)()
            fault = self._instantiate(context, world, instance, trap)
            if fault or trap:
                return ended(guest, fault, trap), 0
            calls = Calls(context, instance, guest)
            try:
                code = entry(calls, world)
                exit_ = Exit(code, ExitReason.EXITED)
            except EndedError as error:
                exit_ = error.exit
            return exit_, calls.memory_bytes
        finally:
            ffi.wasmtime_store_delete(store)

    def _instantiate(self, context: Any, world: World, instance: Any, trap: Any) -> Any:
        if world.dirs:
            return self._with_files.instantiate(context, world.open_files, instance, trap)
        return ffi.wasmtime_instance_pre_instantiate(
            self._pre.ptr(), context, ctypes.byref(instance), ctypes.byref(trap)
        )


def _results(context: Any, function: Any) -> int:
    kind = ffi.wasmtime_func_type(context, ctypes.byref(function.of.func))
    count = int(ffi.wasm_functype_results(kind).contents.size)
    ffi.wasm_functype_delete(kind)
    return count
