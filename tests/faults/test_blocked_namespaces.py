"""Where user namespaces are switched off there is no jail, and the error says what blocks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make a namespace in which they are switched off"
)

TRY = """
import anyio
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.config import BubblewrapConfig
from ringfence.errors import BackendUnavailableError

async def main():
    try:
        async with BubblewrapBackend(BubblewrapConfig()) as backend:
            print("it runs:", (await backend.execute("id", ["-u"])).text)
    except BackendUnavailableError as error:
        print("refused:", error)
    print("probe:", (await BubblewrapBackend(BubblewrapConfig()).probe()).ok)

anyio.run(main)
"""


def test_user_namespaces_that_are_switched_off(own_places: Path) -> None:
    """In a user namespace of its own, so that nobody else on the machine notices."""
    script = own_places / "try.py"
    script.write_text(TRY)
    switch_off = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    apart = ("unshare", "--user", "--map-root-user", "--mount", "--")
    tried = subprocess.run(
        [*apart, "sh", "-c", switch_off, "sh", sys.executable, "-W", "ignore", str(script)],
        env={**os.environ, "RINGFENCE_STATE_DIR": str(own_places / "blocked")},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.startswith("refused: bubblewrap can't make a sandbox here")
    assert "sysctl user.max_user_namespaces" in tried.stdout
    assert tried.stdout.endswith("probe: False\n")
