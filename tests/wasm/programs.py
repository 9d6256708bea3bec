"""Small programs in WebAssembly's text form, one for each thing that a program can do."""

from __future__ import annotations

import wasmtime

_WASI = "wasi_snapshot_preview1"
_IMPORTS = {
    "fd_write": "(param i32 i32 i32 i32) (result i32)",
    "fd_read": "(param i32 i32 i32 i32) (result i32)",
    "poll_oneoff": "(param i32 i32 i32 i32) (result i32)",
    "proc_exit": "(param i32)",
    "clock_time_get": "(param i32 i64 i32) (result i32)",
    "random_get": "(param i32 i32) (result i32)",
    "args_sizes_get": "(param i32 i32) (result i32)",
    "args_get": "(param i32 i32) (result i32)",
    "environ_sizes_get": "(param i32 i32) (result i32)",
    "environ_get": "(param i32 i32) (result i32)",
    "fd_prestat_get": "(param i32 i32) (result i32)",
    "fd_close": "(param i32) (result i32)",
    "fd_renumber": "(param i32 i32) (result i32)",
    "path_open": "(param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)",
    "path_symlink": "(param i32 i32 i32 i32 i32) (result i32)",
    "path_create_directory": "(param i32 i32 i32) (result i32)",
}


def text(body: str, more: str = "", pages: int = 1) -> str:
    """Return a module whose `_start` has this body; what it calls by `$name` is imported."""
    used = [name for name in _IMPORTS if f"${name} " in body + more or f"${name})" in body + more]
    imports = "".join(
        f'(import "{_WASI}" "{name}" (func ${name} {_IMPORTS[name]}))' for name in used
    )
    return f"""(module {imports}
      (memory (export "memory") {pages})
      (table $table (export "table") 1 funcref)
      {more}
      (func $start (export "_start") {body}))"""


def binary(body: str, more: str = "", pages: int = 1) -> bytes:
    """Return the same as a binary module."""
    return bytes(wasmtime.wat2wasm(text(body, more, pages)))


def write(at: int, size: int, fd: int = 1) -> str:
    """Return code that writes a piece of memory to a descriptor."""
    return f"""
      (i32.store (i32.const 0) (i32.const {at})) (i32.store (i32.const 4) (i32.const {size}))
      (drop (call $fd_write (i32.const {fd}) (i32.const 0) (i32.const 1) (i32.const 8)))"""


def sleep(seconds: float) -> str:
    """Return code that sleeps; it uses memory from 1024 on."""
    return f"""
      (i64.store (i32.const 1048) (i64.const {int(seconds * 1e9)}))
      (drop (call $poll_oneoff (i32.const 1024) (i32.const 2048) (i32.const 1)
        (i32.const 3000)))"""


HELLO = binary(write(16, 6), r'(data (i32.const 16) "hello\0a")')
LOOP = binary("(loop (br 0))")
HELLO_THEN_LOOP = binary(write(16, 6) + "(loop (br 0))", r'(data (i32.const 16) "hello\0a")')
SLEEP_60 = binary(sleep(60))
FLOOD = binary(f"(loop {write(16, 65000)} (br 0))")
FLOOD_THEN_EXIT = binary(
    f"""(local $i i32) (loop $l {write(16, 65000)}
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $l (i32.lt_u (local.get $i) (i32.const 100))))
      (call $proc_exit (i32.const 5))"""
)
COUNT = binary(  # exits with how often this instance was started, which is always 1
    """(global.set $n (i32.add (global.get $n) (i32.const 1)))
       (i32.store (i32.const 500) (i32.add (i32.load (i32.const 500)) (i32.const 1)))
       (call $proc_exit (i32.add (global.get $n) (i32.mul (i32.const 10)
         (i32.load (i32.const 500)))))""",
    "(global $n (mut i32) (i32.const 0))",
)
ARGS = binary(  # writes its arguments, each ended by NUL
    """(drop (call $args_sizes_get (i32.const 100) (i32.const 104)))
       (drop (call $args_get (i32.const 200) (i32.const 5000)))
       (i32.store (i32.const 0) (i32.const 5000))
       (i32.store (i32.const 4) (i32.load (i32.const 104)))
       (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))"""
)
ENV = binary(  # writes its variables, each ended by NUL
    """(drop (call $environ_sizes_get (i32.const 100) (i32.const 104)))
       (drop (call $environ_get (i32.const 200) (i32.const 5000)))
       (i32.store (i32.const 0) (i32.const 5000))
       (i32.store (i32.const 4) (i32.load (i32.const 104)))
       (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))"""
)
CAT = binary(  # copies stdin to stdout until its end
    """(loop $l
         (i32.store (i32.const 0) (i32.const 5000)) (i32.store (i32.const 4) (i32.const 4096))
         (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
         (if (i32.eqz (i32.load (i32.const 8))) (then (return)))
         (i32.store (i32.const 4) (i32.load (i32.const 8)))
         (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
         (br $l))"""
)
CLOCK_AND_RANDOM = binary(  # writes two looks at the clock and 16 random bytes
    """(drop (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 16)))
       (drop (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 24)))
       (drop (call $random_get (i32.const 32) (i32.const 16)))"""
    + write(16, 32)
)
PRESTAT = binary("(call $proc_exit (call $fd_prestat_get (i32.const 3) (i32.const 0)))")

TRAPS = {
    "UNREACHABLE": "unreachable",
    "STACK_OVERFLOW": "(call $start)",
    "MEMORY_OUT_OF_BOUNDS": "(drop (i32.load (i32.const 99999999)))",
    "TABLE_OUT_OF_BOUNDS": "(call_indirect (i32.const 77))",
    "INDIRECT_CALL_TO_NULL": "(call_indirect (i32.const 0))",
    "INTEGER_DIVISION_BY_ZERO": "(drop (i32.div_s (i32.const 1) (i32.const 0)))",
    "INTEGER_OVERFLOW": "(drop (i32.div_s (i32.const -2147483648) (i32.const -1)))",
    "BAD_CONVERSION_TO_INTEGER": "(drop (i32.trunc_f32_s (f32.const nan)))",
}


def grown(instruction: str, amount: int) -> bytes:
    """Return a program that exits with 1 if growing by so much worked, and with 7 if not."""
    value = "(ref.null func) " if instruction.startswith("table") else ""
    return binary(
        f"""(call $proc_exit (select (i32.const 7) (i32.const 1)
          (i32.eq ({instruction} {value}(i32.const {amount})) (i32.const -1))))"""
    )


def opens(path: str, flags: int = 0, then: str = "") -> bytes:
    """Return a program that opens a path below its first directory, and exits with the errno."""
    rights = f"(i64.const {0x1FFFFFFF if flags else 0x2})"  # all, or to read
    return binary(
        f"""(local $error i32)
        (local.set $error (call $path_open (i32.const 3) (i32.const 1) (i32.const 16)
          (i32.const {len(path.encode())}) (i32.const {flags}) {rights} {rights}
          (i32.const 0) (i32.const 12)))
        (if (i32.eqz (local.get $error)) (then {then}))
        (call $proc_exit (local.get $error))""",
        f'(data (i32.const 16) "{path}")',
    )
