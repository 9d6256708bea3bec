"""The backend that is chosen when it is opened.

It isolates nothing itself: opening it asks a chooser for the strongest backend that this machine
can run now and opens that one; everything else is passed on to it, and its sandboxes bear the
chosen one's name. Nothing is chosen before it has been opened, and what is chosen then stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..backend import Backend, Sandbox
from ..errors import BackendUnavailableError, SandboxClosedError
from ..models import Capabilities, Limits, Probe, SandboxSpec

__all__ = ("AutoBackend",)


class AutoBackend(Backend):
    """Stands for a backend that is chosen when it is opened; `chosen` then says which.

    Args:
        choose: Returns the backend, not opened yet, or raises `BackendUnavailableError`.
    """

    name = "auto"

    def __init__(self, choose: Callable[[], Awaitable[Backend]]) -> None:
        self._choose = choose
        self._chosen: Backend | None = None

    @property
    def chosen(self) -> Backend:
        """The backend that everything is passed on to.

        Raises:
            SandboxClosedError: It has not been opened.
        """
        if self._chosen is None:
            raise SandboxClosedError(
                "nothing is chosen before the backend is opened", hint="use it with `async with`"
            )
        return self._chosen

    @property
    def capabilities(self) -> Capabilities:
        return self.chosen.capabilities

    @property
    def default_limits(self) -> Limits:
        return self.chosen.default_limits

    async def probe(self) -> Probe:
        try:
            backend = self._chosen or await self._choose()
        except BackendUnavailableError as error:
            return Probe(False, error.message, error.hint or "")
        return await backend.probe()

    async def _open(self) -> None:
        chosen = await self._choose()
        await chosen._open()
        self._chosen = chosen

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        return await self.chosen._create(spec, limits, sandbox_id)

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        return await self.chosen._one_shot(spec)

    async def _end_one_shot(self, sandbox: Sandbox) -> None:
        await self.chosen._end_one_shot(sandbox)

    def _resolve(self, spec: SandboxSpec | None) -> tuple[SandboxSpec, Limits]:
        return self.chosen._resolve(spec)

    async def reap(self) -> int:
        return await self.chosen.reap()

    async def aclose(self) -> None:
        if self._chosen is not None:
            await self._chosen.aclose()
