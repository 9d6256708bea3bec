"""The sandboxes that an execution has, one after the other, and who is told of their ends."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

import anyio

from ..backend import Sandbox
from ..errors import ConfigError, SandboxClosedError, SandboxLostError
from ..events import Value
from ..leases import Hold
from ..models import SandboxSpec, new_sandbox_id
from ..policy import Plan
from .home import Home

__all__ = ("TAKEN", "Tenure", "checked_idle", "checked_name")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}\Z")

TAKEN = "another worker has taken its lease over"


class Tenure:
    """One execution in this worker's hands: its lease, and the sandbox that stands for it.

    The end of a sandbox is told once: to the call that it broke, or else to the next one.

    Args:
        home: Where sandboxes come from.
        tenant_id: Whose execution it is.
        execution_id: Which one.
        plan: What the tenant may have.
        spec: What a sandbox of it gets.
        gone: Called when a sandbox is given up.

    Attributes:
        box: The sandbox that there is now.
        sandbox: The name of it, or of the last one.
        born: When it was made.
        hold: The lease, as long as there is something that it stands for.
        generation: How many sandboxes there have been.
        first_command: Whether nothing has run in this one.
        is_closed: Whether there will be no other.
    """

    def __init__(
        self,
        home: Home,
        tenant_id: str,
        execution_id: str,
        *,
        plan: Plan,
        spec: SandboxSpec,
        gone: Callable[[], None] | None = None,
    ) -> None:
        self.box: Sandbox | None = None
        self.sandbox = new_sandbox_id()
        self.born = 0.0
        self.hold: Hold | None = None
        self.generation = 0
        self.first_command = False
        self.is_closed = False
        self._home = home
        self._tenant_id = tenant_id
        self._execution_id = execution_id
        self._plan = plan
        self._spec = spec
        self._gone = gone
        self._untold: SandboxLostError | None = None
        self._told: Exception | None = None  # the last that a call has raised
        self._end_of: WeakKeyDictionary[Sandbox, SandboxLostError] = WeakKeyDictionary()
        self._lock = anyio.Lock()

    def about(self) -> dict[str, Value]:
        """Return what events tell of it."""
        return {
            "backend": self._home.backend.name,
            "tenant_id": self._tenant_id,
            "execution_id": self._execution_id,
            "sandbox": self.sandbox,
        }

    def check_open(self) -> None:
        """Raise a `SandboxClosedError` if the execution has been destroyed."""
        if self.is_closed:
            raise SandboxClosedError(
                f"execution {self._execution_id!r} has been destroyed",
                backend=self._home.backend.name,
                hint="ask the manager for a session again",
            )

    async def ready(self) -> Sandbox:
        """Return the sandbox, made now if there is none; see `Session.ensure`."""
        box, hold = self.box, self.hold
        if box is None or hold is None or hold.lost or not self._home.is_confirmed():
            return await self._make()
        return box

    async def _make(self) -> Sandbox:
        async with self._lock:
            self.check_open()
            if self.hold is not None and self.hold.lost:
                await self._end(TAKEN)
            if self._untold is not None:
                untold, self._untold = self._untold, None
                raise untold
            self._home.check_confirmed()
            if self.box is None:
                if self.hold is None:
                    self.hold = await self._home.acquire(
                        self._tenant_id, self._execution_id, self._plan
                    )
                await self._create(self.hold)
            assert self.box is not None
            return self.box

    async def _create(self, hold: Hold) -> None:
        about = self.about()
        try:
            with self._home.events.operation("sandbox.create", about):
                labels = self._home.labels(hold, self._home.limits(self._spec).max_age)
                box = await self._home.make(self._spec, labels)
                about["sandbox"] = box.id
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._let_go()
            raise
        self.box, self.sandbox, self.born = box, box.id, time.monotonic()
        self.generation += 1
        self.first_command = True

    async def _let_go(self) -> None:
        """Give the lease up, when there is nothing left that it could stand for."""
        hold, self.hold = self.hold, None
        if hold is not None:
            await self._home.release(hold)

    async def end_if(self, cause: Callable[[], str | None]) -> None:
        """End the sandbox, to be told by the next call, if there is a cause to."""
        with anyio.CancelScope(shield=True):
            async with self._lock:
                found = cause()
                if found is not None:
                    await self._end(found)

    async def _end(self, cause: str) -> None:
        box, self.box = self.box, None
        if box is not None:
            self._untold = self._end_of[box] = SandboxLostError(
                f"the sandbox of execution {self._execution_id!r} has ended: {cause}",
                cause=cause,
                backend=self._home.backend.name,
                hint="the next call gets a new one, with an empty workspace",
            )
            await self._unmake(box, cause)
        await self._let_go()

    async def _unmake(self, box: Sandbox, cause: str) -> None:
        if self._gone is not None:
            self._gone()
        about = self.about() | {"sandbox": box.id, "cause": cause}
        with self._home.events.operation("sandbox.end", about):
            await self._home.unmake(box)

    async def close(self, also: Callable[[], None]) -> None:
        """End the sandbox for good, and then what else is of the execution."""
        self.is_closed = True
        with anyio.CancelScope(shield=True):
            async with self._lock:
                box, self.box = self.box, None
                if box is not None:
                    await self._unmake(box, "destroyed")
                also()
                await self._let_go()

    async def lose(
        self, box: Sandbox, error: SandboxLostError | SandboxClosedError, heard: bool = True
    ) -> None:
        """Let go of a sandbox that has died under a call, whose error tells it.

        Args:
            box: The sandbox.
            error: What the call is told.
            heard: Whether somebody waits for the call.

        Raises:
            SandboxLostError: It was ended while the call went on, and this says why.
        """
        if self.box is not box:
            told = self._end_of.get(box)
            if told is not None and told is not error:
                self._note_told(told, heard)
                raise told from error
            self._note_told(error, heard)
        elif isinstance(error, SandboxLostError):
            self.box = None
            self._end_of[box] = error
            self._note_told(error, heard)
            with anyio.CancelScope(shield=True):
                await self._unmake(box, error.cause)

    def _note_told(self, error: Exception, heard: bool) -> None:
        if heard:
            self._told = error
            if error is self._untold:
                self._untold = None

    def tell_later(self, error: SandboxLostError) -> None:
        """Keep the news of a sandbox's end for the next call, unless a call has been told."""
        if self.box is None and self._untold is None and not self.is_closed:
            self._untold = None if error is self._told else error


def checked_name(what: str, value: object) -> str:
    """Return the name of a tenant or an execution, or raise a `ConfigError`."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise ConfigError(
            f"{what} is a name of letters, digits and ._:@/+-, at most 128, not {value!r:.150}"
        )
    return value


def checked_idle(seconds: float) -> float:
    """Return how long a sandbox may be idle, or raise a `ConfigError`."""
    if isinstance(seconds, bool) or not seconds > 0:
        raise ConfigError(f"idle_timeout must be above zero, not {seconds!r}")
    return seconds
