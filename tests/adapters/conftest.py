"""The tests of adapters run where their framework is installed: see scripts/suites.

`make suites` sets RINGFENCE_SUITE to the framework of the environment that it runs pytest in. Any
other run of pytest does not collect these directories: the framework is not there.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..own_places import own_places

__all__ = ("own_places",)

SUITE = os.environ.get("RINGFENCE_SUITE", "")

collect_ignore = [
    path.name
    for path in Path(__file__).parent.iterdir()
    if path.name not in (SUITE, "conftest.py", "test_examples.py" if SUITE else "conftest.py")
]
