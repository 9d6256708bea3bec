"""What is opened once with `async with`, and holds tasks and other things until it is left."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from types import TracebackType
from typing import ClassVar, Self

from .errors import SandboxClosedError

__all__ = ("Opened",)


class Opened(ABC):
    """Opened once, closed once; one that is forgotten open is a `ResourceWarning`."""

    _what: ClassVar[str]
    """What it is called in the error of whoever opens it again."""

    _closed = False
    _exits: AsyncExitStack | None = None

    @abstractmethod
    async def _open(self, stack: AsyncExitStack) -> None:
        """Put all that is left with it on the stack; what is there is undone if this raises."""

    @abstractmethod
    async def aclose(self) -> None:
        """End what it has, and set `_closed`. Safe to call again."""

    async def __aenter__(self) -> Self:
        if self._closed or self._exits is not None:
            raise SandboxClosedError(f"{self._what} is opened once", hint="make another")
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._exits = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        finally:
            if self._exits is not None:
                await self._exits.__aexit__(None, None, None)

    def __del__(self) -> None:
        if self._exits is not None and not self._closed:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2)
