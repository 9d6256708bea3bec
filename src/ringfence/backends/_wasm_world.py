"""What one run gets to see and to use, and how its store is told."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from ..errors import SandboxLostError, UnsupportedError
from ._wasm_ffi import NO_FINALIZER, epoch_callback, ffi
from ._wasm_guest import Stopped
from ._wasm_host import current

__all__ = ("World", "limit", "show")

_TEXTS = ctypes.POINTER(ctypes.POINTER(ctypes.c_char))


class World(NamedTuple):  # changed for every run, and sooner than a dataclass
    """What one run gets to see and to use.

    Attributes:
        argv: Its arguments, of which the first is a name only.
        env: Its variables, as `NAME=value`, split.
        dirs: Directories of the host, what they are called inside, and whether they can be
            written.
        memory_bytes: The most memory that it may have.
        table_elements: The most elements that each of its tables may have.
        open_files: The most files that it may have open at once.
        fuel: The most instructions that it may run, where they are counted.
    """

    argv: tuple[bytes, ...]
    env: tuple[tuple[bytes, bytes], ...] = ()
    dirs: tuple[tuple[str, str, bool], ...] = ()
    memory_bytes: int = 4096 * 65536
    table_elements: int = 100_000
    open_files: int = 256
    fuel: int | None = None


def limit(store: Any, context: Any, world: World) -> None:
    """Hold a store to a run's limits, and let it be ended."""
    instances, tables, memories = 3, 16, 1  # two instances are those between it and its files
    ffi.wasmtime_store_limiter(
        store, world.memory_bytes, world.table_elements, instances, tables, memories
    )
    if world.fuel is not None:
        error = ffi.wasmtime_context_set_fuel(context, world.fuel)
        assert not error
    ffi.wasmtime_context_set_epoch_deadline(context, 1)
    ffi.wasmtime_store_epoch_deadline_callback(store, _on_epoch, None, NO_FINALIZER)


def show(context: Any, world: World) -> None:
    """Give the store its arguments, variables and directories."""
    config = ffi.wasi_config_new()
    fault = ""
    if not ffi.wasi_config_set_argv(config, len(world.argv), _texts(world.argv)):
        fault = "an argument"
    if world.env:
        names, values = _texts(n for n, _ in world.env), _texts(v for _, v in world.env)
        if not ffi.wasi_config_set_env(config, len(world.env), names, values):
            fault = "a variable"
    if fault:
        ffi.wasi_config_delete(config)
        raise UnsupportedError(
            f"{fault} is not UTF-8, which is all that WASI has", backend="wasm",
            hint="send other bytes by stdin or in a file",
        )  # fmt: skip
    for host, inside, is_writable in world.dirs:
        shown = ffi.wasi_config_preopen_dir(
            config, ctypes.c_char_p(host.encode("utf-8", "surrogateescape")),
            ctypes.c_char_p(inside.encode()), is_writable,
        )  # fmt: skip
        if not shown:
            ffi.wasi_config_delete(config)
            raise SandboxLostError(
                f"the directory {host!r} can't be opened", cause="a directory is gone",
                backend="wasm",
            )  # fmt: skip
    error = ffi.wasmtime_context_set_wasi(context, config)
    assert not error


def _texts(values: Any) -> Any:
    listed = list(values)
    array = (ctypes.c_char_p * len(listed))(*listed)
    return ctypes.cast(array, _TEXTS)


def _may_go_on(_: Any, __: Any, more: Any, kind: Any) -> int:
    """Let a program go on, unless it is the one that has to stop."""
    try:
        current().check()
    except Stopped:
        error = ffi.wasmtime_error_new(b"stopped")
        return ctypes.cast(error, ctypes.c_void_p).value or 0
    more[0], kind[0] = 1, 0
    return 0


_on_epoch = epoch_callback(_may_go_on)
