"""What the signals that end a command do: cancel the work, and let it clean up."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
from anyio import CancelScope

__all__ = ("unless_interrupted",)


async def unless_interrupted(work: Callable[[], Awaitable[int]]) -> int:
    """Do the work, and return its exit code, or 128+N if signal N has broken it off."""
    caught: list[int] = []
    code = 0
    with anyio.open_signal_receiver(*_signals()) as signals:
        async with anyio.create_task_group() as tasks:
            scope = CancelScope()
            tasks.start_soon(_cancel_at_signal, signals, scope, caught)
            with scope:
                code = await work()
            tasks.cancel_scope.cancel()
    return 128 + caught[0] if caught else code


def _signals() -> list[signal.Signals]:
    """Return the signals that end us; one that is ignored, as nohup does, stays so."""
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]


async def _cancel_at_signal(
    signals: AsyncIterator[signal.Signals], scope: CancelScope, caught: list[int]
) -> None:
    async for number in signals:  # and go on, so that a second one can't break off the clean-up
        caught.append(number)
        scope.cancel()
