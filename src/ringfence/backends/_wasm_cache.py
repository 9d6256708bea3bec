"""Compiled modules on disk: native code, so it is trusted only where nobody else can write.

The name of a file is the hash of what it was made from: the module's bytes, the engine's
settings, and the version of the runtime. Files are written beside their place and moved there. A
folder or file that another user owns or can write, or that a link leads to, is not used: the
module is compiled again and kept in memory, and the log says why.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import stat as stats
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import wasmtime

from ._wasm_engine import Engine, compile_module

__all__ = ("Cache", "default_cache_dir", "digest")

_log = logging.getLogger(__name__)
_compiling = threading.Lock()
_loaded: weakref.WeakValueDictionary[tuple[str, Engine], wasmtime.Module] = (
    weakref.WeakValueDictionary()
)


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def default_cache_dir() -> Path:
    """Return where compiled modules are kept if nobody says otherwise."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "ringfence" / "wasm"


class Cache:
    """A folder of compiled modules.

    Args:
        folder: Where it is; made when it is first written, for this user alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, engine: Engine, content_digest: str) -> bool:
        """Whether a module would not have to be compiled."""
        return self._usable(self._path(engine, content_digest)) is not None

    def load(
        self, engine: Engine, content_digest: str, content: Callable[[], bytes], name: str
    ) -> wasmtime.Module:
        """Return a compiled module: the one in memory, else from the folder, else a new one.

        Args:
            engine: For which engine.
            content_digest: The SHA-256 of the module.
            content: Returns the module's bytes, which have been held to that.
            name: What it is called in errors.

        Raises:
            ConfigError: It is no valid module.
        """
        with _compiling:  # once, however many ask at the same time
            key = content_digest, engine
            module = _loaded.get(key)
            if module is None:
                _loaded[key] = module = self._load(engine, content_digest, content, name)
            return module

    def _load(
        self, engine: Engine, content_digest: str, content: Callable[[], bytes], name: str
    ) -> wasmtime.Module:
        path = self._path(engine, content_digest)
        if usable := self._usable(path):
            try:
                return wasmtime.Module.deserialize_file(engine.engine, str(usable))
            except wasmtime.WasmtimeError as error:
                _log.info("%s is compiled again: %s", name, error)  # another processor, or cut
        module = compile_module(engine, content(), name)
        self._store(path, module)
        return module

    def _path(self, engine: Engine, content_digest: str) -> Path:
        made_with = f"{engine.settings} wasmtime={version('wasmtime')} {platform.machine()}"
        key = hashlib.sha256(f"{content_digest} {made_with} {sys.platform}".encode())
        return self.folder / f"{key.hexdigest()}.cwasm"

    def _usable(self, path: Path) -> Path | None:
        """Return the path if it can be trusted."""
        try:
            info = os.lstat(path)
        except OSError:
            return None
        if fault := self._fault(path, info):
            _log.warning("the compiled module %s is not used: %s", path, fault)
            return None
        return path

    def _fault(self, path: Path, info: os.stat_result) -> str:
        if not stats.S_ISREG(info.st_mode):
            return "it is not a regular file"
        if sys.platform == "win32":  # a profile's folders are the user's own
            return ""
        if info.st_uid != os.geteuid() or info.st_mode & 0o022 or info.st_nlink != 1:
            return "somebody else owns it or can write it"
        return folder_fault(path.parent)

    def _store(self, path: Path, module: wasmtime.Module) -> None:
        """Write a compiled module; what stands in the way is told, and no error."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if fault := folder_fault(self.folder):
                _log.warning("nothing is cached in %s: %s", self.folder, fault)
                return
            fd, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(module.serialize())
                    file.flush()
                    os.fsync(file.fileno())  # a file that a crash emptied would be run as code
                os.replace(temporary, path)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            _log.warning("a compiled module could not be cached in %s: %s", self.folder, error)


def folder_fault(folder: Path) -> str:
    """Return why what is in a folder may have been written by another user; empty if it can't."""
    if sys.platform == "win32":
        return ""
    me = os.geteuid()
    try:
        info = os.lstat(folder)
        if not stats.S_ISDIR(info.st_mode) or info.st_uid != me or info.st_mode & 0o077:
            return f"{folder} has to be a folder of this user with mode 0700"
        for above in folder.resolve().parents:
            info = os.stat(above)
            is_shared = info.st_mode & 0o022 and not info.st_mode & stats.S_ISVTX
            if info.st_uid not in (0, me) or is_shared:
                return f"another user can replace what is in {above}"
    except OSError as error:
        return str(error)
    return ""
