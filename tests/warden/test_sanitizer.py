"""That the sanitizers would tell, and the kill tests under their eyes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import anyio
import pytest

from ringfence.backends import process
from ringfence.backends.process import ProcessBackend
from ringfence.config import ProcessConfig

from .conftest import Build, sanitized
from .trees import LIMITS, kill_many

pytestmark = [pytest.mark.sanitizer, pytest.mark.timeout(600)]

HEAD = """
#include <stdlib.h>
__attribute__((noinline)) static int at(const char *p, int n) { return p[n]; }
"""
FAULTS = {
    "heap-buffer-overflow": "return at(calloc(1, (size_t)argc), argc) + !argv;",
    "stack-buffer-overflow": "char p[8] = {0}; return at(p, argc + 7) + !argv;",
    "add_overflow": "int n = 2147483647; n += argc; return n + at(*argv, 0);",
    "shift_out_of_bounds": "return 1 << (argc + 31 + !at(*argv, 0));",
    "type_mismatch": "return *(int *)((unsigned long)*argv | argc) + at(*argv, 0);",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sanitizers_would_tell(fault: str, tmp_path: Path) -> None:
    source = tmp_path / "fault.c"
    source.write_text(f"{HEAD}int main(int argc, char **argv) {{ {FAULTS[fault]} }}\n")
    reports = tmp_path / "reports"
    reports.mkdir()
    sanitized([source], tmp_path / "fault", reports)
    assert subprocess.run([tmp_path / "fault"]).returncode != 0
    assert fault in Build(source, reports).found()


@pytest.mark.parametrize("kind", ["daemons", "ignoring", "threads", "zombies", "execs"])
def test_kills_with_the_process_backend(
    kind: str, sanitized_build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "warden_path", lambda: sanitized_build.path)

    async def kill() -> None:
        async with ProcessBackend(ProcessConfig(kill_grace=LIMITS.kill_grace)) as backend:
            await kill_many(backend, kind, 20, side_by_side=2)

    anyio.run(kill)
    assert sanitized_build.found() == ""
