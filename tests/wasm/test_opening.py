"""What is refused when a backend is opened, and what it says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wasmtime

from ringfence.backends._wasm_engine import compile_module
from ringfence.backends.wasm import WasmBackend
from ringfence.config import WasmConfig
from ringfence.errors import ConfigError, SandboxClosedError, UnsupportedError
from ringfence.models import Isolation, Mount, Network, SandboxSpec
from ringfence.registry import open_backend

from . import programs
from .conftest import Make

pytestmark = pytest.mark.anyio

START = '(func (export "_start"))'
REFUSED = {
    "empty": (b"", "not a WebAssembly module"),
    "text": (b"(module)", "not a WebAssembly module"),
    "an ELF file": (b"\x7fELF" + bytes(100), "not a WebAssembly module"),
    "a header alone": (b"\0asm\x01\0\0\0", "no program"),
    "cut": (programs.HELLO[:-3], "not a valid module"),
    "rubbish": (b"\0asm\x01\0\0\0" + b"\xff" * 50, "not a valid module"),
    "a component": (bytes(wasmtime.wat2wasm("(component)")), "is a component"),
    "a library": (bytes(wasmtime.wat2wasm('(module (func (export "add")))')), "_start"),
    "a start that takes values": (
        bytes(wasmtime.wat2wasm('(module (func (export "_start") (param i32)))')),
        "takes or returns values",
    ),
    "a start that is a memory": (
        bytes(wasmtime.wat2wasm('(module (memory (export "_start") 1))')),
        "_start",
    ),
    "a framework's imports": (
        bytes(wasmtime.wat2wasm(f'(module (import "env" "log" (func)) {START})')),
        r"imports what no WASI host has: env\.log",
    ),
    "an unknown WASI function": (
        bytes(
            wasmtime.wat2wasm(
                f'(module (import "wasi_snapshot_preview1" "no_such" (func)) {START})'
            )
        ),
        "no_such",
    ),
    "a WASI function of another type": (
        bytes(
            wasmtime.wat2wasm(
                f'(module (import "wasi_snapshot_preview1" "fd_write" (func)) {START})'
            )
        ),
        "fd_write",
    ),
    "an imported memory": (
        bytes(wasmtime.wat2wasm(f'(module (import "env" "memory" (memory 1)) {START})')),
        r"env\.memory",
    ),
    "shared memory": (
        bytes(wasmtime.wat2wasm(f"(module (memory 1 2 shared) {START})")),
        "not a valid module",
    ),
    "64-bit memory": (
        bytes(wasmtime.wat2wasm(f"(module (memory i64 1) {START})")),
        "not a valid module",
    ),
    "two memories": (
        bytes(wasmtime.wat2wasm(f"(module (memory 1) (memory 1) {START})")),
        "not a valid module",
    ),
    "more memory than it may have": (programs.binary("", pages=5000), "over the limit of 4096"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_module_that_can_t_be_run_is_refused_when_it_is_opened(
    make: Make, name: str
) -> None:
    content, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        async with make(content):
            raise AssertionError("it was opened")


async def test_a_module_is_needed_and_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a module"):
        async with WasmBackend():
            pass
    with pytest.raises(ConfigError, match="can't be read"):
        async with WasmBackend(WasmConfig(wasm_path=str(tmp_path / "no"))):
            pass
    with pytest.raises(ConfigError, match="can't be read"):
        async with WasmBackend(WasmConfig(wasm_path=str(tmp_path))):
            pass


@pytest.mark.parametrize(
    "settings",
    [
        {"memory_limit_pages": 0},
        {"memory_limit_pages": 65537},
        {"fuel": 0},
        {"stack_bytes": 1},
        {"clock": "wrong"},
        {"wasm_path": "a\0b"},
    ],
)
def test_settings_that_can_t_be_right_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        WasmConfig(**settings)


def test_an_unknown_interpreter_and_a_network_are_refused() -> None:
    with pytest.raises(ConfigError, match="known are python"):
        WasmBackend(WasmConfig(interpreter="cobol"))
    with pytest.raises(ConfigError, match="no network"):
        WasmBackend(WasmConfig(network="bridge"))


async def test_directories_must_be_there_and_directories(make: Make, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for settings in (
        {"fs_dir": tmp_path / "no"},
        {"fs_dir": file},
        {"mounts": (Mount(str(file)),)},
        {"mounts": (Mount(str(tmp_path / "no")),)},
    ):
        with pytest.raises(ConfigError):
            async with make(programs.HELLO, **settings):
                pass
    async with make(programs.HELLO) as backend:
        with pytest.raises(ConfigError, match="not a directory"):
            await backend.execute("x", spec=SandboxSpec(mounts=(Mount(str(file)),)))


async def test_a_network_is_refused(make: Make) -> None:
    async with make(programs.HELLO) as backend:
        with pytest.raises(UnsupportedError, match="network"):
            await backend.execute("x", spec=SandboxSpec(network=Network("bridge")))


async def test_a_backend_is_used_between_opening_and_closing(make: Make) -> None:
    backend = make(programs.HELLO)
    with pytest.raises(SandboxClosedError, match="not open"):
        await backend.execute("x")
    async with backend:
        await backend.execute("x")
    for call in (backend.execute("x"), backend.create()):
        with pytest.raises(SandboxClosedError, match="closed"):
            await call


async def test_a_module_has_no_turns(make: Make) -> None:
    async with make(programs.HELLO) as backend:
        with pytest.raises(UnsupportedError, match="no turns"):
            await backend.interpreter()


async def test_it_is_opened_by_its_names(tmp_path: Path) -> None:
    path = tmp_path / "p.wasm"
    path.write_bytes(programs.HELLO)
    for name in ("wasm", "wasi"):
        async with open_backend({"backend": name, "wasm_path": str(path)}) as backend:
            assert backend.capabilities.isolation is Isolation.WASM
            assert not backend.capabilities.arbitrary_programs
            assert (await backend.execute("x")).stdout == b"hello\n"


async def test_its_probe_names_the_runtime_and_the_interpreters() -> None:
    probe = await WasmBackend().probe()
    assert probe.ok
    assert set(probe.details) == {"wasmtime", "python", "python-scientific", "javascript"}


async def test_a_module_is_compiled_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from ringfence.backends import _wasm_loading

    compiled: list[str] = []

    def count(engine: Any, content: bytes, name: str) -> Any:
        compiled.append(name)
        return compile_module(engine, content, name)

    monkeypatch.setattr(_wasm_loading, "compile_module", count)
    async with make(programs.HELLO) as backend:
        for _ in range(3):
            await backend.execute("x")
    assert len(compiled) == 1
