"""Ends the calls of a client that was cut off while they ran.

A call of an HTTP client runs in a task of its session, not of its request, and the library of the
protocol lets it run on when the connection breaks. Answers are not kept to be fetched later, so
nobody would ever get this one: the call is cancelled, which kills its command.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import anyio

__all__ = ("GUARD", "Guard")

T = TypeVar("T")

GUARD = "ringfence.guard"
"""Where an HTTP request's scope has its guard."""


class Guard:
    """Watches over the calls of one HTTP request.

    Attributes:
        owner: Whose token the request has.
        gone: Whether its client has gone.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.gone = False
        self._scopes: set[anyio.CancelScope] = set()

    def leave(self) -> None:
        """Note that the client has gone, and end its calls."""
        self.gone = True
        for scope in self._scopes:
            scope.cancel()

    async def over(self, work: Awaitable[T]) -> T | None:
        """Do the work of a call, and return what comes of it: None if its client goes first."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            if self.gone:
                scope.cancel()
            try:
                return await work
            finally:
                self._scopes.discard(scope)
        return None
