"""Who is where in a pool: accounting alone, without I/O, without a clock and without waiting.

Every sandbox of a pool has one of `max_size` places, from before it is made until after it is
gone, and is in one of four states::

    being made -> ready -> in use -> being removed
                  ready ---------->

Nothing here can be interrupted, so no lock is needed. The pool does what follows from it: it makes
as many as `shortage` says and destroys what `expire` and `retire` hand over.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass, field

import anyio

from ..backend import Sandbox
from ..errors import SandboxError

__all__ = ("Member", "Places", "Waiter", "Warmup")


@dataclass(eq=False)
class Member:
    """A sandbox that has been made.

    Attributes:
        sandbox: It.
        idle_until: When it has been ready for long enough for nobody.
        old_at: When too little of its maximum age is left for a new user.
    """

    sandbox: Sandbox
    idle_until: float = math.inf
    old_at: float = math.inf

    def is_expired(self, now: float) -> bool:
        """Whether it may not be handed out any more."""
        return now >= min(self.idle_until, self.old_at)


@dataclass(order=True)
class Waiter:
    """Somebody who waits for a sandbox; `turn` says who came first."""

    turn: int
    done: anyio.Event = field(compare=False)
    member: Member | None = field(default=None, compare=False)
    error: SandboxError | None = field(default=None, compare=False)


@dataclass(eq=False)
class Warmup:
    """Somebody who waits until so many are ready."""

    count: int
    done: anyio.Event
    error: SandboxError | None = None


class Places:
    """The places of one pool.

    Attributes:
        ready: Nobody has used them; the one that is ready for longest comes first.
        in_use: What has been handed out, or is looked at before it is.
        making, removing: How many are being made and removed.
        waiters: By their turns. There is none while something is ready.
        warmups: Who waits for more to be ready.
        wanted: How many shall be ready for whoever comes next. A caller who finds nothing ready
            raises it by one, a sandbox that was ready for nobody lowers it.
    """

    def __init__(self, max_size: int, max_creating: int) -> None:
        self.max_size = max_size
        self.max_creating = max_creating
        self.ready: deque[Member] = deque()
        self.in_use: dict[Sandbox, Member] = {}
        self.making = 0
        self.removing = 0
        self.waiters: list[Waiter] = []
        self.warmups: list[Warmup] = []
        self.wanted = 0

    @property
    def size(self) -> int:
        """How many places are taken."""
        return len(self.ready) + len(self.in_use) + self.making + self.removing

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a new one."""
        return bool(self.waiters or self.warmups)

    def holds(self, sandbox: Sandbox) -> bool:
        """Whether it is ready or in use here."""
        return sandbox in self.in_use or any(one.sandbox is sandbox for one in self.ready)

    def shortage(self, resting: bool) -> int:
        """Return how many more to begin to make now.

        Args:
            resting: Whether making one has just failed; then only for those who wait.
        """
        awaited = max((warmup.count for warmup in self.warmups), default=0)
        spare = awaited if resting else max(awaited, self.wanted)
        missing = len(self.waiters) + spare - len(self.ready) - self.making
        room = min(self.max_size - self.size, self.max_creating - self.making)
        return max(0, min(missing, room))

    # Those who come for one.

    def take(self) -> Member | None:
        """Hand out the one that is ready for longest, or None if there is none."""
        if not self.ready:
            return None
        member = self.ready.popleft()
        self.in_use[member.sandbox] = member
        return member

    def queue(self, waiter: Waiter) -> None:
        """Let somebody wait who has found nothing ready; among those who wait, by turn."""
        insort(self.waiters, waiter)
        self.wanted = min(self.max_size, self.wanted + 1)

    def leave(self, waiter: Waiter) -> None:
        """Let somebody go who waits no more; what was meant for it is there for others."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        elif waiter.member is not None:
            self.put_back(waiter.member)

    def put_back(self, member: Member) -> None:
        """Take back what was handed out and used by nobody, unless it is gone meanwhile.

        It goes to the end of the row, for it may be one that does not answer.
        """
        if self.in_use.pop(member.sandbox, None) is not None:
            self.offer(member)

    # Those who come and go.

    def offer(self, member: Member) -> None:
        """Give a clean one to whoever has waited for longest, or keep it ready."""
        if self.waiters:
            waiter = self.waiters.pop(0)
            waiter.member = member
            self.in_use[member.sandbox] = member
            waiter.done.set()
        else:
            self.ready.append(member)
        self.settle()

    def settle(self) -> None:
        """Let go those whose warm-up is done: as much is ready as there is room for."""
        room = self.max_size - len(self.in_use)
        for warmup in list(self.warmups):
            if len(self.ready) >= min(warmup.count, room):
                self._end(warmup, None)

    def fail(self, error: SandboxError) -> bool:
        """Tell whoever has waited for longest, and every warm-up, why there is no new one.

        Returns:
            Whether there was anybody to tell.
        """
        told = bool(self.waiters or self.warmups)
        if self.waiters:
            waiter = self.waiters.pop(0)
            waiter.error = error
            waiter.done.set()
        for warmup in list(self.warmups):
            self._end(warmup, error)
        return told

    def _end(self, warmup: Warmup, error: SandboxError | None) -> None:
        self.warmups.remove(warmup)
        warmup.error = error
        warmup.done.set()

    def expire(self, now: float) -> list[Member]:
        """Return the ready ones that nobody may get any more; each keeps its place as removed."""
        expired = [member for member in self.ready if member.is_expired(now)]
        for member in expired:
            if now >= member.idle_until:
                self.wanted = max(0, self.wanted - 1)
            self.retire(member)
        return expired

    def retire(self, member: Member) -> bool:
        """Let one be removed, ready or in use; its place is free after `removed`.

        Returns:
            Whether it was either.
        """
        if member in self.ready:
            self.ready.remove(member)
        elif self.in_use.pop(member.sandbox, None) is None:
            return False
        self.removing += 1
        return True

    def removed(self) -> None:
        """Free the place of one that is gone."""
        self.removing -= 1

    def close(self, error: SandboxError) -> list[Member]:
        """Turn everybody away and return all that is to be removed."""
        while self.waiters or self.warmups:
            self.fail(error)
        members = [*self.ready, *self.in_use.values()]
        for member in members:
            self.retire(member)
        return members
