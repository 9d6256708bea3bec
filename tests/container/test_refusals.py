"""What an engine says no to, by its real answers."""

from __future__ import annotations

import anyio
import pytest

from ringfence.errors import BackendUnavailableError, CreateError
from ringfence.models import new_sandbox_id

from ..machine import held, nothing_left
from .conftest import MINIMAL, containers
from .seen import Left, Seen

pytestmark = pytest.mark.container


NONE = ("ringfence-test:none", "nowhere.invalid/none", "sha256:" + "0" * 64)


@pytest.mark.parametrize("name", NONE)
def test_an_image_that_is_not_there(seen: Seen, name: str) -> None:
    """Nobody pulls it, and the error says which and how it can be had."""

    async def main() -> None:
        before = held()
        with pytest.raises(BackendUnavailableError, match="has no image") as caught:
            await containers(seen.socket, name).__aenter__()
        assert name in caught.value.message
        assert "pull" in (caught.value.hint or "")
        await nothing_left(before)

    anyio.run(main)


def test_an_image_that_goes_while_the_backend_is_open(seen: Seen) -> None:
    async def main() -> None:
        made = seen.call("POST", "/commit", {}, container=donor(seen), repo="rf-test-gone", tag="1")
        async with containers(seen.socket, "rf-test-gone:1") as backend:
            await backend.execute("true")
            seen.call("DELETE", f"/images/{made['Id']}", force="1")
            with pytest.raises(CreateError, match="image is gone"):
                await backend.create()

    try:
        anyio.run(main)
    finally:
        seen.remove(DONOR)


DONOR = "rf-test-donor"


def donor(seen: Seen) -> str:
    """Return a container to make an image of."""
    seen.call("POST", "/containers/create", {"Image": MINIMAL, "Cmd": ["true"]}, name=DONOR)
    return DONOR


def test_a_name_that_somebody_else_has(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves_a_name_that_somebody_else_has(seen, monkeypatch)


def leaves_a_name_that_somebody_else_has(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other's container is left as it is, by the refusal and by the undoing after it."""
    taken = new_sandbox_id()
    seen.call("POST", "/containers/create", {"Image": MINIMAL, "Cmd": ["true"]}, name=taken)
    there = seen.inspect(taken)["Id"]

    async def main() -> None:
        async with containers(seen.socket) as backend:
            monkeypatch.setattr("ringfence.backend.backend.new_sandbox_id", lambda: taken)
            with pytest.raises(CreateError, match="already"):
                await backend.create()
            monkeypatch.undo()
            await backend.execute("true")
            await backend.reap()

    try:
        anyio.run(main)
        assert seen.inspect(taken)["Id"] == there
    finally:
        seen.remove(taken)


def test_a_removal_that_is_under_way_already(seen: Seen) -> None:
    """The engine answers 409 to all but the first, and each returns when it is gone."""

    async def main() -> None:
        async with containers(seen.socket) as backend:
            for _ in range(3):
                sandbox = await backend.create()
                async with anyio.create_task_group() as group:
                    for _ in range(4):
                        group.start_soon(anyio.to_thread.run_sync, seen.remove_quietly, sandbox.id)
                    group.start_soon(sandbox.aclose)
                await seen.until_nothing_left()

    anyio.run(main)


def test_a_runtime_that_is_not_there(seen: Seen) -> None:
    """It is said when the backend is opened, not when the first sandbox is made."""

    async def main() -> None:
        for runtime in ("kata-runtime", "nothing"):
            backend = containers(seen.socket, runtime=runtime)
            with pytest.raises(BackendUnavailableError, match=f"no runtime '{runtime}'"):
                await backend.__aenter__()
            assert not (await backend.probe()).ok
        assert seen.left() == Left()

    anyio.run(main)
