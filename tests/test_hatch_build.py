"""The build hook: which compiler it takes, and what it refuses to ship."""

from __future__ import annotations

import os
import platform
import struct
import sys
from pathlib import Path

import pytest

import hatch_build as hook

MACHINE = "x86_64"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one C source, on a machine that has no compiler and no zig."""
    sources = tmp_path / "project" / hook.SOURCES
    sources.mkdir(parents=True)
    (sources / "warden.c").write_text("void _start(void) { for (;;) {} }\n")
    (tmp_path / "path").mkdir()
    for name in ("sh", "cat", "env"):
        (tmp_path / "path" / name).symlink_to(f"/bin/{name}" if name != "env" else "/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv(hook.TARGETS_VARIABLE, raising=False)
    monkeypatch.setattr(platform, "machine", lambda: MACHINE)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(hook, "_zig", lambda _machine: [])
    return tmp_path / "project"


def elf(machine: str = MACHINE, kind: int = 2, segment: int = 1, padding: int = 0) -> bytes:
    """Return the shortest program that has a header and one segment of a kind."""
    number = hook.ELF_MACHINES[machine]
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = struct.pack("<HHIQQQIHHHHHH", kind, number, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return ident + head + struct.pack("<I", segment).ljust(56 + padding, b"\0")


def compiler(root: Path, name: str, output: bytes | None) -> None:
    """Put a compiler on PATH that makes `output`, or that fails with a message."""
    program = root.parent / "path" / name
    if output is None:
        program.write_text(f"#!/bin/sh\necho {name} has no headers >&2\nexit 1\n")
    else:
        made = root.parent / f"{name}.out"
        made.write_bytes(output)
        program.write_text(
            f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncat "{made}" > "$2"\n'
        )
    program.chmod(0o755)


def test_a_system_compiler_builds_for_this_machine(root: Path) -> None:
    compiler(root, "cc", elf())
    before = os.umask(0o077)
    try:
        binaries = hook.build(root)
    finally:
        os.umask(before)
    assert list(binaries) == [MACHINE]
    assert binaries[MACHINE] == root / hook.OUTPUT / f"warden-{MACHINE}"
    assert binaries[MACHINE].read_bytes() == elf()
    assert binaries[MACHINE].stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (root / hook.OUTPUT).iterdir()] == [f"warden-{MACHINE}"]
    assert not hook._needs_zig(root)


def test_a_compiler_that_exists_but_fails_gives_way_to_the_next(root: Path) -> None:
    """Catches a check that only looks for a name on PATH: gcc without headers is common."""
    compiler(root, "cc", None)
    compiler(root, "gcc", elf())
    assert hook.build(root)[MACHINE].read_bytes() == elf()
    assert not hook._needs_zig(root)


def test_cc_is_tried_first_and_may_hold_options(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(root, "cc", None)
    compiler(root, "my-cc", elf(padding=8))
    monkeypatch.setenv("CC", "env LANG=C my-cc")
    assert hook.build(root)[MACHINE].read_bytes() == elf(padding=8)


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        (b"#!/bin/sh\n", "ELF"),
        (elf("aarch64"), f"no static program for {MACHINE}"),
        (elf(kind=3), f"no static program for {MACHINE}"),
        (elf(segment=3), "dynamic loader"),
        (None, "cc has no headers"),
    ],
    ids=["no ELF", "another machine", "position independent", "dynamic", "fails"],
)
def test_without_a_sound_binary_zig_is_asked_for(
    root: Path, output: bytes | None, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler(root, "cc", output)
    assert hook._needs_zig(root)
    assert complaint in capsys.readouterr().err
    with pytest.raises(hook.WardenBuildError, match=complaint) as raised:
        hook.build(root)
    assert "install gcc or clang" in str(raised.value)
    assert not (root / hook.OUTPUT / f"warden-{MACHINE}").exists()


def test_without_any_compiler_zig_is_asked_for(root: Path) -> None:
    assert hook._needs_zig(root)


def test_a_binary_that_has_grown_too_large_fails_the_build(root: Path) -> None:
    """Another compiler would only hide it, so no other is tried."""
    compiler(root, "cc", elf(padding=hook.MAX_BYTES))
    compiler(root, "gcc", elf())
    with pytest.raises(hook.WardenBuildError, match=str(hook.MAX_BYTES)):
        hook.build(root)
    with pytest.raises(hook.WardenBuildError, match=str(hook.MAX_BYTES)):
        hook._needs_zig(root)


def test_named_targets_are_all_built_by_zig(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(root, "cc", b"not to be used")
    for machine in hook.ELF_MACHINES:
        compiler(root, f"zig-{machine}", elf(machine))
    monkeypatch.setattr(hook, "_zig", lambda machine: [[f"zig-{machine}"]])
    monkeypatch.setenv(hook.TARGETS_VARIABLE, "x86_64, aarch64 x86_64")
    assert hook._needs_zig(root)
    assert {name: path.read_bytes() for name, path in hook.build(root).items()} == {
        "x86_64": elf("x86_64"),
        "aarch64": elf("aarch64"),
    }


def test_an_unknown_target_is_named_with_the_known_ones(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hook.TARGETS_VARIABLE, "x86_64 riscv64")
    with pytest.raises(hook.WardenBuildError, match="'riscv64'; it can name x86_64 and aarch64"):
        hook.build(root)


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "riscv64")])
def test_where_there_is_no_warden_nothing_is_built(
    root: Path, monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert hook.build(root) == {}
    assert not hook._needs_zig(root)


def test_missing_sources_are_not_taken_for_a_missing_compiler(root: Path) -> None:
    (root / hook.SOURCES / "warden.c").unlink()
    with pytest.raises(hook.WardenBuildError, match="no C sources"):
        hook._needs_zig(root)
