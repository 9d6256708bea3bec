"""Programs in WASM: a tiny module, Python and JavaScript, against their floors."""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path

import anyio
import anyio.to_thread
import wasmtime

from ringfence.backend import Backend
from ringfence.backends.wasm import WasmBackend
from ringfence.config import WasmConfig
from ringfence.errors import MissingDependencyError
from ringfence.models import Command, SandboxSpec

from ..floors import run_on_host
from ..machine import real_python
from ..measure import TOTAL, Side, Times, alternate, check, summarize
from ..report import Line, compare
from ..settings import Settings

__all__ = ("run",)

_TINY = r"""(module
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "hello\0a")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 6))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"""
_WAITS = r"""(module
  (import "wasi_snapshot_preview1" "fd_read"
    (func $read (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (i32.store (i32.const 4) (i32.const 1))
    (drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))))"""
_IDLE = 50
_PRINT = "print(1)"


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure a tiny module, then each interpreter that is installed."""
    with tempfile.TemporaryDirectory() as folder:
        lines = await _tiny(settings, Path(folder))
    for name, rounds in (("python", 40), ("python-scientific", 40), ("javascript", 100)):
        backend = WasmBackend(WasmConfig(interpreter=name))
        try:
            if name == "python-scientific" and not backend.is_prepared:  # which takes minutes
                not_run.append(f"{name}: it is not compiled (ringfence wasm prepare {name})")
                continue
            async with backend:  # which compiles it first, if need be
                lines += await _interpreter(backend, name, settings, rounds)
        except MissingDependencyError as error:
            not_run.append(str(error))
    return lines


def _module(folder: Path, text: str) -> WasmBackend:
    path = folder / "program.wasm"
    path.write_bytes(wasmtime.wat2wasm(text))
    return WasmBackend(WasmConfig(wasm_path=str(path)))


async def _tiny(settings: Settings, folder: Path) -> list[Line]:
    plain = _plain(_TINY)
    true = ["/bin/true"]

    async def host() -> Times:
        return run_on_host(true, b"")

    async with _module(folder, _TINY) as backend:
        ours = _side(backend, Command(["x"], timeout=5), b"hello\n")
        rounds = settings.rounds(1000, 20)
        floor = await alternate({"ours": ours, "plain wasmtime-py": plain}, rounds, warm_up=50)
        process = await alternate({"ours": ours, "subprocess.run": host}, rounds, warm_up=50)
        before = _resident_mib()
        for _ in range(settings.rounds(1000, 20)):
            await ours()
        grown = _resident_mib() - before
    what = "execute of a tiny module"
    note = (
        "ours with limits and deadline; plain with neither, its output by a callback, in a thread"
    )
    async with _module(folder, _WAITS) as backend:
        idle = await _idle(backend)
    return [
        compare(what, floor, limit=0.75, note=note),
        compare(what, process, limit=0.6, note="of /bin/true, its output caught"),
        Line("memory that 1,000 of them leave", summarize([grown]), unit="MiB", limit=2.0),
        Line("memory of an idle tiny program", summarize([idle]), unit="MiB"),
    ]


def _plain(text: str) -> Side:
    """Return a side that does by hand the least that there is to do."""
    engine = wasmtime.Engine()
    module = wasmtime.Module(engine, text)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()

    def work() -> list[bytes]:
        output: list[bytes] = []
        store = wasmtime.Store(engine)
        config = wasmtime.WasiConfig()
        config.argv = ["x"]
        config.stdout_custom = output.append
        store.set_wasi(config)
        start = linker.instantiate(store, module).exports(store)["_start"]
        assert isinstance(start, wasmtime.Func)
        start(store)
        return output

    async def side() -> Times:
        began = time.perf_counter()
        output = await anyio.to_thread.run_sync(work)
        took = time.perf_counter() - began
        check(output == [b"hello\n"], f"plain wasmtime wrote {output!r}")
        return {TOTAL: took}

    return side


def _side(backend: Backend, command: Command, stdout: bytes) -> Side:
    async def side() -> Times:
        began = time.perf_counter()
        result = await backend.execute(command)
        took = time.perf_counter() - began
        check(result.ok and result.stdout == stdout, f"{command.argv} ended with {result!r}")
        return {TOTAL: took}

    return side


async def _interpreter(
    backend: WasmBackend, name: str, settings: Settings, rounds: int
) -> list[Line]:
    is_javascript = name == "javascript"
    code = "console.log(1)" if is_javascript else _PRINT
    option = "-e" if is_javascript else "-c"
    python = [real_python(), "-c", _PRINT]
    rounds = settings.rounds(rounds)

    async def host() -> Times:
        return run_on_host(python, b"1\n")

    plain = Command(["x", option, code])
    async with WasmBackend(WasmConfig(interpreter=name, spares=0)) as cold:
        once = await alternate({"ours": _side(cold, plain, b"1\n"), "python3": host}, rounds)
    lines = [compare(f"{name}: one-shot print(1)", once, limit=5.0, note="on the host, bare")]
    if name == "python":
        ready = {"ours": _side(backend, plain, b"1\n"), "python3": host}
        taken = await alternate(ready, rounds, pause=0.15)
        lines.append(compare(f"{name}: the same, with one started ahead", taken))
    async with await backend.interpreter() as live:

        async def turn() -> Times:
            began = time.perf_counter()
            result = await live.run(code)
            took = time.perf_counter() - began
            check(result.stdout == b"1\n", f"a turn of {name} wrote {result.stdout!r}")
            return {TOTAL: took}

        turns = await alternate({"ours": turn, "python3": host}, rounds)
    lines.append(compare(f"{name}: a turn in a live interpreter", turns, limit=0.2))
    idle = await _idle_interpreters(backend, code)
    return [*lines, Line(f"{name}: memory of an idle one", summarize([idle]), unit="MiB")]


async def _idle(backend: WasmBackend) -> float:
    """Return the memory that each of many programs takes that wait for their input."""
    async with await backend.create() as sandbox:
        one = await sandbox.start(Command(["x"]), stdin_open=True)
        await anyio.sleep(0.1)
        before = _resident_mib()
        many = [await sandbox.start(Command(["x"]), stdin_open=True) for _ in range(_IDLE)]
        await anyio.sleep(0.3)
        grown = _resident_mib() - before
        for process in (one, *many):
            await process.close_stdin()
            end = await process.wait()
            check(end.code == 0, f"an idle program ended with {end.code}")
    return grown / _IDLE


async def _idle_interpreters(backend: WasmBackend, code: str) -> float:
    count = 5
    async with await backend.interpreter() as first:
        await first.run(code)
        before = _resident_mib()
        opened = [await backend.interpreter(SandboxSpec()) for _ in range(count)]
        for live in opened:
            await live.run(code)
        grown = _resident_mib() - before
        for live in opened:
            await live.aclose()
    return grown / count


def _resident_mib() -> float:
    gc.collect()
    for line in Path("/proc/self/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0
