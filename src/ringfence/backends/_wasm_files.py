"""The way of a program to its files: two small modules of ours on either side of it.

The runtime's own file functions look for the memory of whoever calls them, so nothing of ours can
stand between them and a program but another module. The one in front has the functions that the
program imports; the one behind has the program's memory as its own and calls, of each pair, our
function for a standard stream and the runtime's for a file. It also counts what is open: each
open file of a program is one of this process too.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import wasmtime

from ._wasm_engine import Engine, take_error
from ._wasm_ffi import ffi
from ._wasm_guest import Traits
from ._wasm_host import WASI, define_host

__all__ = ("STREAMS", "FileLinker", "export")

STREAMS = "ringfence"
_ROUTED = ("fd_read", "fd_write", "path_open", "fd_close", "fd_renumber")

_FRONT = """(module
  (type $io (func (param i32 i32 i32 i32) (result i32)))
  (type $open (func (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (type $one (func (param i32) (result i32)))
  (type $two (func (param i32 i32) (result i32)))
  (table (export "table") 5 5 funcref)
  (func (export "fd_read") (type $io)
    (call_indirect (type $io) (local.get 0) (local.get 1) (local.get 2) (local.get 3)
      (i32.const 0)))
  (func (export "fd_write") (type $io)
    (call_indirect (type $io) (local.get 0) (local.get 1) (local.get 2) (local.get 3)
      (i32.const 1)))
  (func (export "path_open") (type $open)
    (call_indirect (type $open) (local.get 0) (local.get 1) (local.get 2) (local.get 3)
      (local.get 4) (local.get 5) (local.get 6) (local.get 7) (local.get 8) (i32.const 2)))
  (func (export "fd_close") (type $one)
    (call_indirect (type $one) (local.get 0) (i32.const 3)))
  (func (export "fd_renumber") (type $two)
    (call_indirect (type $two) (local.get 0) (local.get 1) (i32.const 4))))"""

_BACK = """(module
  (type $io (func (param i32 i32 i32 i32) (result i32)))
  (type $open (func (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (type $one (func (param i32) (result i32)))
  (type $two (func (param i32 i32) (result i32)))
  (import "ringfence" "fd_read" (func $our_read (type $io)))
  (import "ringfence" "fd_write" (func $our_write (type $io)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (type $io)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (type $io)))
  (import "wasi_snapshot_preview1" "path_open" (func $path_open (type $open)))
  (import "wasi_snapshot_preview1" "fd_close" (func $close (type $one)))
  (import "wasi_snapshot_preview1" "fd_renumber" (func $renumber (type $two)))
  (import "front" "table" (table 5 5 funcref))
  (import "guest" "memory" (memory 0))
  (export "memory" (memory 0))
  (global $count (mut i32) (i32.const 0))
  (elem (i32.const 0) func $on_read $on_write $on_open $on_close $on_renumber)
  (func $on_read (type $io)
    (if (result i32) (i32.lt_u (local.get 0) (i32.const 3))
      (then (call $our_read (local.get 0) (local.get 1) (local.get 2) (local.get 3)))
      (else (call $read (local.get 0) (local.get 1) (local.get 2) (local.get 3)))))
  (func $on_write (type $io)
    (if (result i32) (i32.lt_u (local.get 0) (i32.const 3))
      (then (call $our_write (local.get 0) (local.get 1) (local.get 2) (local.get 3)))
      (else (call $write (local.get 0) (local.get 1) (local.get 2) (local.get 3)))))
  (func $on_open (type $open) (local $error i32)
    (if (i32.ge_s (global.get $count) (i32.const {open_files})) (then (return (i32.const 33))))
    (local.set $error (call $path_open (local.get 0) (local.get 1) (local.get 2) (local.get 3)
      (local.get 4) (local.get 5) (local.get 6) (local.get 7) (local.get 8)))
    (if (i32.eqz (local.get $error))
      (then (global.set $count (i32.add (global.get $count) (i32.const 1)))))
    (local.get $error))
  (func $on_close (type $one)
    (if (i32.lt_u (local.get 0) (i32.const 3)) (then (return (i32.const 0))))
    (call $less (call $close (local.get 0))))
  (func $on_renumber (type $two)
    (if (i32.or (i32.lt_u (local.get 0) (i32.const 3)) (i32.lt_u (local.get 1) (i32.const 3)))
      (then (return (i32.const 8))))
    (call $less (call $renumber (local.get 0) (local.get 1))))
  (func $less (type $one)
    (if (i32.eqz (local.get 0))
      (then (global.set $count (i32.sub (global.get $count) (i32.const 1)))))
    (local.get 0)))"""


class FileLinker:
    """Makes instances of one module that have files."""

    def __init__(self, engine: Engine, module: wasmtime.Module, traits: Traits) -> None:
        self._engine = engine
        self._module = module
        self._linker = wasmtime.Linker(engine.engine)
        self._linker.define_wasi()
        self._linker.allow_shadowing = True
        self._kept = define_host(self._linker, traits, streams=STREAMS)
        self._lock = threading.Lock()
        self._backs: dict[int, wasmtime.Module] = {}
        self._front = wasmtime.Module(engine.engine, _FRONT)
        self._front_pre = wasmtime.Linker(engine.engine).instantiate_pre(self._front)

    def _back(self, open_files: int) -> wasmtime.Module:
        with self._lock:
            if open_files not in self._backs:
                text = _BACK.replace("{open_files}", str(min(open_files, 2**31 - 1)))
                self._backs[open_files] = wasmtime.Module(self._engine.engine, text)
            return self._backs[open_files]

    def instantiate(self, context: Any, open_files: int, instance: Any, trap: Any) -> Any:
        """Make an instance; returns the runtime's error, if there is one.

        Args:
            context: The store's.
            open_files: How many files it may have open at once.
            instance: Where the instance is put.
            trap: Where a trap is put.
        """
        back = self._back(open_files)  # held by name: C does not hold it
        front = ffi.wasmtime_instance_t()
        error = ffi.wasmtime_instance_pre_instantiate(
            self._front_pre.ptr(), context, ctypes.byref(front), ctypes.byref(trap)
        )
        if error:
            return error
        linker = ffi.wasmtime_linker_clone(self._linker.ptr())
        try:
            for name in _ROUTED:
                _define(linker, context, WASI, name, export(context, front, name))
            error = ffi.wasmtime_linker_instantiate(
                linker, context, self._module.ptr(), ctypes.byref(instance), ctypes.byref(trap)
            )
            memory = None if error or trap else export(context, instance, "memory")
            if memory is None:
                return error
            behind = ffi.wasmtime_linker_clone(self._linker.ptr())
            try:
                _define(behind, context, "front", "table", export(context, front, "table"))
                _define(behind, context, "guest", "memory", memory)
                made = ffi.wasmtime_instance_t()
                return ffi.wasmtime_linker_instantiate(
                    behind,
                    context,
                    back.ptr(),
                    ctypes.byref(made),
                    ctypes.byref(trap),
                )
            finally:
                ffi.wasmtime_linker_delete(behind)
        finally:
            ffi.wasmtime_linker_delete(linker)


def export(context: Any, instance: Any, name: str) -> Any:
    """Return what an instance exports under a name, or None."""
    item = ffi.wasmtime_extern_t()
    text = name.encode()
    found = ffi.wasmtime_instance_export_get(
        context, ctypes.byref(instance), text, len(text), ctypes.byref(item)
    )
    return item if found else None


def _define(linker: Any, context: Any, module: str, name: str, item: Any) -> None:
    where, what = module.encode(), name.encode()
    error = ffi.wasmtime_linker_define(
        linker, context, where, len(where), what, len(what), ctypes.byref(item)
    )
    if error:
        raise AssertionError(take_error(error)[1])  # both are ours
