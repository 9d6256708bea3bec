"""A fetch of an image that does not come to its good end, without an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from ringfence.backends._docker_image import _pull
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUnavailableError


class Engine:
    """Tells some steps of a fetch and then no more.

    Attributes:
        released: Whether its answer has been let go of.
    """

    def __init__(self, *steps: dict[str, str]) -> None:
        self.docker = self.images = self
        self.released = False
        self._steps = steps

    def pull(self, name: str, *, stream: bool) -> AsyncGenerator[dict[str, str], None]:
        return self._answer()

    async def _answer(self) -> AsyncGenerator[dict[str, str], None]:
        try:
            for step in self._steps:
                yield step
            await anyio.sleep_forever()
        finally:
            self.released = True


def fetch(engine: Engine, on_progress: Any = None) -> None:
    config = ContainerConfig(image="there/is:1", pull="missing", pull_timeout=0.2)

    async def main() -> None:
        try:
            await _pull(engine, config, on_progress)  # type: ignore[arg-type]
        finally:
            assert engine.released

    anyio.run(main)


def test_a_refused_fetch_lets_go_of_its_answer() -> None:
    engine = Engine({"status": "Pulling"}, {"error": "no space left on device"})
    with pytest.raises(BackendUnavailableError, match="failed: no space left on device"):
        fetch(engine)


def test_a_callback_that_fails_ends_the_fetch() -> None:
    def broken(line: str) -> None:
        raise KeyError(line)

    with pytest.raises(KeyError, match="Pulling"):
        fetch(Engine({"status": "Pulling"}), broken)


def test_a_fetch_that_takes_too_long_says_what_was_heard_last() -> None:
    engine = Engine({"status": "Downloading", "id": "abc", "progress": "1MB/2MB"})
    with pytest.raises(BackendUnavailableError, match=r"within 0.2 s; last: abc Downloading 1MB"):
        fetch(engine)
