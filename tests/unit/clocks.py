"""A clock on which a test that waits for long takes no time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio.testing


def on_a_jumping_clock(test: Callable[..., Any]) -> Any:
    """Let a test that waits for long run on a clock that jumps."""
    return pytest.mark.parametrize(
        "anyio_backend",
        [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
        ids=["jumping"],
    )(test)
