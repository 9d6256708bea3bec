"""What the conformance suite does not say of the process backend without a warden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.backends._portable import PORTABLE_CAPABILITIES
from ringfence.backends.process import ProcessBackend
from ringfence.config import ProcessConfig
from ringfence.models import Command, Enforcement

pytestmark = pytest.mark.anyio


async def test_a_directory_of_the_caller_is_kept(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("given")
    async with ProcessBackend(ProcessConfig(work_dir=tmp_path, portable=True)) as backend:
        async with await backend.create() as sandbox:
            assert sandbox.workspace == str(tmp_path)
            result = await sandbox.exec(Command(["sh", "-c", "cat input; echo made >output; env"]))
        await backend.execute("cp", ["input", "copy"])
    assert (tmp_path / "output").read_text() == "made\n"
    assert (tmp_path / "copy").read_text() == "given"
    environment = dict(line.split("=", 1) for line in result.stdout_text.splitlines()[1:])
    assert not os.path.exists(environment["HOME"])
    assert not os.path.exists(environment["TMPDIR"])


async def test_a_directory_of_its_own_is_removed() -> None:
    async with ProcessBackend(ProcessConfig(portable=True)) as backend:
        async with await backend.create() as sandbox:
            await sandbox.write_file("f", "x")
            await sandbox.exec("chmod", ["000", "."])
            assert os.path.isdir(sandbox.workspace)
        assert not os.path.exists(sandbox.workspace)


def test_capabilities_say_what_is_lost() -> None:
    assert not PORTABLE_CAPABILITIES.kill_tree
    assert set(vars(PORTABLE_CAPABILITIES.limits).values()) == {Enforcement.NONE}
    assert any("setsid" in note for note in PORTABLE_CAPABILITIES.notes)
