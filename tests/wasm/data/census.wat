;; Counts the bytes, words and lines of stdin, hashes and averages them, and says so: small, and with
;; an instruction of each family, so that a mutation meets what a module can do wrong.
(module
  (import "wasi_snapshot_preview1" "fd_read"
    (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (memory (export "memory") 1 16)
  (table 4 funcref)
  (elem (i32.const 0) $is_letter $is_space $is_line $is_other)
  (type $class (func (param i32) (result i32)))
  (global $words (mut i32) (i32.const 0))
  (global $lines (mut i32) (i32.const 0))
  (global $bytes (mut i64) (i64.const 0))
  (global $hash (mut i64) (i64.const -3750763034362895579))
  (global $inside (mut i32) (i32.const 0))
  (data (i32.const 64) "bytes words lines hash mean ")
  ;; 0: an iovec; 8: how many bytes; 128: a number's digits; 1024: what was read

  (func $is_letter (param $c i32) (result i32)
    (i32.lt_u (i32.sub (i32.or (local.get $c) (i32.const 32)) (i32.const 97)) (i32.const 26)))
  (func $is_space (param $c i32) (result i32)
    (i32.or (i32.eq (local.get $c) (i32.const 32)) (i32.eq (local.get $c) (i32.const 9))))
  (func $is_line (param $c i32) (result i32)
    (i32.eqz (i32.sub (local.get $c) (i32.const 10))))
  (func $is_other (param $c i32) (result i32) (i32.const 1))

  (func $class_of (param $c i32) (result i32)
    (local $class i32)
    (block $found
      (loop $next
        (br_if $found (call_indirect (type $class) (local.get $c) (local.get $class)))
        (local.set $class (i32.add (local.get $class) (i32.const 1)))
        (br $next)))
    (local.get $class))

  (func $take (param $c i32)
    (global.set $bytes (i64.add (global.get $bytes) (i64.const 1)))
    (global.set $hash
      (i64.mul
        (i64.xor (global.get $hash) (i64.extend_i32_u (local.get $c)))
        (i64.const 1099511628211)))
    (block $other
      (block $line
        (block $space
          (block $letter
            (br_table $letter $space $line $other (call $class_of (local.get $c))))
          (if (i32.eqz (global.get $inside))
            (then (global.set $words (i32.add (global.get $words) (i32.const 1)))))
          (global.set $inside (i32.const 1))
          (return))
        (global.set $inside (i32.const 0))
        (return))
      (global.set $lines (i32.add (global.get $lines) (i32.const 1)))
      (global.set $inside (i32.const 0))))

  (func $say (param $at i32) (param $length i32)
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (local.get $length))
    (if (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))
      (then (call $exit (i32.const 4)))))

  (func $say_number (param $number i64)
    (local $at i32)
    (local.set $at (i32.const 160))
    (i32.store8 (local.get $at) (i32.const 10))
    (loop $next
      (local.set $at (i32.sub (local.get $at) (i32.const 1)))
      (i32.store8 (local.get $at)
        (i32.add (i32.const 48)
          (i32.wrap_i64 (i64.rem_u (local.get $number) (i64.const 10)))))
      (local.set $number (i64.div_u (local.get $number) (i64.const 10)))
      (br_if $next (i64.ne (local.get $number) (i64.const 0))))
    (call $say (local.get $at) (i32.sub (i32.const 161) (local.get $at))))

  (func $read_all
    (local $at i32) (local $end i32)
    (loop $more
      (i32.store (i32.const 0) (i32.const 1024))
      (i32.store (i32.const 4) (i32.const 4096))
      (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))
        (then (call $exit (i32.const 3))))
      (local.set $at (i32.const 1024))
      (local.set $end (i32.add (i32.const 1024) (i32.load (i32.const 8))))
      (block $taken
        (loop $next
          (br_if $taken (i32.ge_u (local.get $at) (local.get $end)))
          (call $take (i32.load8_u (local.get $at)))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br $next)))
      (br_if $more (i32.load (i32.const 8)))))

  (func $mean (result i64)
    (i64.trunc_f64_u
      (f64.div
        (f64.convert_i64_u (global.get $bytes))
        (f64.add (f64.convert_i32_u (global.get $words)) (f64.const 1)))))

  (func $fill (param $pages i32) ;; asks for memory, writes to its end, and copies from there
    (local $old i32)
    (local.set $old (memory.grow (local.get $pages)))
    (if (i32.ne (local.get $old) (i32.const -1))
      (then
        (memory.fill (i32.shl (local.get $old) (i32.const 16)) (i32.const 120) (i32.const 65536))
        (memory.copy (i32.const 8192) (i32.shl (local.get $old) (i32.const 16)) (i32.const 256)))))

  (func (export "_start")
    (call $read_all)
    (call $fill (i32.const 2))
    (call $say (i32.const 64) (i32.const 6))
    (call $say_number (global.get $bytes))
    (call $say (i32.const 70) (i32.const 6))
    (call $say_number (i64.extend_i32_u (global.get $words)))
    (call $say (i32.const 76) (i32.const 6))
    (call $say_number (i64.extend_i32_u (global.get $lines)))
    (call $say (i32.const 82) (i32.const 5))
    (call $say_number (global.get $hash))
    (call $say (i32.const 87) (i32.const 5))
    (call $say_number (call $mean))
    (if (i32.eqz (global.get $words)) (then (call $exit (i32.const 1)))))
)
