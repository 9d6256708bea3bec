"""The tasks of a pool: they make sandboxes, look after the ready ones, and remove the used ones.

They belong to a group that is shielded from whatever happens around it, so that they end when the
pool is closed and not before.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from ..backend import Sandbox
from ..errors import CreateError, CreateTimeoutError, PoolClosedError, SandboxError
from .config import PoolConfig
from .places import Member, Places

__all__ = ("Keeper", "closed_error")

_log = logging.getLogger(__name__)

_LIFE_TO_HAND_OUT = 0.5  # of its maximum age: who gets a sandbox has at least that much left of it
_SWEEP_SECONDS = 10.0
_LEAST_SWEEP_SECONDS = 0.01
_REMOVE_SECONDS = 30.0
_HEAD_START = 0.02  # seconds that a command has before the making of a replacement begins
_FIRST_REST = 0.1  # seconds without a new attempt after a failure, doubled with each
_LONGEST_REST = 30.0


class Keeper:
    """What goes on in the background of one open pool.

    Attributes:
        places: What it keeps.
        released: Every sandbox that it has begun to remove, as long as anybody knows it.
        closed: Whether nothing more may be made or handed out.
    """

    def __init__(self, config: PoolConfig[Awaitable[Sandbox]]) -> None:
        self.places = Places(config.max_size, config.max_creating)
        self.released: WeakSet[Sandbox] = WeakSet()
        self.closed = False
        self._config = config
        self._failures = 0
        self._rests_until = -math.inf
        self._resting = False
        self._tasks: TaskGroup | None = None
        self._hurry: anyio.Event | None = None
        self._due: anyio.Event | None = None
        self._doomed: list[Member] = []
        self._to_make = 0
        self._stop: anyio.Event | None = None
        self._ended: anyio.Event | None = None

    @property
    def began(self) -> bool:
        """Whether `begin` was called."""
        return self._stop is not None

    def begin(self, group: TaskGroup) -> None:
        """Do its work in a group, which waits for the end of it."""
        self._stop, self._ended = anyio.Event(), anyio.Event()
        self._hurry, self._due = anyio.Event(), anyio.Event()
        group.start_soon(self._run, self._stop, self._ended)

    async def aclose(self) -> None:
        """Turn everybody away, and return when the last sandbox is gone."""
        self.closed = True
        if self._stop is None or self._ended is None:
            return
        self._stop.set()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()

    # What follows from a change. Tasks are begun by a task, since whoever makes the change has a
    # command to run or a result to return, and beginning a task takes as long as a tenth of one.

    def make_up(self) -> None:
        """Have what is short made."""
        if self.closed or self._due is None or self._hurry is None:
            return
        if self.places.is_awaited:
            self._hurry.set()
            self._hurry = anyio.Event()
        resting = anyio.current_time() < self._rests_until
        if short := self.places.shortage(resting):
            self.places.making += short
            self._to_make += short
            self._due.set()

    def retire(self, member: Member) -> None:
        """Begin to remove one; who closes the pool may have done so already."""
        if self.places.retire(member):
            self._begin_to_remove(member)

    def remove_expired(self) -> None:
        """Begin to remove the ready ones that nobody may get any more."""
        for member in self.places.expire(anyio.current_time()):
            self._begin_to_remove(member)

    def _begin_to_remove(self, member: Member) -> None:
        assert self._due is not None
        self.released.add(member.sandbox)
        self._doomed.append(member)
        if self.closed:
            self._begin_removals()
        else:
            self._due.set()

    def _begin_removals(self) -> None:
        assert self._tasks is not None
        while self._doomed:
            self._tasks.start_soon(self._remove, self._doomed.pop())

    # The tasks.

    async def _run(self, stop: anyio.Event, ended: anyio.Event) -> None:
        """Hold the group that all other tasks are in, until the pool is closed."""
        try:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._sweep)
                    self._tasks.start_soon(self._begin_what_is_due, self._tasks)
                    self.make_up()
                    await stop.wait()
                    self._tasks.cancel_scope.cancel()
                    self.places.making -= self._to_make
                    self._begin_removals()
                    for member in self.places.close(closed_error()):
                        self._begin_to_remove(member)
        finally:
            ended.set()

    async def _begin_what_is_due(self, tasks: TaskGroup) -> None:
        """Begin tasks for what is short and for what is to be removed, whenever there is any."""
        while self._due is not None:
            await self._due.wait()
            self._due = anyio.Event()
            self._begin_removals()
            while self._to_make:
                self._to_make -= 1
                tasks.start_soon(self._make)

    async def _make(self) -> None:
        began = anyio.current_time()
        try:
            await self._let_others_go_first()
            sandbox = await self._made()
        except SandboxError as error:
            self.places.making -= 1
            self._failed(error)
            return
        except BaseException:
            self.places.making -= 1
            raise
        self.places.making -= 1
        age = sandbox.limits.max_age or math.inf
        member = Member(
            sandbox,
            idle_until=anyio.current_time() + self._config.max_idle_time,
            old_at=began + age * _LIFE_TO_HAND_OUT,
        )
        self._failures = 0
        self._rests_until = -math.inf
        self.places.offer(member)
        if self.closed:  # by somebody who could not cancel the factory
            self.retire(member)
        self.make_up()

    async def _let_others_go_first(self) -> None:
        """Wait a moment, unless somebody waits: making one takes the processor from a command.

        Whoever has just been given the one that is to be replaced is about to run it.
        """
        if not self.places.is_awaited and self._hurry is not None:
            with anyio.move_on_after(_HEAD_START):
                await self._hurry.wait()

    async def _made(self) -> Sandbox:
        """Return what the factory makes, and turn whatever else comes of it into a typed error."""
        made: object = None
        try:
            with anyio.move_on_after(self._config.create_timeout) as limit:
                made = await self._config.factory()
        except SandboxError:
            raise
        except Exception as error:  # foreign code, and somebody may wait for what it was to make
            raise CreateError(
                f"the pool's factory failed: {type(error).__name__}: {error}"
            ) from error
        if limit.cancelled_caught:
            raise CreateTimeoutError(
                f"the pool's factory made no sandbox within {self._config.create_timeout:g} s"
            )
        if not isinstance(made, Sandbox):
            raise CreateError(f"the pool's factory made no sandbox but {made!r:.80}")
        if made in self.released or self.places.holds(made):
            raise CreateError(f"the pool's factory returned {made!r} for the second time")
        return made

    def _failed(self, error: SandboxError) -> None:
        """Tell who waits, and make no other for a while unless somebody comes for it."""
        if self.closed:
            return
        rest = min(_LONGEST_REST, _FIRST_REST * 2.0 ** min(self._failures, 20))
        self._failures += 1
        self._rests_until = anyio.current_time() + rest
        if not self.places.fail(error):
            _log.warning("a pool could not make a sandbox, tries again in %.1f s: %s", rest, error)
        if not self._resting and self._tasks is not None:
            self._resting = True
            self._tasks.start_soon(self._rest)
        self.make_up()

    async def _rest(self) -> None:
        """Try again when the time for it has come, which may be put off meanwhile."""
        until = self._rests_until
        await anyio.sleep_until(until)
        if self._rests_until > until and self._tasks is not None:
            self._tasks.start_soon(self._rest)
            return
        self._resting = False
        self.make_up()

    async def _remove(self, member: Member) -> None:
        """Destroy one; whatever comes of it, its place is free then."""
        sandbox = member.sandbox
        try:
            with anyio.move_on_after(_REMOVE_SECONDS, shield=True) as limit:
                await sandbox.aclose()
            if limit.cancelled_caught:
                _log.warning("%r did not close within %g s", sandbox, _REMOVE_SECONDS)
        except Exception:  # it must not end the others  # noqa: BLE001
            _log.exception("%r could not be closed", sandbox)
        finally:
            self.places.removed()
            self.make_up()

    async def _sweep(self) -> None:
        """Remove what is idle or old, and what has died unseen, time and again."""
        seconds = min(_SWEEP_SECONDS, self._config.max_idle_time / 4)
        while True:
            await anyio.sleep(max(seconds, _LEAST_SWEEP_SECONDS))
            self.remove_expired()
            async with anyio.create_task_group() as pings:
                for member in self.places.ready:
                    pings.start_soon(self._remove_dead, member)
            self.make_up()

    async def _remove_dead(self, member: Member) -> None:
        try:
            await member.sandbox.ping()
        except SandboxError:
            if member in self.places.ready:  # else whoever took it sees for itself
                self.retire(member)


def closed_error() -> PoolClosedError:
    """Return what everybody gets who wants something of a closed pool."""
    return PoolClosedError("the pool is closed")
