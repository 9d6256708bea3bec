"""A program's memory, as host functions see it: every address is checked before it is used."""

from __future__ import annotations

import ctypes
from typing import Any

from ._wasm_ffi import ffi

__all__ = ("BadAddressError", "Memory")


class BadAddressError(Exception):
    """The program named memory that it does not have."""


class Memory:
    """The memory of the program that calls."""

    def __init__(self, caller: Any) -> None:
        item = ffi.wasmtime_extern_t()
        found = ffi.wasmtime_caller_export_get(caller, b"memory", 6, ctypes.byref(item))
        if not found or item.kind != ffi.WASMTIME_EXTERN_MEMORY.value:
            self._base, self._size = 0, 0
            return
        context = ffi.wasmtime_caller_context(caller)
        memory = ctypes.byref(item.of.memory)
        self._size = int(ffi.wasmtime_memory_data_size(context, memory))
        data = ffi.wasmtime_memory_data(context, memory)
        self._base = ctypes.cast(data, ctypes.c_void_p).value or 0

    def require(self, at: int, size: int) -> None:
        """Refuse what lies outside; `at` and `size` are never negative."""
        if at + size > self._size:
            raise BadAddressError

    def read(self, at: int, size: int) -> bytes:
        """Return some of it."""
        self.require(at, size)
        return ctypes.string_at(self._base + at, size) if size else b""

    def write(self, at: int, data: bytes) -> None:
        """Put bytes into it."""
        self.require(at, len(data))
        if data:
            ctypes.memmove(self._base + at, data, len(data))

    def put(self, at: int, value: int, size: int) -> None:
        """Put a number of so many bytes into it."""
        self.write(at, value.to_bytes(size, "little"))

    def vectors(self, at: int, count: int) -> list[tuple[int, int]]:
        """Return the pieces of memory that a call is about, none of them outside."""
        table = self.read(at, 8 * count)
        found = []
        for i in range(0, len(table), 8):
            where = int.from_bytes(table[i : i + 4], "little")
            size = int.from_bytes(table[i + 4 : i + 8], "little")
            self.require(where, size)
            found.append((where, size))
        return found
