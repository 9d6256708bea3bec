"""Images are fetched only if that was asked for, and an error says that it was the fetch."""

from __future__ import annotations

import anyio
import pytest

from ringfence.errors import BackendUnavailableError

from .conftest import containers
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

NOWHERE = "no-such-registry.invalid/x:1"


def opening(seen: Seen, **settings: object) -> BackendUnavailableError:
    """Return what opening a backend fails with."""

    async def main() -> BackendUnavailableError:
        with pytest.raises(BackendUnavailableError) as caught:
            async with containers(seen.socket, image=NOWHERE, **settings):
                raise AssertionError
        return caught.value

    return anyio.run(main)


def test_nothing_is_fetched_unless_asked_for(seen: Seen) -> None:
    error = opening(seen)
    assert "has no image" in error.message
    assert "pulling" not in error.message


@pytest.mark.parametrize("pull", ["missing", "always"])
def test_a_fetch_that_fails_says_so(seen: Seen, pull: str) -> None:
    error = opening(seen, pull=pull)
    assert error.message.startswith(f"pulling image {NOWHERE!r} failed: ")


def test_a_fetch_that_takes_too_long_says_that_it_was_the_fetch(seen: Seen) -> None:
    error = opening(seen, pull="missing", pull_timeout=0.001)
    assert f"pulling image {NOWHERE!r} was not done within 0.001 s" in error.message


def test_an_image_that_is_there_is_not_fetched(seen: Seen) -> None:
    async def main() -> None:
        lines: list[str] = []
        backend = containers(seen.socket, pull="missing")
        backend.on_progress = lines.append
        async with backend:
            assert (await backend.execute("echo", ["hi"])).stdout == b"hi\n"
        assert lines == []

    anyio.run(main)
