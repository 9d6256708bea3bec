"""From a config to a program that is ready to be run: found, compiled, checked."""

from __future__ import annotations

from pathlib import Path

import wasmtime

from ..config import WasmConfig
from ..errors import ConfigError
from ._wasm_cache import Cache, default_cache_dir, digest
from ._wasm_carriers import CARRIERS, Carrier
from ._wasm_engine import Engine, compile_module, engine_for, inspect, require_memory
from ._wasm_guest import Traits
from ._wasm_host import HOST_MODULE
from ._wasm_program import Program

__all__ = ("Loader",)

_INTERPRETER_STACK = 8 * 1024 * 1024  # they recurse where their programs do
_CACHED_BYTES = 1024 * 1024  # a smaller module is compiled before its file is found


class Loader:
    """Finds and compiles what a config names.

    Args:
        config: Which module, and how it is run.
        row: The carrier of its interpreter, if it names one.

    Attributes:
        library: A folder that the interpreter needs, once it is loaded.
    """

    def __init__(self, config: WasmConfig, row: Carrier | None) -> None:
        self._config = config
        self._row = row
        self._cache = Cache(Path(config.cache_dir or default_cache_dir()))
        self.library: str | None = None

    @property
    def is_prepared(self) -> bool:
        """Whether loading would find the interpreter compiled; true of a module."""
        if self._row is None or self._config.wasm_path:
            return True
        return self._cache.has(self._engine(), self._row.key)

    def load(self, memory_bytes: int) -> Program:
        """Compile the module, or fetch it compiled, and check that it can be run.

        Args:
            memory_bytes: The most memory that it may have.

        Raises:
            ConfigError: It can't.
            MissingDependencyError: The package of its interpreter is not installed.
        """
        engine, row = self._engine(), self._row
        name, module = self._module(engine)
        if row is not None:
            self.library = row.library_dir(self._cache.folder)
        known = frozenset({(HOST_MODULE, "call")}) if self.library else frozenset()
        found = inspect(module, name, row.start if row else "_start", known)
        require_memory(found, name, memory_bytes)
        by_default = "real" if row else "fixed"
        traits = Traits(
            real_clock=(self._config.clock or by_default) == "real",
            real_random=(self._config.random or by_default) == "real",
        )
        if row is None:
            return Program(engine, found, traits)
        return Program(engine, found, traits, row.entry)

    def _engine(self) -> Engine:
        stack = self._config.stack_bytes
        if self._row is not None:
            stack = max(stack, _INTERPRETER_STACK)
        return engine_for(self._config.fuel is not None, stack)

    def _module(self, engine: Engine) -> tuple[str, wasmtime.Module]:
        row, path = self._row, self._config.wasm_path
        if row is not None and not path:
            row.path()  # a compiled module alone is no package
            return row.interpreter, self._cache.load(engine, row.key, row.read, row.interpreter)
        content = _read_module(path)
        if row is not None:
            content = row.patched(content)
        if len(content) < _CACHED_BYTES:
            return path, compile_module(engine, content, path)
        return path, self._cache.load(engine, digest(content), lambda: content, path)


def _read_module(path: str) -> bytes:
    """Return a module's bytes.

    Raises:
        ConfigError: None was named, or it can't be read.
    """
    if not path:
        raise ConfigError(
            "the wasm backend needs a module",
            backend="wasm",
            hint="set wasm_path, or interpreter to " + " or ".join(map(repr, CARRIERS)),
        )
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the module {path!r} can't be read: {error.strerror}", backend="wasm"
        ) from None
