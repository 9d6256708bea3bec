"""One command of a WASM sandbox: a program on its own thread, as the event loop sees it."""

from __future__ import annotations

import asyncio
import signal as signals
import time
from collections.abc import Callable

import anyio.lowlevel

from ..errors import SandboxError, SandboxLostError, UnsupportedError
from ..models import Chunk, Exit
from ..process import HOST_SLACK, DeadlineError, Launch, Process
from ._wasm_engine import Engine
from ._wasm_guest import Guest, Traits
from ._wasm_threads import Signal, alarms, submit

__all__ = ("WasmProcess", "outcome")

_ENDING = {
    getattr(signals, name)
    for name in ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP", "SIGQUIT", "SIGABRT")
    if hasattr(signals, name)
}
_TERM = int(signals.SIGTERM)
_PROMPT_AFTER = 0.001
_SLICE = 64 * 1024
"""Bytes of stdin that are handed over at once."""


class WasmProcess(Process):
    """A running program.

    Args:
        engine: What interrupts it.
        launch: What was asked for.
        traits: What it is shown of the machine.
        guest: A program that has been started already, in the place of a new one.
    """

    def __init__(
        self, engine: Engine, launch: Launch, traits: Traits, guest: Guest | None = None
    ) -> None:
        self._engine = engine
        self._launch = launch
        self._signal = Signal()
        self._ended = False
        self._exit: Exit | None = None
        self._error: Exception | None = None
        self._alarm: int | None = None
        self._overdue = False
        self._stdin_closed = not launch.stdin_open
        self._listeners: list[Callable[[], None]] = []
        self._is_prompt = False
        self._timer: asyncio.TimerHandle | None = None
        self.guest = guest or Guest(launch, traits, self._tell)

    def start(self, work: Callable[[Guest], Exit]) -> None:
        """Run `work` on a thread of its own, with the command's time running from now on."""
        self._begin()
        submit(lambda: self._work(work), lambda: self.stop(f"signal {_TERM}"))

    def begin(self, job: bytes) -> None:
        """Give a program that has been started its work, with the command's time from now on."""
        self._begin()
        self.guest.begin_turn(self._launch, self._tell, job)

    def on_end(self, call: Callable[[], None]) -> None:
        """Let `call` be made, by the program's thread, just before anybody sees its end."""
        self._listeners.append(call)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._ended

    # Process.

    async def receive(self) -> Chunk | None:
        await self._signal.wait(self._has_news)
        if self._timer is not None and self._ended:
            self._timer.cancel()
        if chunk := self.guest.take():
            return chunk
        self._require_in_time()
        return None

    async def wait(self) -> Exit:
        if not self._ended:
            self.guest.drop_output()
        await self._signal.wait(self._is_settled)
        self._require_in_time()
        assert self._exit is not None
        return self._exit

    async def kill(self, signal: int | None = None) -> None:
        if signal is not None and signal not in _ENDING:
            raise UnsupportedError(
                f"a WASM program has no signals, so it can't be sent {signal}",
                backend="wasm",
                hint="SIGTERM, SIGKILL and SIGINT end it",
            )
        self.stop(f"signal {_TERM if signal is None else int(signal)}")
        if signal is None:
            await self._signal.wait(self._is_settled)
            if not self._ended:
                self._require_in_time()

    async def write_stdin(self, data: bytes) -> None:
        if self._stdin_closed:
            return
        await anyio.lowlevel.checkpoint()
        view = memoryview(data)
        while view and not self._is_settled() and not self.guest.stopped:
            view = view[self.guest.feed(bytes(view[:_SLICE])) :]
            if view:
                await self._signal.wait(self._can_feed)

    async def close_stdin(self) -> None:
        self._stdin_closed = True
        self.guest.end_stdin()

    # The sandbox.

    def stop(self, reason: str) -> None:
        """Let the program end soon; callable from any thread, and more than once."""
        if self.guest.stop(reason):
            self._engine.interrupt()

    def lose(self, error: SandboxError) -> None:
        """End it because its sandbox ends; whoever waits for it is told why."""
        if not self._ended:
            self._error = error
            self.stop("signal 9")
            self._signal.set()

    def wait_ended(self, seconds: float) -> bool:
        """Block until nothing of it runs any more; returns whether that is so."""
        deadline = time.monotonic() + seconds
        while not self._ended and time.monotonic() < deadline:
            time.sleep(0.001)
        return self._ended

    # The rest.

    def finish(self, end: Exit | SandboxError) -> None:
        """Say, from the program's thread, how the command ended."""
        if isinstance(end, Exit):
            self._exit = end
        else:
            self._error = self._error or end
        if self._alarm is not None:
            alarms().cancel(self._alarm)
        for call in self._listeners:
            call()
        self._ended = True
        self._signal.set()

    def _work(self, work: Callable[[Guest], Exit]) -> None:
        self.finish(outcome(work, self.guest))

    def _tell(self) -> None:
        if self._is_prompt:
            self._signal.set()

    def _be_prompt(self) -> None:
        """Tell of output at once from now on.

        Many programs end sooner than that. To be woken for their output and again for their end
        would cost more than the whole of them.
        """
        self._is_prompt = True
        self._signal.set()

    def _begin(self) -> None:
        if self._signal.loop is None:
            self._is_prompt = True
        else:
            self._timer = self._signal.loop.call_later(_PROMPT_AFTER, self._be_prompt)
        if self._launch.timeout is not None:
            self._alarm = alarms().set(self._launch.timeout, self._expire)

    def _expire(self) -> None:
        self.stop("timeout")
        self._alarm = alarms().set(self._launch.kill_grace + HOST_SLACK, self._give_up)

    def _give_up(self) -> None:
        if not self._ended:
            self._overdue = True
            self._signal.set()

    def _has_news(self) -> bool:
        return self.guest.has_output or self._is_settled()

    def _is_settled(self) -> bool:
        return self._ended or self._error is not None or self._overdue

    def _can_feed(self) -> bool:
        return self.guest.has_stdin_room or bool(self.guest.stopped) or self._is_settled()

    def _require_in_time(self) -> None:
        """Raise what the command's caller has to be told instead of its end."""
        if self._error is not None:
            raise self._error
        if self._overdue and not self._ended:
            raise DeadlineError


def outcome(work: Callable[[Guest], Exit], guest: Guest) -> Exit | SandboxError:
    """Run a program; returns how it ended, or what its caller has to be told instead."""
    try:
        return work(guest)
    except SandboxError as error:
        return error
    except Exception as error:  # noqa: BLE001 - told to whoever waits for the command
        lost = SandboxLostError(
            f"the host failed to run a program: {error!r}", cause="a fault", backend="wasm"
        )
        lost.__cause__ = error
        return lost
