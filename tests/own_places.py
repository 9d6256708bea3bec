"""Places of its own for a test run that counts what is left in them.

A conftest takes it with `from ..own_places import own_places`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.inventory import owners

PLACE = "/tmp/ringfence-tests"


@pytest.fixture(scope="session", autouse=True)
def own_places() -> Iterator[Path]:
    """Keep the inventory and temporary files apart from those of others on this machine."""
    if (known := os.environ.get("RINGFENCE_STATE_DIR", "")).startswith(f"{PLACE}-"):
        yield Path(known).parent
        return
    with tempfile.TemporaryDirectory(prefix=f"{Path(PLACE).name}-", dir="/tmp") as place:
        os.chmod(place, 0o755)  # jails of a private uid pass through it
        (Path(place) / "tmp").mkdir(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RINGFENCE_STATE_DIR", f"{place}/state")
            patch.setattr(tempfile, "tempdir", f"{place}/tmp")
            patch.setattr(owners._process, "owner", None)  # who has a slot elsewhere, perhaps
            yield Path(place)
