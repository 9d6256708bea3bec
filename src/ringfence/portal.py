"""One event loop in a thread of its own, shared by all synchronous callers of this process.

It starts with the first call and ends with the interpreter; whatever is still open then is
cancelled, and so cleaned up. A caller waits in its own thread, so it may have a running event loop
there, which stands still meanwhile.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

__all__ = ("Entered", "call")

CLEANUP_TIMEOUT = 30.0
"""Seconds that a call gets to clean up after its caller was interrupted."""

_Args = ParamSpec("_Args")
_Value = TypeVar("_Value")

_lock = threading.Lock()
_current: BlockingPortal | None = None


def call(
    function: Callable[_Args, Awaitable[_Value]], *args: _Args.args, **kwargs: _Args.kwargs
) -> _Value:
    """Run an async function to its end and return what it returns.

    If the wait is interrupted, by Ctrl-C for example, the call is cancelled and has cleaned up
    before the interruption goes on.

    Raises:
        RuntimeError: This is the thread of the event loop itself.
    """
    over = threading.Event()

    async def run() -> _Value:
        try:
            return await function(*args, **kwargs)
        finally:
            over.set()

    future = _portal().start_task_soon(run)
    try:
        return future.result()
    except BaseException:
        if future.cancel():  # only if the exception came from here and not from the call
            over.wait(CLEANUP_TIMEOUT)
        raise


class Entered(AbstractContextManager[Any]):
    """The synchronous twin of a context manager; one task enters and leaves it.

    In a forked child, leaving what the parent has entered does nothing: it is the parent's.
    """

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._inner = _portal().wrap_async_context_manager(manager)
        self._owner = os.getpid()

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if os.getpid() != self._owner:
            return None
        return self._inner.__exit__(exc_type, exc, traceback)


def _portal() -> BlockingPortal:
    global _current  # noqa: PLW0603  # one for the whole process is the point
    with _lock:
        if _current is None:
            started: Future[BlockingPortal] = Future()
            # A daemon, for the interpreter joins all others before it calls what `atexit` knows.
            thread = threading.Thread(
                target=_serve, args=(started,), name="ringfence-sync", daemon=True
            )
            thread.start()
            _current = started.result()
            atexit.register(_stop, _current, thread, os.getpid())
        return _current


def _serve(started: Future[BlockingPortal]) -> None:
    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)  # there is no loop to be had; the caller hears why


def _stop(portal: BlockingPortal, thread: threading.Thread, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has inherited this call, but not the thread
        portal.call(partial(portal.stop, cancel_remaining=True))
        thread.join(CLEANUP_TIMEOUT)


def _forget() -> None:
    """Let a forked child start a loop of its own: its parent's thread is not in it."""
    global _current, _lock  # noqa: PLW0603  # as above
    _current = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
