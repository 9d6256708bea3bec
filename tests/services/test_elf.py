"""The programs that images have which are written by hand."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from scripts.services import elf
from scripts.services.steps import ServiceError

written_for_this = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="they are written for two"
)


@written_for_this
def test_the_program_without_a_libc_runs(tmp_path: Path) -> None:
    program = tmp_path / "hello"
    program.write_bytes(elf.hello(platform.machine()))
    program.chmod(0o755)
    assert subprocess.run([program], capture_output=True, check=True).stdout == b"hello\n"


@written_for_this
def test_the_one_that_waits_waits_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pause"
    path.write_bytes(elf.pause(platform.machine()))
    path.chmod(0o755)
    with subprocess.Popen([path]) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.terminate()
        assert process.wait(10) == -15


@pytest.mark.parametrize("program", [elf.hello, elf.pause])
def test_they_are_not_guessed_for_other_machines(program: object) -> None:
    assert callable(program)
    with pytest.raises(ServiceError, match="riscv64"):
        program("riscv64")
