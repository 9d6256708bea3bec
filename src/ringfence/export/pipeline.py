"""Many things at once, from one source, with a bound."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import NoReturn, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

__all__ = ("AT_ONCE", "each_of", "each_of_batches")

AT_ONCE = 8
"""So many file operations keep a sandbox and two processors busy; more only wait."""
STEPS_AT_ONCE = 2
"""One is being read while what the other has read is stored."""

_Item = TypeVar("_Item")
_Next = TypeVar("_Next")


async def each_of(
    source: AsyncGenerator[_Item, None], work: Callable[[_Item], Awaitable[None]], at_once: int
) -> None:
    """Call `work` for each item, for at most so many of them at a time.

    Raises:
        Exception: The first one that the source or `work` has raised, alone and not in a group;
            what was in work has been cancelled by then.
    """
    try:
        async with anyio.create_task_group() as group:
            send, receive = anyio.create_memory_object_stream[_Item](0)
            group.start_soon(_feed, source, send)
            for _ in range(at_once):
                group.start_soon(_serve, receive.clone(), work)
            receive.close()
    except BaseExceptionGroup as error:
        _raise_first(error)


async def each_of_batches(
    source: AsyncGenerator[_Item, None],
    step: Callable[[_Item], Awaitable[Iterable[_Next]]],
    work: Callable[[_Next], Awaitable[None]],
    at_once: int,
) -> None:
    """Call `step` for each item, and `work` for each of those that it returns.

    There are at most `STEPS_AT_ONCE` of the former in work or waiting for the latter, and at most
    `at_once` of the latter in work.

    Raises:
        Exception: As `each_of`.
    """
    send, receive = anyio.create_memory_object_stream[_Next](0)

    async def take(item: _Item) -> None:
        for following in await step(item):
            await send.send(following)

    async def feed() -> None:
        async with send:
            await each_of(source, take, STEPS_AT_ONCE)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(feed)
            for _ in range(at_once):
                group.start_soon(_serve, receive.clone(), work)
            receive.close()
    except BaseExceptionGroup as error:
        _raise_first(error)


async def _feed(source: AsyncGenerator[_Item, None], send: MemoryObjectSendStream[_Item]) -> None:
    async with send, aclosing(source) as items:
        async for item in items:
            await send.send(item)


async def _serve(
    receive: MemoryObjectReceiveStream[_Item], work: Callable[[_Item], Awaitable[None]]
) -> None:
    async with receive:
        async for item in receive:
            await work(item)


def _raise_first(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    raise first from first.__cause__
