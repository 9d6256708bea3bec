"""Everything that a jail promises, for a caller who is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent.parent
USER = "54321"


def closed_parents(path: str) -> list[str]:
    """Return the directories above a path that others may not enter, outermost first."""
    parents = [str(parent) for parent in reversed(Path(os.path.realpath(path)).parents)]
    return [parent for parent in parents if not Path(parent).stat().st_mode & 0o001]


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user then")
def test_the_conformance_suite_passes_for_an_ordinary_user(tmp_path: Path) -> None:
    closed = {parent for path in (sys.base_prefix, sys.prefix, str(PROJECT))
              for parent in closed_parents(path)[:1]}  # fmt: skip
    # In a mount namespace of its own, the interpreter's and the project's parents are made open:
    # they may lie in a home directory that nobody else can enter.
    steps = ["set -e"]
    for number, parent in enumerate(sorted(closed)):
        # An open directory over the closed one, with what is needed of it bound to its place.
        needed = sorted(
            {os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, str(PROJECT))
             if os.path.realpath(path).startswith(parent + "/")}
        )  # fmt: skip
        for index, path in enumerate(needed):
            kept = tmp_path / f"kept-{number}-{index}"
            kept.mkdir()
            steps.append(f"mount --bind {path} {kept}")
        steps.append(f"mount -t tmpfs -o mode=0755 tmpfs {parent}")
        for index, path in enumerate(needed):
            steps += [f"mkdir -p {path}", f"mount --bind {tmp_path}/kept-{number}-{index} {path}"]
    home = Path("/tmp") / f"ringfence-test-home-{os.getpid()}"
    home.mkdir(mode=0o700)
    os.chown(home, int(USER), int(USER))
    steps.append(
        f"cd {PROJECT} && exec setpriv --reuid {USER} --regid {USER} --clear-groups "
        f"{sys.executable} -m pytest -p no:cacheprovider -q tests/conformance/test_bubblewrap.py"
    )
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "RINGFENCE_REQUIRE_BACKENDS": "bubblewrap",
    }
    try:
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(steps)],
            env=environment, capture_output=True, text=True, timeout=800, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
