"""A future whose waiter goes on at once, on asyncio alone."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from ringfence.warden.stream import Turn

pytestmark = pytest.mark.anyio

WHERE: ContextVar[str] = ContextVar("where", default="outside")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def waiting() -> tuple[Turn, asyncio.Task[str]]:
    """Return a future, and a task that waits for it and then says where it is."""
    turn = Turn(loop=asyncio.get_running_loop())

    async def wait() -> str:
        WHERE.set("inside")
        await turn
        return WHERE.get()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return turn, task


async def called(turn: Turn, task: asyncio.Task[str]) -> bool:
    """Begin it from where no task runs, and return whether the task had ended right after."""
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[bool] = loop.create_future()

    def begin() -> None:
        turn.begin()
        seen.set_result(task.done())

    loop.call_soon(begin)
    return await seen


async def test_its_waiter_goes_on_before_begin_returns_and_in_its_own_context() -> None:
    turn, task = await waiting()
    assert await called(turn, task)
    assert await task == "inside"
    assert WHERE.get() == "outside"


async def test_a_result_wakes_its_waiter_with_the_loop_s_next_turn() -> None:
    turn, task = await waiting()
    turn.set_result(None)
    assert not task.done()
    assert await task == "inside"


async def test_a_cancelled_waiter_ends_and_is_begun_no_more() -> None:
    turn, task = await waiting()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert turn.cancelled()
    assert await called(turn, task)


async def test_begun_before_anybody_waits_it_is_done() -> None:
    turn = Turn(loop=asyncio.get_running_loop())
    turn.begin()
    await asyncio.wait_for(turn, 10)
    turn.begin()
