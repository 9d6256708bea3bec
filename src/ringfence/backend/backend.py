"""One kind of isolation: what a backend must implement, and what users call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self, final

from ..errors import LimitError, UnsupportedError
from ..models import (
    DEFAULT_OUTPUT_BYTES,
    DEFAULT_TIMEOUT,
    MAX_TIMEOUT,
    Capabilities,
    Command,
    Limits,
    Probe,
    Result,
    SandboxSpec,
    new_sandbox_id,
)
from .closeable import Closeable
from .commands import one_shot_command
from .sandbox import Sandbox

__all__ = ("BASE_LIMITS", "Backend")

BASE_LIMITS = Limits(
    output_bytes=DEFAULT_OUTPUT_BYTES,
    timeout=DEFAULT_TIMEOUT,
    max_timeout=MAX_TIMEOUT,
    kill_grace=0.5,  # enough for a handler that flushes a file, short for a person who waits
    start_timeout=10.0,
    max_age=3600.0,
)
"""The limits that our own clock holds, the same on every backend."""


class Backend(Closeable):
    """One kind of isolation and its driver.

    `__init__` stores a config and does no I/O. Use it with `async with`: entering probes the
    machine and fails with a `BackendUnavailableError` where it can't run here.
    """

    name: ClassVar[str]
    """What the registry calls it."""

    # What a backend must implement.

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can promise here; complete once the backend has been opened."""

    @property
    @abstractmethod
    def default_limits(self) -> Limits:
        """Its hardened defaults, with the config's own limits over them."""

    @abstractmethod
    async def probe(self) -> Probe:
        """Find out whether it can run on this machine now. Never raises for a 'no'."""

    @abstractmethod
    async def _open(self) -> None:
        """Get ready to create sandboxes.

        Raises:
            BackendUnavailableError: It can't run here; the message says why.
        """

    @abstractmethod
    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        """Make a sandbox, and undo everything on the way out of a failure or cancellation."""

    @abstractmethod
    async def reap(self) -> int:
        """Remove what dead owners left on this machine and return how many sandboxes that was.

        What a live owner holds, and what is not ours, stays.
        """

    # What users call.

    @final
    async def __aenter__(self) -> Self:
        await self._open()
        return self

    @final
    async def create(self, spec: SandboxSpec | None = None) -> Sandbox:
        """Make a live sandbox.

        Raises:
            LimitError: A limit was asked for that can't be enforced here.
            UnsupportedError: The network or mounts asked for are not to be had here.
            CreateError: It could not be made; nothing is left of the attempt.
        """
        wanted, limits = self._resolve(spec)
        return await self._create(wanted, limits, new_sandbox_id())

    @final
    async def execute(
        self,
        command: Command | str,
        args: Sequence[str] = (),
        *,
        timeout: float | None = None,
        spec: SandboxSpec | None = None,
    ) -> Result:
        """Run one command in a clean sandbox of its own.

        When this returns, all that the command started is gone. The empty sandbox is too, or goes
        at once, in the background; closing the backend waits for it.

        Args:
            command: A `Command`, or a program's name with `args` beside it.
            args: The arguments that follow a program's name.
            timeout: Seconds; overrides the command's own.
            spec: What kind of sandbox; default: the backend's own.

        Raises:
            SandboxError: The sandbox could not run it.
        """
        wanted = one_shot_command(command, args, timeout)
        sandbox = await self._one_shot(spec)
        try:
            result = await sandbox.exec(wanted)
        except BaseException:
            await sandbox.aclose()
            raise
        await self._end_one_shot(sandbox)
        return result

    # What follows.

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        """Return a clean sandbox for one command; a backend may have one ready."""
        return await self.create(spec)

    async def _end_one_shot(self, sandbox: Sandbox) -> None:
        """End a sandbox whose only command has ended with all that it started.

        A backend may leave the empty sandbox to the background, and waits for it in `aclose`.
        """
        await sandbox.aclose()

    def _resolve(self, spec: SandboxSpec | None) -> tuple[SandboxSpec, Limits]:
        """Check a spec against what this backend can do and fill in its limits."""
        wanted = spec or SandboxSpec()
        able = self.capabilities
        if wanted.network is not None and wanted.network.mode not in able.network_modes:
            raise UnsupportedError(
                f"network {wanted.network.mode!r} is not available on {self.name}; it has "
                + " and ".join(repr(mode) for mode in able.network_modes),
                backend=self.name,
                hint="the container and kubernetes backends can reach a network",
            )
        if wanted.mounts and not able.mounts:
            raise UnsupportedError(
                f"{self.name} can't show host paths inside a sandbox", backend=self.name
            )
        for name in able.limits.missing(wanted.limits.asked() | self._asked()):
            raise LimitError(
                name,
                f"{self.name} can't enforce {name} on this machine",
                backend=self.name,
                hint="leave it out, or see `ringfence doctor` for what blocks it",
            )
        return wanted, wanted.limits.over(self.default_limits).over(BASE_LIMITS)

    def _asked(self) -> frozenset[str]:
        """Return the limits that the config asks for explicitly."""
        return frozenset()
