"""A sandbox whose programs have used all of its processes up: what is asked of it then."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.errors import LimitError
from ringfence.export import export_workspace
from ringfence.models import Command, Limits, SandboxSpec

from .conftest import Factory

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(300)]

FORKS = """
import os, time
while True:
    try:
        if not os.fork():
            time.sleep(60)
            os._exit(0)
    except OSError:
        time.sleep(0.001)
"""
FULL = Command(("/usr/bin/python3", "-c", FORKS), leftovers="kill")


async def read_until_refused(sandbox: Sandbox) -> None:
    """Read a file, for which the sandbox may have a process ready at first."""
    with anyio.fail_after(60):
        while True:
            await sandbox.read_file("kept")


def test_a_file_operation_that_gets_no_process_is_a_typed_error(
    jails: Factory, tmp_path: Path
) -> None:
    """Catches an error that could be anything, where a command would be told which limit it is."""

    async def main() -> None:
        spec = SandboxSpec(limits=Limits(pids=20))
        async with jails() as backend, await backend.create(spec) as sandbox:
            await sandbox.write_file("kept", "whole")
            filler = await sandbox.start(FULL)
            with pytest.raises(LimitError) as caught:
                await read_until_refused(sandbox)
            assert caught.value.limit == "pids"
            assert "for the file operation" in caught.value.message
            report = await export_workspace(sandbox, tmp_path)  # which says so too, or had a chance
            assert len(report.files) + len(report.skipped) == 1
            await filler.kill()
            await filler.wait()
            assert await sandbox.read_file("kept") == b"whole"

    anyio.run(main)
