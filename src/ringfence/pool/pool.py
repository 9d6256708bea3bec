"""What the users of a pool call.

Theory of operation. `Places` decides and never waits; `Keeper` has the tasks that make and remove
sandboxes; the callers are here. Nothing is ever held while somebody waits, so there is no lock.
Whoever acquires only stands in line: a caller that is cancelled loses nothing but its turn, and
what was meant for it goes to the next. A sandbox that is handed out has answered a ping just now,
unless it was made just now, and comes back only to be destroyed.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

import anyio

from ..backend import Sandbox, one_shot_command
from ..errors import ConfigError, PoolClosedError, PoolError, PoolTimeoutError, SandboxError
from ..models import Command, Result
from .config import PoolConfig, check_seconds
from .keeper import Keeper, closed_error
from .places import Member, Waiter, Warmup

__all__ = ("Pool",)


class Pool:
    """Sandboxes that are booted before they are asked for. Each is handed out once.

    Use it with `async with`; leaving the block closes it. What it makes on demand or ahead it makes
    in the background; callers are served in the order in which they came.

    Args:
        config: Its factory and its size.
    """

    _exits: AsyncExitStack | None = None

    def __init__(self, config: PoolConfig[Awaitable[Sandbox]]) -> None:
        if not isinstance(config, PoolConfig):
            raise ConfigError(f"a pool is made from a PoolConfig, not {config!r:.80}")
        self.config = config
        self._keeper = Keeper(config)
        self._places = self._keeper.places
        self._turns = itertools.count()

    @property
    def size(self) -> int:
        """How many sandboxes there are: ready, in use, being made and being removed."""
        return self._places.size

    @property
    def in_use(self) -> int:
        """How many have been handed out and not released."""
        return len(self._places.in_use)

    @property
    def ready(self) -> int:
        """How many can be handed out at once."""
        return len(self._places.ready)

    @property
    def waiting(self) -> int:
        """How many callers stand in line."""
        return len(self._places.waiters)

    async def warmup(self, n: int, *, timeout: float | None = None) -> None:
        """Return when that many are ready, and from now on keep so many ready.

        There are never more than `max_size` in all, and those in use count: the rest of them is as
        much as is waited for.

        Args:
            n: How many.
            timeout: Seconds to wait for them. Default: the config's `create_timeout`.

        Raises:
            PoolTimeoutError: They were not ready in time; they are still being made.
            PoolClosedError: The pool is not open.
            SandboxError: One could not be made; the pool goes on trying.
        """
        if type(n) is not int or n < 0:
            raise ConfigError(f"the number of sandboxes must be 0 or more, not {n!r:.80}")
        seconds = self._seconds(timeout, self.config.create_timeout)
        self._check_open()
        places = self._places
        warmup = Warmup(min(n, places.max_size), anyio.Event())
        places.wanted = max(places.wanted, warmup.count)
        places.warmups.append(warmup)
        places.settle()
        self._keeper.make_up()
        try:
            with anyio.move_on_after(seconds):
                await warmup.done.wait()
        finally:
            if warmup in places.warmups:
                places.warmups.remove(warmup)
        if warmup.error is not None:
            raise warmup.error
        if not warmup.done.is_set():
            raise PoolTimeoutError(f"{n} sandboxes were not ready within {seconds:g} s: {self!r}")

    async def acquire(self, *, timeout: float | None = None) -> Sandbox:
        """Return a clean sandbox, a ready one or the next that comes up; `release` it after use.

        Args:
            timeout: Seconds to wait for it. Default: the config's `acquire_timeout`.

        Raises:
            PoolTimeoutError: None came free in time.
            PoolClosedError: The pool is not open, or was closed meanwhile.
            SandboxError: It had to be made, and could not be.
        """
        seconds = self._seconds(timeout, self.config.acquire_timeout)
        self._check_open()
        member = None
        with anyio.move_on_after(seconds):
            member = await self._next()
        if member is None:
            raise PoolTimeoutError(f"no sandbox came free within {seconds:g} s: {self!r}")
        return member.sandbox

    async def release(self, sandbox: Sandbox) -> None:
        """Give a sandbox back, to be destroyed in the background; another takes its place.

        Safe to call again, and after the pool was closed.

        Raises:
            PoolError: It is not this pool's.
        """
        member = self._places.in_use.get(sandbox)
        if member is not None:
            self._keeper.retire(member)
        elif sandbox not in self._keeper.released:
            raise PoolError(f"{sandbox!r} was not acquired from this pool")

    @asynccontextmanager
    async def lease(self, *, timeout: float | None = None) -> AsyncIterator[Sandbox]:
        """Acquire a sandbox for a block, and release it at the block's end.

        Args:
            timeout: Seconds to wait for it. Default: the config's `acquire_timeout`.

        Raises:
            SandboxError: As from `acquire`.
        """
        sandbox = await self.acquire(timeout=timeout)
        try:
            yield sandbox
        finally:
            await self.release(sandbox)

    async def execute(
        self, command: Command | str, args: Sequence[str] = (), *, timeout: float | None = None
    ) -> Result:
        """Run one command in a clean sandbox, as a backend's `execute` does.

        All that the command started has ended when this returns; its sandbox is destroyed in the
        background.

        Args:
            command: A `Command`, or a program's name with `args` beside it.
            args: The arguments that follow a program's name.
            timeout: Seconds; overrides the command's own. The wait for a sandbox is not in it.

        Raises:
            CommandError: The command can't be run anywhere.
            SandboxError: As from `acquire`, or the sandbox could not run it.
        """
        wanted = one_shot_command(command, args, timeout)
        sandbox = await self.acquire()
        try:
            return await sandbox.exec(wanted)
        finally:
            await self.release(sandbox)

    async def aclose(self) -> None:
        """Turn away who waits, and destroy every sandbox, also those in use.

        Safe to call again and from any task. It is shielded from cancellation.
        """
        await self._keeper.aclose()

    async def __aenter__(self) -> Self:
        if self._keeper.closed or self._exits is not None:
            raise PoolClosedError("a pool is opened once", hint="make another")
        self._exits = AsyncExitStack()
        group = await self._exits.enter_async_context(anyio.create_task_group())
        self._keeper.begin(group)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        forgotten = [sandbox.id for sandbox in self._places.in_use]
        try:
            await self.aclose()
        finally:
            if self._exits is not None:
                await self._exits.aclose()
        if forgotten and exc is None:
            warnings.warn(
                f"the pool was closed before these were released: {', '.join(forgotten)}",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        places = self._places
        state = "closed" if self._keeper.closed else "new" if self._exits is None else "open"
        return (
            f"<Pool {state}: {self.ready} ready, {self.in_use} in use, {places.making} being made, "
            f"{places.removing} being removed, of {places.max_size}; {self.waiting} waiting>"
        )

    def __del__(self) -> None:
        if self._exits is not None and not self._keeper.closed:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2)

    # What callers do.

    def _seconds(self, timeout: float | None, default: float) -> float:
        if timeout is None:
            return default
        check_seconds("timeout", timeout)
        return timeout

    def _check_open(self) -> None:
        if self._keeper.closed:
            raise closed_error()
        if not self._keeper.began:
            raise PoolClosedError("the pool is not open", hint="use it with `async with`")

    async def _next(self) -> Member:
        """Return a member that is fit for use, now counted as in use."""
        turn = next(self._turns)
        while True:
            self._check_open()
            self._keeper.remove_expired()
            member = self._places.take()
            if member is None:
                return await self._wait(turn)
            self._keeper.make_up()
            if await self._is_alive(member):
                return member
            self._keeper.retire(member)

    async def _wait(self, turn: int) -> Member:
        """Stand in line, in the place that belongs to the turn."""
        waiter = Waiter(turn, anyio.Event())
        self._places.queue(waiter)
        self._keeper.make_up()
        try:
            await waiter.done.wait()
        except BaseException:
            self._places.leave(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error
        assert waiter.member is not None
        if self._keeper.closed:
            raise closed_error()
        return waiter.member

    async def _is_alive(self, member: Member) -> bool:
        """Ask one that is about to be handed out; on the way out of a cancellation, put it back."""
        try:
            await member.sandbox.ping()
        except SandboxError:
            return False
        except BaseException:
            self._places.put_back(member)
            raise
        return member.sandbox in self._places.in_use
