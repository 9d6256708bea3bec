"""The host functions that are ours: streams, sleep, clock, chance and exit.

The runtime's own WASI does the rest (arguments, environment, files). These are ours because its
own can't be interrupted while they wait, write output from threads of their own, and know but the
real clock. They are called on the program's thread with numbers that the program chose: every
address is checked against its memory before anything is read or written there.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import wasmtime

from ..models import Stream
from ._wasm_ffi import NO_FINALIZER, ffi, host_callback
from ._wasm_guest import Guest, Stopped, Traits
from ._wasm_memory import BadAddressError, Memory

__all__ = ("HOST_MODULE", "WASI", "current", "define_host", "running_as")

WASI = "wasi_snapshot_preview1"
HOST_MODULE = "host"
"""Where the scientific Python looks for calls back into the host; we answer that there are none."""

_OK, _BADF, _FAULT, _INVAL, _NOTSUP = 0, 8, 21, 28, 58
_STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
_MAX_VECTORS = 1024
_MAX_WRITE = 1024 * 1024  # of one call; the program is told, and comes again with the rest
_CHUNK = 64 * 1024
_MAX_SUBSCRIPTIONS = 4096
_NO_HOST = -1
_MASK = 0xFFFF_FFFF

_here = threading.local()
_Function = Callable[[Guest, Memory, Any], int]


class running_as:  # noqa: N801 - reads as a function: with running_as(guest)
    """Say whose program this thread runs, for the host functions."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    def __enter__(self) -> None:
        _here.guest = self._guest

    def __exit__(self, *_: object) -> None:
        del _here.guest


def current() -> Guest:
    """Return whose program this thread runs."""
    guest: Guest = _here.guest
    return guest


def _unsigned(slots: Any, *indices: int) -> tuple[int, ...]:
    return tuple(slots[i].i32 & _MASK for i in indices)


def _fd_write(guest: Guest, memory: Memory, slots: Any) -> int:
    fd, vectors, count, result = _unsigned(slots, 0, 1, 2, 3)
    stream = _STREAMS.get(fd)
    if stream is None:
        return _BADF
    if count > _MAX_VECTORS:
        return _INVAL
    memory.require(result, 4)
    room, total, parts = guest.room(stream), 0, []
    for where, size in memory.vectors(vectors, count):
        part = min(size, _MAX_WRITE - total)
        total += part
        if kept := min(part, room):
            parts.append(memory.read(where, kept))
            room -= kept
    guest.emit(stream, parts[0] if len(parts) == 1 else b"".join(parts), total)
    memory.put(result, total, 4)
    return _OK


def _fd_read(guest: Guest, memory: Memory, slots: Any) -> int:
    fd, vectors, count, result = _unsigned(slots, 0, 1, 2, 3)
    if fd != 0:
        return _BADF
    if count > _MAX_VECTORS:
        return _INVAL
    memory.require(result, 4)
    places = memory.vectors(vectors, count)
    wanted = sum(size for _, size in places)
    data = guest.read(wanted) if wanted else b""
    memory.put(result, len(data), 4)
    for where, size in places:
        memory.write(where, data[:size])
        data = data[size:]
    return _OK


def _poll_oneoff(guest: Guest, memory: Memory, slots: Any) -> int:
    wanted, out, count, result = _unsigned(slots, 0, 1, 2, 3)
    if not 0 < count <= _MAX_SUBSCRIPTIONS:
        return _INVAL
    memory.require(out, 32 * count)
    memory.require(result, 4)
    table = memory.read(wanted, 48 * count)
    rows = [_Subscription(table[i : i + 48]) for i in range(0, len(table), 48)]
    stdin = [row for row in rows if row.is_stdin]
    ready = [row for row in rows if not row.is_clock and not row.is_stdin]
    clocks = [(row.nanoseconds(guest), row) for row in rows if row.is_clock]
    shortest = 0 if ready else min((wait for wait, _ in clocks), default=None)
    if guest.sleep(shortest, for_stdin=bool(stdin)):
        ready += stdin
    if not ready:
        ready = [row for wait, row in clocks if wait == shortest]
    for i, row in enumerate(ready):
        memory.write(out + 32 * i, row.event())
    memory.put(result, len(ready), 4)
    return _OK


class _Subscription:
    """One of the things that a program waits for."""

    def __init__(self, row: bytes) -> None:
        self._row = row
        self.is_clock = row[8] == 0
        self.is_stdin = row[8] == 1 and self._number(16, 4) == 0

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._row[at : at + size], "little")

    def nanoseconds(self, guest: Guest) -> int:
        """Return how long a clock's row has to wait from now."""
        wait = self._number(24, 8)
        if self._number(40, 2) & 1:  # a moment rather than a duration
            wait = max(0, wait - guest.now_ns(realtime=self._number(16, 4) == 0))
        return wait

    def event(self) -> bytes:
        return self._row[:8] + bytes(2) + self._row[8:9] + bytes(21)


