"""Compiled modules on disk: found again, and never taken from where others can write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wasmtime

from ringfence.backends import _wasm_cache
from ringfence.backends._wasm_cache import Cache, default_cache_dir, digest
from ringfence.backends._wasm_carriers import CARRIERS, Carrier
from ringfence.backends._wasm_engine import Engine, engine_for
from ringfence.errors import ConfigError, MissingDependencyError

from . import programs

posix = pytest.mark.skipif(sys.platform == "win32", reason="it has no such permissions")
DIGEST = digest(programs.HELLO)


@pytest.fixture
def engine() -> Engine:
    return engine_for(False, 1024 * 1024)


class Loads:
    """A cache in a folder of its own, that says how often it has compiled."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.compiled = 0

    def __call__(self) -> wasmtime.Module:
        def content() -> bytes:
            self.compiled += 1
            return programs.HELLO

        return Cache(self.folder).load(self.engine, DIGEST, content, "hello")

    @property
    def file(self) -> Path:
        (file,) = self.folder.glob("*.cwasm")
        return file


@pytest.fixture
def loads(tmp_path: Path, engine: Engine) -> Loads:
    return Loads(tmp_path / "cache", engine)


def test_a_module_is_compiled_once_and_then_found(loads: Loads) -> None:
    assert not Cache(loads.folder).has(loads.engine, DIGEST)
    loads()
    assert Cache(loads.folder).has(loads.engine, DIGEST)
    loads()
    assert loads.compiled == 1


def test_what_is_in_memory_is_not_loaded_twice(loads: Loads) -> None:
    module = loads()
    loads.file.unlink()
    assert loads() is module


@posix
def test_folder_and_file_are_for_their_user_alone(loads: Loads) -> None:
    loads()
    assert loads.folder.stat().st_mode & 0o777 == 0o700
    assert loads.file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in loads.folder.iterdir()] == [loads.file.name]


def test_other_settings_and_contents_have_other_files(loads: Loads) -> None:
    loads()
    other = Loads(loads.folder, engine_for(True, 1024 * 1024))
    other()
    assert other.compiled == 1
    Cache(loads.folder).load(loads.engine, digest(programs.ARGS), lambda: programs.ARGS, "args")
    assert len(list(loads.folder.glob("*.cwasm"))) == 3


def test_another_version_of_the_runtime_has_another_file(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads()
    monkeypatch.setattr(_wasm_cache, "version", lambda _: "999")
    assert not Cache(loads.folder).has(loads.engine, DIGEST)


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_file_that_was_cut_is_compiled_again(loads: Loads, size: int) -> None:
    loads()
    os.truncate(loads.file, size)
    loads()
    assert loads.compiled == 2
    loads()
    assert loads.compiled == 2


def _other_owner(loads: Loads) -> None:
    os.chown(loads.file, 12345, 12345)


def _group_writable(loads: Loads) -> None:
    loads.file.chmod(0o660)


def _world_writable(loads: Loads) -> None:
    loads.file.chmod(0o602)


def _second_name(loads: Loads) -> None:
    os.link(loads.file, loads.folder / "second")


def _symlink(loads: Loads) -> None:
    file = loads.file
    target = loads.folder / "target"
    file.rename(target)
    file.symlink_to(target)


def _open_folder(loads: Loads) -> None:
    loads.folder.chmod(0o755)


def _folder_of_another(loads: Loads) -> None:
    os.chown(loads.folder, 12345, 12345)


def _folder_is_a_link(loads: Loads) -> None:
    real = loads.folder.with_name("real")
    loads.folder.rename(real)
    loads.folder.symlink_to(real)


def _parent_of_all(loads: Loads) -> None:
    loads.folder.parent.chmod(0o777)


@posix
@pytest.mark.parametrize(
    "attack",
    [
        _other_owner,
        _group_writable,
        _world_writable,
        _second_name,
        _symlink,
        _open_folder,
        _folder_of_another,
        _folder_is_a_link,
        _parent_of_all,
    ],
)
def test_what_another_user_could_have_written_is_never_loaded(
    loads: Loads, attack: Callable[[Loads], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches machine code of somebody else, run in this process."""
    if "other" in attack.__name__ and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    loads()
    attack(loads)
    loaded: list[Any] = []
    monkeypatch.setattr(wasmtime.Module, "deserialize_file", lambda *args: loaded.append(args))
    loads()
    assert loaded == []
    assert loads.compiled == 2


@posix
def test_a_folder_that_can_t_be_written_is_no_error(
    loads: Loads, caplog: pytest.LogCaptureFixture
) -> None:
    loads.folder.write_text("a file in its place")
    loads()
    assert loads.compiled == 1
    assert "could not be cached" in caplog.text


def test_a_write_that_fails_leaves_nothing(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    loads()
    assert list(loads.folder.iterdir()) == []


def test_the_default_is_below_the_user_s_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/ringfence/wasm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == Path.home() / ".cache" / "ringfence" / "wasm"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_cache_dir() == Path.home() / "Library" / "Caches" / "ringfence" / "wasm"


class TestCarriers:
    def carrier(self, package: str, file: str, sha256: str) -> Carrier:
        return Carrier("made-up", package, "1", file, sha256, "wasm-made-up", "a build")

    def test_every_pin_is_a_hash(self) -> None:
        for row in CARRIERS.values():
            for pin in (row.sha256, row.library[1] if row.library else row.sha256):
                assert len(bytes.fromhex(pin)) == 32

    def test_a_package_that_is_missing_is_named_with_its_extra(self) -> None:
        row = self.carrier("a-package-that-nobody-has", "x", "")
        with pytest.raises(MissingDependencyError, match=r"ringfence\[wasm-made-up\]"):
            row.path()

    def test_another_file_than_the_pinned_one_is_refused(self) -> None:
        """Catches a package that was changed, by whomever, since it was looked at."""
        row = self.carrier("wasmtime", "wasmtime/__init__.py", "0" * 64)
        with pytest.raises(ConfigError, match="not the file that"):
            row.read()

    def test_a_file_that_is_gone_is_an_error(self) -> None:
        row = self.carrier("wasmtime", "wasmtime/no-such-file", "0" * 64)
        with pytest.raises(ConfigError, match="can't be read"):
            row.read()
