"""The WASM runtime: engines, compiling, and what a module must be to be run.

One engine serves all backends of this process that agree on its few settings. Its allocator
keeps slots for instances ready, so that a fresh one costs microseconds. Every store has an epoch
callback, which is asked only when the engine's epoch moves: that happens when some run has to
stop, and every other run is told to go on. So a run that is not stopped pays for nothing but the
checks in its loops.

The Python package of the runtime offers some of this only as plain C functions; they are used as
such, and each object that C holds on to is kept here for as long as the process lives.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import wasmtime

from ..errors import BackendUnavailableError, ConfigError
from ._wasm_ffi import ffi

__all__ = (
    "SLOTS",
    "Engine",
    "WasmModule",
    "compile_module",
    "engine_for",
    "first_line",
    "inspect",
    "require_memory",
    "take_error",
    "take_trap",
)

SLOTS = 512
"""Instances that can exist at once in this process; more wait for their turn."""

_PAGE = 65536
_TABLE_ELEMENTS = 1 << 17  # the scientific Python needs 50,000
_INSTANCE_BYTES = 4 << 20  # of the runtime's own, by functions; the scientific Python needs 1.5
_KEEP_RESIDENT = 65536  # cleared by hand rather than given back to the kernel, which costs more
_SLOT_BYTES = 8 << 30  # of addresses: the largest memory, its guards, and as much again
_WASI = "wasi_snapshot_preview1"
_COMPONENT = b"\0asm\x0d\0\x01\0"
_MODULE = b"\0asm\x01\0\0\0"


@dataclass(frozen=True)
class Engine:
    """A runtime engine.

    Attributes:
        engine: The runtime's own object.
        slots: Held by each instance while it exists.
        settings: What the machine code depends on, as text.
    """

    engine: wasmtime.Engine
    slots: threading.Semaphore
    settings: str

    def interrupt(self) -> None:
        """Let every running program ask whether it has to stop."""
        self.engine.increment_epoch()


_orphan = threading.Event()


def engine_for(fuel: bool, stack_bytes: int) -> Engine:
    """Return the engine with these settings.

    Args:
        fuel: Whether instructions are counted.
        stack_bytes: The most that a program's call stack may take.

    Raises:
        BackendUnavailableError: This process was forked from one that has used the runtime.
    """
    if _orphan.is_set():
        raise BackendUnavailableError(
            "this process was forked from one that has used the WASM runtime, whose threads it "
            "does not have",
            backend="wasm",
            hint="start it by spawn or forkserver, or fork before the first use",
        )
    return _engine_for(fuel, stack_bytes)


@functools.lru_cache(maxsize=8)
def _engine_for(fuel: bool, stack_bytes: int) -> Engine:
    settings = f"epoch fuel={fuel:d} table={_TABLE_ELEMENTS} nounwind nothreads"
    pooled = _has_addresses(SLOTS * _SLOT_BYTES)
    if not pooled:
        settings += " ondemand"
    engine = wasmtime.Engine(_config(fuel, stack_bytes, pooled=pooled))
    return Engine(engine, threading.Semaphore(SLOTS), settings)


def _has_addresses(size: int) -> bool:
    """Whether this process can reserve so many addresses, as it can't under `ulimit -v`.

    It is tried before, because the runtime ends the whole process where it can't.
    """
    if sys.platform == "win32":
        return True
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        mmap.mmap(-1, size, flags=flags, prot=0).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _config(fuel: bool, stack_bytes: int, *, pooled: bool) -> wasmtime.Config:
    config = wasmtime.Config()
    config.epoch_interruption = True
    config.consume_fuel = fuel
    ffi.wasmtime_config_async_stack_size_set(config.ptr(), 2 * stack_bytes)  # or it aborts
    config.max_wasm_stack = stack_bytes
    config.wasm_threads = False  # shared memory is not held to a store's limits
    config.wasm_memory64 = False
    config.wasm_gc = False  # a second heap, which would have the whole of the limit again
    config.wasm_exceptions = True
    config.wasm_multi_memory = False  # each would have the whole of the limit
    config.native_unwind_info = False  # registering it takes longer than loading large modules
    if pooled:
        pool = ffi.wasmtime_pooling_allocation_config_new()
        for name, value in (
            ("total_core_instances", 3 * SLOTS),
            ("total_memories", SLOTS),
            ("total_tables", 3 * SLOTS),
            ("max_memory_size", 1 << 32),
            ("max_core_instance_size", _INSTANCE_BYTES),
            ("table_elements", _TABLE_ELEMENTS),
            ("linear_memory_keep_resident", _KEEP_RESIDENT),
            ("table_keep_resident", _KEEP_RESIDENT),
        ):
            getattr(ffi, f"wasmtime_pooling_allocation_config_{name}_set")(pool, value)
        ffi.wasmtime_pooling_allocation_strategy_set(config.ptr(), pool)
        ffi.wasmtime_pooling_allocation_config_delete(pool)
    return config


def _forked() -> None:
    # A forked child has the memory of the runtime but none of the threads that serve it.
    if _engine_for.cache_info().currsize:
        _orphan.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True)
class WasmModule:
    """A compiled module that has been looked at.

    Attributes:
        module: The runtime's own object.
        exports: The names of the functions that it exports.
        memory_pages: What its memory has at the start, in pages of 64 KiB.
        starts: Whether making an instance of it runs code of its own.
    """

    module: wasmtime.Module
    exports: frozenset[str]
    memory_pages: int


def compile_module(engine: Engine, content: bytes, name: str) -> wasmtime.Module:
    """Compile a module.

    Args:
        engine: For which engine.
        content: The module, binary.
        name: What it is called in errors.

    Raises:
        ConfigError: It is no valid module.
    """
    if content.startswith(_COMPONENT):
        raise ConfigError(
            f"{name} is a component, and this backend runs modules of WASI preview 1",
            backend="wasm",
            hint="build it for wasm32-wasip1",
        )
    if not content.startswith(_MODULE):
        raise ConfigError(
            f"{name} is not a WebAssembly module", backend="wasm", hint="it begins with '\\0asm'"
        )
    try:
        return wasmtime.Module(engine.engine, content)
    except wasmtime.WasmtimeError as error:
        raise ConfigError(
            f"{name} is not a valid module: {first_line(error)}", backend="wasm"
        ) from None


def inspect(
    module: wasmtime.Module, name: str, entry: str, known: frozenset[tuple[str, str]]
) -> WasmModule:
    """Check that a module can be run, and say what matters about it.

    Args:
        module: The compiled module.
        name: What it is called in errors.
        entry: The function that has to be there.
        known: The imports that we have, besides those of WASI preview 1.

    Raises:
        ConfigError: It has no such function, or imports what there is not.
    """
    foreign = sorted(
        f"{item.module}.{item.name}"
        for item in module.imports
        if not (item.module == _WASI and isinstance(item.type, wasmtime.FuncType))
        and (item.module, item.name) not in known
    )
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise ConfigError(
            f"{name} imports what no WASI host has: {shown}",
            backend="wasm",
            hint="build it for wasm32-wasip1, without a framework's own imports",
        )
    types: dict[str, Any] = {str(item.name): item.type for item in module.exports}
    kind = types.get(entry)
    if not isinstance(kind, wasmtime.FuncType):
        raise ConfigError(
            f"{name} does not export the function {entry!r}, so it is a library and no program",
            backend="wasm",
            hint="build a command, not a library: it needs a main()",
        )
    if entry == "_start" and (kind.params or kind.results):
        raise ConfigError(
            f"the function '_start' of {name} takes or returns values", backend="wasm"
        )
    memory = types.get("memory")
    pages = memory.limits.min if isinstance(memory, wasmtime.MemoryType) else 0
    functions = (key for key, type_ in types.items() if isinstance(type_, wasmtime.FuncType))
    return WasmModule(module, frozenset(functions), pages)


def require_memory(module: WasmModule, name: str, memory_bytes: int) -> None:
    """Refuse a module that begins with more memory than it may have.

    Raises:
        ConfigError: It does.
    """
    if module.memory_pages * _PAGE > memory_bytes:
        raise ConfigError(
            f"{name} begins with {module.memory_pages} pages of memory, over the limit of "
            f"{memory_bytes // _PAGE}",
            backend="wasm",
            hint="raise memory_limit_pages",
        )


def first_line(error: Exception) -> str:
    """Return what the runtime says of an error, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:4])[:300]


def take_error(error: Any) -> tuple[int | None, str]:
    """Free one of the runtime's errors; returns the exit code, if it is one, and its text."""
    status = ctypes.c_int(0)
    exited = ffi.wasmtime_error_exit_status(error, ctypes.byref(status))
    message = _message(ffi.wasmtime_error_message, error)
    ffi.wasmtime_error_delete(error)
    return (status.value if exited else None), message


def take_trap(trap: Any) -> tuple[int | None, str]:
    """Free one of the runtime's traps; returns its code, if it has one, and its text."""
    code = ctypes.c_uint8(0)
    known = ffi.wasmtime_trap_code(trap, ctypes.byref(code))
    message = _message(ffi.wasm_trap_message, trap)
    ffi.wasm_trap_delete(trap)
    return (code.value if known else None), message


def _message(ask: Callable[[Any, Any], None], about: Any) -> str:
    text = ffi.wasm_byte_vec_t()
    ask(about, ctypes.byref(text))
    message = ctypes.string_at(text.data, text.size).decode("utf-8", "replace")
    ffi.wasm_byte_vec_delete(ctypes.byref(text))
    return message.rstrip("\0")
