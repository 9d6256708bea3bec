"""A program compiled to WebAssembly: it has its arguments, three streams and nothing else.

Give it a module of your own (`python wasm_execution.py prog.wasm`), or let it compile
`untrusted/words.c` with whatever compiler is at hand: zig, clang with a WASI library, or that of
the `ziglang` package. Without one it shows a module that it brings as text.

It needs `pip install 'ringfence[wasm]'`; with `ringfence[wasm-python]` and
`ringfence[wasm-javascript]` it runs scripts too.
"""

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
import wasmtime

from ringfence import Command, MissingDependencyError
from ringfence.backends.wasm import WasmBackend
from ringfence.config import WasmConfig

SOURCE = Path(__file__).parent / "untrusted" / "words.c"
TINY = r"""(module
  (import "wasi_snapshot_preview1" "fd_write"
    (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "hello from a module of a few lines\n")
  (func (export "_start")
    (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 35))
    (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"""
FOREVER = '(module (memory (export "memory") 1) (func (export "_start") (loop (br 0))))'


def compilers() -> list[list[str]]:
    """Return the commands on this machine that may compile C to WASI."""
    found = []
    if zig := shutil.which("zig"):
        found.append([zig, "cc"])
    if importlib.util.find_spec("ziglang"):
        found.append([sys.executable, "-m", "ziglang", "cc"])
    if clang := shutil.which("clang"):
        found.append([clang])
    return found


def build(folder: Path) -> Path:
    """Compile the demo, or make the tiny module where nothing can."""
    target = folder / "words.wasm"
    for compiler in compilers():
        argv = [*compiler, "--target=wasm32-wasi", "-Os", str(SOURCE), "-o", str(target)]
        if subprocess.run(argv, capture_output=True).returncode == 0:
            print("compiled with", " ".join(compiler))
            return target
    print("no compiler for WASI here; `pip install ziglang` brings one")
    target.write_bytes(wasmtime.wat2wasm(TINY))
    return target


async def run_module(path: Path) -> None:
    # An invalid module is refused here, not when it is first run.
    async with WasmBackend(WasmConfig(wasm_path=str(path), memory_limit_pages=1024)) as backend:
        result = await backend.execute(Command(["words", "one", "two"], stdin="a b c\nd"))
        print(result.stdout_text, result.stderr_text, f"exit code {result.exit_code}", sep="")

        # A live sandbox keeps its files from one run to the next; each run is a fresh instance.
        async with await backend.create() as sandbox:
            await sandbox.exec(Command(["words"], stdin="some more words"))
            for entry in (await sandbox.list_files()).entries:
                content = await sandbox.read_file(entry.name)
                print(f"it wrote {entry.name}: {content.decode().strip()}")


async def run_endless(folder: Path) -> None:
    path = folder / "forever.wasm"
    path.write_bytes(wasmtime.wat2wasm(FOREVER))
    async with WasmBackend(WasmConfig(wasm_path=str(path))) as backend:
        result = await backend.execute("forever", timeout=0.5)
        print(f"an endless loop: {result.exit_reason.value} after {result.duration_s:.2f} s")


async def run_scripts() -> None:
    for backend, program, code in (
        (WasmBackend.javascript(), "qjs", "console.log([3, 1, 2].sort())"),
        (WasmBackend.python(), "python", "import sys; print(sys.version.split()[0], 6 * 7)"),
    ):
        try:
            async with backend:
                option = "-e" if program == "qjs" else "-c"
                result = await backend.execute(program, [option, code])
                print(f"{program}: {result.stdout_text.strip()}")
                async with await backend.interpreter() as live:
                    await live.run("x = 20")
                    shown = "print(x + 1)" if program == "python" else "console.log(x + 1)"
                    print("a turn later:", (await live.run(shown)).stdout_text.strip())
        except MissingDependencyError as error:
            print(error)


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await run_module(Path(sys.argv[1]) if sys.argv[1:] else build(folder))
        await run_endless(folder)
    await run_scripts()


if __name__ == "__main__":
    anyio.run(main)
