"""How much may still be added to a store, by all the exports that share the same bound."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import anyio

from ..errors import LimitError
from ..storage.store import Content

__all__ = ("Growth", "Room")


class Room:
    """What of a bound in bytes is left; several exports may draw on it at once.

    Args:
        most: The bound.
        used: What is there already, or is not to be used before it has been drawn.
        limit: The bound's name, for the error.
        plan: The plan that sets it.
        draw: Called with how many bytes are lacking; returns how many may be used besides, 0 if it
            has not so many. Default: there are none.
    """

    def __init__(
        self,
        most: int,
        used: int,
        *,
        limit: str,
        plan: str | None = None,
        draw: Callable[[int], Awaitable[int]] | None = None,
    ) -> None:
        self.left = most - used
        self._most = most
        self._limit = limit
        self._plan = plan
        self._draw = draw
        self._drawing = anyio.Lock()

    async def has(self, size: int) -> bool:
        """Find out whether so many bytes are left, and draw them if need be."""
        if size > self.left and self._draw is not None:
            async with self._drawing:
                if size > self.left:
                    self.left += await self._draw(size - self.left)
        return size <= self.left

    def over(self) -> LimitError:
        """Return the error of what does not fit."""
        return LimitError(
            self._limit,
            f"does not fit into the {self._limit} of {self._most}"
            + (f" of plan {self._plan!r}" if self._plan else ""),
            plan=self._plan,
            hint="delete objects from the store, or choose another plan",
        )

    def growth(self, there: int) -> Growth:
        """Return an account of one object that is about to be put in the place of another.

        Args:
            there: Bytes of the one that is there, 0 if there is none.
        """
        return Growth(self, there)


class Growth:
    """What one object takes of the room, until it is settled."""

    def __init__(self, room: Room, there: int) -> None:
        self._room = room
        self._there = there
        self._taken = 0

    async def to(self, size: int) -> None:
        """Take what the object needs to have so many bytes.

        Raises:
            LimitError: There is not so much room; what was taken before stays taken.
        """
        more = size - self._there - self._taken
        if more <= 0:
            return
        if not await self._room.has(more):
            raise self._room.over()
        self._room.left -= more
        self._taken += more

    async def counted(self, content: Content) -> AsyncGenerator[bytes, None]:
        """Yield a content, and take what it needs as it comes."""
        if isinstance(content, bytes):
            await self.to(len(content))
            yield content
            return
        size = 0
        async for part in content:
            size += len(part)
            await self.to(size)
            yield part

    def settle(self, size: int | None) -> None:
        """Leave taken what the object came to, or give all back if none was put (None)."""
        self._room.left += self._taken
        self._taken = 0
        if size is not None:
            self._room.left -= size - self._there
