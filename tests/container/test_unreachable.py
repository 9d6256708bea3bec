"""An engine that is not there, or takes what is said and never answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from ringfence.errors import (
    BackendUnavailableError,
    BackendUnreachableError,
    CreateTimeoutError,
    SandboxError,
)
from ringfence.models import Command, Limits, SandboxSpec

from ..machine import held, nothing_left
from .between import REQUESTS, Between, Spoilt
from .conftest import containers
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]

SOON = SandboxSpec(limits=Limits(start_timeout=1.0))
CALL_SECONDS = 10.0  # that one request to the engine may take
REMOVE_SECONDS = 20.0  # that are spent on removing what is lost, before that is told
SLACK = 30.0  # for a busy machine
BEFORE = ("version", "info", "image", "volume")
"""Requests of opening a backend."""


def test_no_engine_at_all(tmp_path: Path) -> None:
    """Named and missing, it is an error that names it, at once, and nothing stays behind."""

    async def main() -> None:
        before = held()
        backend = containers(str(tmp_path / "none.sock"))
        with pytest.raises(BackendUnreachableError, match=r"none\.sock") as caught:
            await backend.__aenter__()
        assert caught.value.hint
        probe = await backend.probe()
        assert not probe.ok
        assert "none.sock" in probe.reason
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)


def test_a_file_that_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        with pytest.raises(BackendUnavailableError):
            await containers(str(tmp_path / "file")).__aenter__()

    anyio.run(main)


async def timed(work: Callable[[], Awaitable[object]], most: float) -> SandboxError:
    """Return the typed error that something must end with, in time."""
    with anyio.fail_after(most), pytest.raises(SandboxError) as caught:
        await work()
    return caught.value


@pytest.mark.parametrize("how", ["unheard", "hung up"])
@pytest.mark.parametrize("request_name", ["version", "image"])
def test_opening_at_an_engine_that_does_not_answer(
    between: Between, seen: Seen, request_name: str, how: Spoilt
) -> None:
    """It accepts and never answers, or hangs up: opening ends in time, with nothing open."""

    async def main() -> None:
        before = held()
        between.spoil(request_name, how)
        async with between.serve():
            error = await timed(containers(between.path).__aenter__, CALL_SECONDS + SLACK)
            assert isinstance(error, BackendUnreachableError)
            assert between.path in str(error)
            assert error.retryable
        assert between.asked[-1] == request_name
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)


@pytest.mark.parametrize("how", ["unheard", "unanswered", "hung up"])
@pytest.mark.parametrize("request_name", ["create", "attach", "start"])
def test_creating_at_an_engine_that_falls_silent(
    between: Between, seen: Seen, request_name: str, how: Spoilt
) -> None:
    """Whether it did what it was asked or not, what there is of the sandbox is removed."""

    async def main() -> None:
        before = held()
        async with between.serve(), containers(between.path) as backend:
            between.spoil(request_name, how)
            error = await timed(lambda: backend.create(SOON), 1.0 + SLACK)
            wanted = BackendUnreachableError if how == "hung up" else CreateTimeoutError
            assert isinstance(error, (wanted, BackendUnreachableError))
            between.mend()
            await seen.until_nothing_left()
            assert (await backend.execute("echo", ["well"])).stdout == b"well\n"
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)


@pytest.mark.slow
def test_an_engine_that_stops_in_the_middle_of_a_stream(between: Between, seen: Seen) -> None:
    """It stays connected and passes nothing on: a command ends by our own clock."""

    async def main() -> None:
        before = held()
        async with between.serve(), containers(between.path, transport="attach") as backend:
            sandbox = await backend.create()
            between.held_back = True
            with anyio.fail_after(1 + REMOVE_SECONDS + SLACK):
                result = await sandbox.exec(Command(("sleep", "600"), timeout=1))
            assert result.timed_out
            await timed(lambda: sandbox.exec("true"), SLACK)
            between.mend()
            await sandbox.aclose()
            await seen.until_nothing_left()
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)


@pytest.mark.slow
def test_closing_at_a_silent_engine_is_bounded(between: Between, seen: Seen) -> None:
    """A sandbox whose engine answers nothing any more: closing ends, and the next one reaps."""

    async def main() -> None:
        before = held()
        async with between.serve():
            backend = await containers(between.path).__aenter__()
            sandbox = await backend.create()
            between.held_back = True
            with anyio.fail_after(60):
                await sandbox.aclose()
                await backend.aclose()
            between.mend()
            async with containers(between.path):
                await seen.until_nothing_left()
        await nothing_left(before)
        assert len(asyncio.all_tasks()) == 1

    anyio.run(main)


def test_what_is_asked_for_is_known_here(between: Between, seen: Seen) -> None:
    """The patterns by which these tests spoil requests match those that are really made."""

    async def main() -> None:
        async with between.serve(), containers(between.path) as backend:
            await backend.execute("true")
        wanted = {*BEFORE, "create", "attach", "start", "events"}
        assert wanted <= {*between.asked} <= {*REQUESTS}

    anyio.run(main)
