"""The plain C functions of the runtime, for what its Python package has no methods for.

They are one step below what that package promises to keep, so the extra names the versions that
this was tested with.
"""

from __future__ import annotations

import ctypes
from typing import Any

import wasmtime._ffi

__all__ = ("NO_FINALIZER", "epoch_callback", "ffi", "host_callback")

ffi: Any = wasmtime._ffi

NO_FINALIZER = ctypes.cast(0, ctypes.CFUNCTYPE(None, ctypes.c_void_p))
"""For C functions that take a function to call at the end and need none."""

host_callback: Any = ffi.wasmtime_func_unchecked_callback_t
"""Makes a C function of one that a program can import."""

epoch_callback: Any = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.POINTER(ffi.wasmtime_context_t),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint8),
)
"""Makes a C function of one that is asked whether a program may go on."""