def _clock_time_get(guest: Guest, memory: Memory, slots: Any) -> int:
    clock, result = _unsigned(slots, 0, 2)
    if clock > 1:
        return _NOTSUP
    memory.put(result, guest.now_ns(realtime=clock == 0), 8)
    return _OK


def _clock_res_get(_: Guest, memory: Memory, slots: Any) -> int:
    clock, result = _unsigned(slots, 0, 1)
    if clock > 1:
        return _NOTSUP
    memory.put(result, 1000, 8)
    return _OK


def _random_get(guest: Guest, memory: Memory, slots: Any) -> int:
    at, size = _unsigned(slots, 0, 1)
    memory.require(at, size)
    while size:
        guest.check()
        part = min(size, _CHUNK)
        memory.write(at, guest.random_bytes(part))
        at, size = at + part, size - part
    return _OK


def _proc_exit(guest: Guest, _: Memory, slots: Any) -> int:
    code = slots[0].i32
    guest.exit_code = code if code >= 0 else code & 0xFF
    raise Stopped


def _host_call(_: Guest, __: Memory, ___: Any) -> int:
    return _NO_HOST


_I32 = ("i32",) * 4
_Row = tuple[str, _Function, tuple[str, ...], tuple[str, ...]]
_STREAM_ROWS: tuple[_Row, ...] = (
    ("fd_write", _fd_write, _I32, ("i32",)),
    ("fd_read", _fd_read, _I32, ("i32",)),
)
_WASI_ROWS: tuple[_Row, ...] = (
    ("poll_oneoff", _poll_oneoff, _I32, ("i32",)),
    ("proc_exit", _proc_exit, ("i32",), ()),
)
_CLOCK_ROWS: tuple[_Row, ...] = (
    ("clock_time_get", _clock_time_get, ("i32", "i64", "i32"), ("i32",)),
    ("clock_res_get", _clock_res_get, ("i32", "i32"), ("i32",)),
)
_RANDOM_ROWS: tuple[_Row, ...] = (("random_get", _random_get, ("i32", "i32"), ("i32",)),)
_HOST_ROWS: tuple[_Row, ...] = (("call", _host_call, _I32, ("i32",)),)


def define_host(linker: wasmtime.Linker, traits: Traits, streams: str = WASI) -> list[Any]:
    """Put our functions in the place of the runtime's.

    Args:
        linker: Where.
        traits: What a program is shown of the machine; what is real stays the runtime's own.
        streams: The module under which the two functions of the streams are defined.

    Returns:
        What has to be kept for as long as the linker is used.
    """
    wasi = _WASI_ROWS
    if not traits.real_clock:
        wasi += _CLOCK_ROWS
    if not traits.real_random:
        wasi += _RANDOM_ROWS
    kept = [_link(linker, streams, row) for row in _STREAM_ROWS]
    kept += [_link(linker, WASI, row) for row in wasi]
    return [*kept, *(_link(linker, HOST_MODULE, row) for row in _HOST_ROWS)]


def _link(linker: wasmtime.Linker, module: str, row: _Row) -> Any:
    name, function, params, results = row
    types = {"i32": wasmtime.ValType.i32, "i64": wasmtime.ValType.i64}
    kind = wasmtime.FuncType([types[one]() for one in params], [types[one]() for one in results])
    call = _callback(function)
    where, what = module.encode(), name.encode()
    error = ffi.wasmtime_linker_define_func_unchecked(
        linker.ptr(), where, len(where), what, len(what), kind.ptr(), call, None, NO_FINALIZER
    )
    assert not error, name  # it is our own table that would be wrong
    return call


def _callback(function: _Function) -> Any:
    """Make a C function of one of ours; whatever it raises ends the program, not this process."""

    def call(_: Any, caller: Any, slots: Any, __: int) -> int:
        guest = current()
        try:
            guest.check()
            slots[0].i32 = function(guest, Memory(caller), slots)
        except BadAddressError:
            slots[0].i32 = _FAULT
        except Stopped:
            return _end_trap()
        except Exception as error:  # noqa: BLE001 - raised again when the program has ended
            guest.fault = error
            return _end_trap()
        return 0

    return host_callback(call)


def _end_trap() -> int:
    trap = ffi.wasmtime_trap_new(b"ended", 5)
    return ctypes.cast(trap, ctypes.c_void_p).value or 0
