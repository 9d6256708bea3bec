"""How an adapter reaches a sandbox from whichever event loop its framework calls it in.

A sandbox belongs to the event loop that it was opened in. Frameworks call from others: many run a
synchronous call in a thread with a loop of its own. What comes from another loop is handed over to
the sandbox's, once that has shown that it runs: if it stands still because its own thread waits
for the framework, nobody would ever be answered.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

from .. import sync
from ..backend import Sandbox
from ..errors import ConfigError, SandboxClosedError, UnsupportedError
from ..models import Chunk, Command, Result
from ..portal import call

__all__ = ("AnySandbox", "Reach")

AnySandbox = Sandbox | sync.Sandbox
"""A sandbox or session of either kind: of this event loop, or of `ringfence.sync`."""

ANSWER_SECONDS = 5.0
"""In which the sandbox's event loop must answer a call that comes from another."""

CLEANUP_SECONDS = 30.0
"""In which a call must have cleaned up that was cancelled from another event loop."""

_Args = ParamSpec("_Args")
_Value = TypeVar("_Value")


class Reach:
    """A sandbox, and the way to it.

    Args:
        sandbox: A sandbox or a session. One of `ringfence.sync` can be called from anywhere; one
            of an event loop from that loop, and from others while that loop runs.

    Raises:
        ConfigError: It is something else.
    """

    sandbox: Sandbox

    def __init__(self, sandbox: AnySandbox) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        if isinstance(sandbox, sync.Sandbox):
            self.sandbox = sandbox._inner
            self._loop = call(_running_loop)
        elif isinstance(sandbox, Sandbox):
            self.sandbox = sandbox
            self._loop = _loop_here()  # without one, that of the first call
        else:
            raise ConfigError(
                f"an adapter takes a sandbox or a session, not {type(sandbox).__name__}",
                hint="make one with backend.create() or SessionManager.session()",
            )

    async def run(
        self,
        function: Callable[_Args, Awaitable[_Value]],
        *args: _Args.args,
        **kwargs: _Args.kwargs,
    ) -> _Value:
        """Run an async function in the sandbox's event loop, from any.

        Raises:
            UnsupportedError: That loop stands still or has ended.
        """
        here = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = here
        if self._loop is here:
            return await function(*args, **kwargs)
        return await self._afar(self._loop, partial(function, *args, **kwargs))

    def call(
        self,
        function: Callable[_Args, Awaitable[_Value]],
        *args: _Args.args,
        **kwargs: _Args.kwargs,
    ) -> _Value:
        """Run an async function in the sandbox's event loop and wait in this thread.

        Raises:
            UnsupportedError: This is the thread of that loop, or the loop stands still.
        """
        if self._loop is None or self._loop is _loop_here():
            raise UnsupportedError(
                "a blocking call can't wait for the event loop that it is in itself",
                hint="give the adapter a sandbox of ringfence.sync",
            )
        # In the shared loop of `ringfence.sync`, whose waiting can be interrupted.
        return call(lambda: self.run(function, *args, **kwargs))

    async def output(
        self, command: Command, timeout: float | None
    ) -> AsyncGenerator[Chunk | Result, None]:
        """Run a command and hand out its decoded output as it arrives, and its result at the end.

        Closing the generator early kills the command.
        """
        arrived: asyncio.Queue[Chunk | None] = asyncio.Queue()  # bounded by the output cap
        here = asyncio.get_running_loop()

        def arrive(chunk: Chunk | None) -> None:
            here.call_soon_threadsafe(arrived.put_nowait, chunk)

        run = asyncio.ensure_future(
            self.run(self.sandbox.exec, command, timeout=timeout, on_output=arrive)
        )
        run.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (chunk := await arrived.get()) is not None:
                yield chunk
        finally:
            if not run.done():
                run.cancel()
                await asyncio.wait([run])
        yield run.result()

    async def _afar(
        self, loop: asyncio.AbstractEventLoop, function: Callable[[], Awaitable[_Value]]
    ) -> _Value:
        begun: concurrent.futures.Future[asyncio.Task[_Value]] = concurrent.futures.Future()
        over: concurrent.futures.Future[asyncio.Task[_Value]] = concurrent.futures.Future()

        async def errand() -> _Value:
            return await function()

        def begin() -> None:
            if begun.set_running_or_notify_cancel():
                task = loop.create_task(errand())
                task.add_done_callback(over.set_result)
                begun.set_result(task)

        try:
            loop.call_soon_threadsafe(begin)
            task = await asyncio.wait_for(asyncio.wrap_future(begun), ANSWER_SECONDS)
        except (RuntimeError, TimeoutError):
            _call_off(loop, begun)
            raise UnsupportedError(
                "the event loop that the sandbox belongs to has ended or stands still, so a call "
                "from another can't reach it",
                backend=self.sandbox.backend,
                hint="await the framework's async form, or use a sandbox of ringfence.sync",
            ) from None
        except asyncio.CancelledError:
            _call_off(loop, begun)
            raise
        waiting = asyncio.wrap_future(over)
        try:
            ended = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if not over.done():
                loop.call_soon_threadsafe(task.cancel)
                await asyncio.wait([waiting], timeout=CLEANUP_SECONDS)
            raise
        if ended.cancelled():
            raise SandboxClosedError(
                "the event loop that the sandbox belongs to has ended", backend=self.sandbox.backend
            )
        return ended.result()

    def __repr__(self) -> str:
        return f"<Reach to {self.sandbox!r}>"


def _call_off(
    loop: asyncio.AbstractEventLoop, begun: concurrent.futures.Future[asyncio.Task[_Value]]
) -> None:
    """End an errand that nobody waits for, if it has begun after all."""
    if not begun.cancel():
        begun.add_done_callback(lambda one: loop.call_soon_threadsafe(one.result().cancel))


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
