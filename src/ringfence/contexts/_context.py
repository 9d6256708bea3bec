"""One context: its kernel, and what is known of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio

from ..backend import Sandbox
from ..errors import ContextLostError, ContextMissingError
from ._kernel import ContextLimits, Kernel

__all__ = ("CodeContext", "Context")


@dataclass(frozen=True)
class CodeContext:
    """What is known of a context.

    Attributes:
        id: Its name in its sandbox, such as `k1`; none is given twice.
        language: What its code is written in.
        alive: Whether its kernel lives.
        busy: Whether code runs in it now.
        age_s: Seconds since its kernel was started.
        version: The version of its language.
        lost: Why its kernel is gone, or None.
    """

    id: str
    language: str
    alive: bool
    busy: bool
    age_s: float
    version: str
    lost: str | None = None


class Context:
    """A context, from its making to its closing. One piece of code runs in it at a time."""

    def __init__(
        self, name: str, language: str, sandbox: Sandbox, limits: ContextLimits, kernel: Kernel
    ) -> None:
        self.name = name
        self.language = language
        self.sandbox = sandbox
        self.limits = limits
        self.lock = anyio.Lock()
        self.interrupted = False
        self.is_closed = False
        self.take(kernel)

    def take(self, kernel: Kernel) -> None:
        """Have another kernel from now on."""
        self.kernel = kernel
        self.scope = anyio.CancelScope(shield=True)  # of the task that takes what comes
        self.began = time.monotonic()

    async def pump(self) -> None:
        """Take what comes from its kernel, whatever becomes of the scope that it was made in."""
        with self.scope:
            await self.kernel.pump()

    def check_open(self) -> None:
        """Raise a ContextMissingError if it has been closed."""
        if self.is_closed:
            raise ContextMissingError(f"context {self.name} has been closed")

    def live(self) -> Kernel:
        """Return its kernel.

        Raises:
            ContextMissingError: It has been closed.
            ContextLostError: Its kernel is gone.
            SandboxLostError: Its sandbox is.
        """
        self.check_open()
        if self.kernel.death is not None:
            raise self.kernel.death.with_traceback(None)
        return self.kernel

    def about(self) -> CodeContext:
        """Return what is to be told of it."""
        death = self.kernel.death
        lost = None
        if death is not None:
            lost = death.cause if isinstance(death, ContextLostError) else death.message
        return CodeContext(
            self.name,
            self.language,
            death is None and not self.is_closed,
            self.lock.locked(),
            time.monotonic() - self.began,
            self.kernel.python,
            lost,
        )
