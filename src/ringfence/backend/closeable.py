"""What is held until it is closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType

__all__ = ("Closeable",)


class Closeable(ABC):
    """Anything with an `aclose` that can be used with `async with`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Free everything that is held. Safe to call again."""

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
