"""Starts wardens as children of this process, and ends them without leaving anything.

The spawner's thread does all the starting. The socket is the signal that it is done: the warden
says hello on it, or it ends.

A sandbox is ended by closing its socket: the warden exits, and as PID 1 takes everything with it.
The outer process exits after it, so its end is the proof. What does not end in time is killed.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import socket
import threading
import time
import warnings
import weakref

import anyio
import anyio.to_thread

from .. import inventory
from ..cgroups import Group
from ..errors import CreateError, CreateTimeoutError, SandboxError, SandboxLostError
from ..host_files import remove_tree
from .connection import Connection
from .order import Order, Resources
from .outer import CLOSE_SECONDS, KILL_SECONDS, Outer, readable
from .spawner import drain, submit
from .stream import SocketStream, asyncio_loop

__all__ = ("Boot",)

_EMPTY_SECONDS = 0.2


_live: weakref.WeakSet[Boot] = weakref.WeakSet()


def _forget_after_fork() -> None:
    # The child has no right to the parent's sandboxes.
    global _live  # noqa: PLW0603
    for boot in list(_live):
        boot.disown()
    _live = weakref.WeakSet()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


@atexit.register
def _end_all() -> None:
    for boot in list(_live):
        boot.end()


class Boot:
    """One warden, from before its start to after its end.

    Args:
        order: How to start it. It is started at once, in the background.
    """

    def __init__(self, order: Order) -> None:
        self.order = order
        self.group: Group | None = None
        self._outer = Outer()
        self.born = time.monotonic()
        self._early = b""
        self._is_up = False
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._uid: int | None = None
        self._recorded = False
        self._error: SandboxError | None = None
        self._started = threading.Event()
        self._lock = threading.Lock()
        self._ended = False
        self._oom_at_start = 0
        self._stderr: int | None = None
        try:
            self._make_ends()
        except OSError as error:  # no descriptors left
            raise self._not_begun(error) from error
        try:
            submit(self._start)
        except RuntimeError as error:  # no thread can be started
            self._socket.close()
            self._close_stderr()
            raise self._not_begun(error) from error
        _live.add(self)

    @property
    def pid(self) -> int | None:
        """Its outermost process, once it has been started."""
        return self._outer.pid

    def _not_begun(self, error: Exception) -> CreateError:
        self._ended = True
        return self._not_started(error)

    def _not_started(self, error: Exception) -> CreateError:
        return CreateError(
            f"the sandbox's process could not be started: {error}", backend=self.order.backend
        )

    def _make_ends(self) -> None:
        """Make what we and the warden hold the ends of."""
        self._socket, self._theirs = socket.socketpair()
        try:
            for end in (self._socket, self._theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            self._stderr, self._their_stderr = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self._socket.close()
            self._theirs.close()
            raise
        os.set_blocking(self._stderr, False)

    # In the spawner's thread.

    def _start(self) -> None:
        try:
            if not self._ended:
                self._spawn()
        except SandboxError as error:
            self._error = error
        except OSError as error:
            self._error = self._not_started(error)
        finally:
            self._theirs.close()
            os.close(self._their_stderr)
            self._started.set()

    def _spawn(self) -> None:
        owner = inventory.owner()
        if self.order.private_uid:
            self._uid = owner.take_uid()
        entry = inventory.Entry(
            id=self.order.sandbox_id,
            backend=self.order.backend,
            uid=self._uid,
            cgroups=self.order.cgroups,
            work_dir=self.order.work_dir,
            labels=dict(self.order.labels or {}),
        )
        owner.add(entry)
        self._recorded = True
        if self.order.group is not None:
            self.group = self.order.group()
        if self.order.prepare is not None:
            self.order.prepare()
        argv = self.order.argv(Resources(self._uid, self.group.procs_files if self.group else ()))
        pid = self._outer.start(argv, self._theirs.fileno(), self._their_stderr)
        owner.update(entry.started(pid))

    # On the event loop.

    async def connect(self, timeout: float) -> Connection:
        """Wait for the warden's hello and return the connection; a failed boot is ended.

        Raises:
            CreateError: It could not be started; the text is what it said on stderr.
            CreateTimeoutError: It did not say hello in time.
        """
        self._loop = asyncio_loop()
        connection = self._connection = Connection(SocketStream(self._socket), self._lost)
        try:
            with anyio.fail_after(timeout):
                await connection.greet()
        except TimeoutError:
            await self._fail()
            raise CreateTimeoutError(
                f"the sandbox was not ready within {timeout:g} s", backend=self.order.backend
            ) from None
        except SandboxLostError as error:
            raise await self._fail_with(error) from None
        except BaseException:
            self.abandon()
            raise
        self._has_come_up()
        return connection

    def _has_come_up(self) -> None:
        self._close_stderr()
        if self.order.jailed:
            self._outer.find_inner()
        if self.group is not None:
            self._oom_at_start = self.group.oom_kills()

    def connect_now(self, loop: asyncio.AbstractEventLoop | None) -> Connection:
        """Return the connection of one that is fresh, or raise a `SandboxError`.

        Args:
            loop: The event loop, if it is asyncio's.
        """
        self._loop = loop
        stream = SocketStream(self._socket, loop)
        connection = self._connection = Connection(stream, self._lost, loop)
        if not connection.take_early(self._early):
            raise CreateError("its hello came in pieces", backend=self.order.backend)
        return connection

    def await_hello(self, timeout: float) -> None:
        """In the spawner's thread: let it come up, so that `connect` has little left to do."""
        descriptor = self._socket.fileno()
        if descriptor < 0 or not readable(descriptor, timeout):
            return
        if self.order.jailed:
            self._outer.find_inner(hold_mounts=True)
        with contextlib.suppress(OSError):  # closed meanwhile, or the warden has died already
            self._early = self._socket.recv(4096)
            self._has_come_up()
            self._is_up = True

    async def _fail_with(self, lost: SandboxLostError) -> SandboxError:
        text = await self._fail()
        if self._error is not None:
            return self._error
        return CreateError(
            f"the sandbox could not be started: {text or lost.message}",
            backend=self.order.backend,
            hint="`ringfence doctor` says what this machine lacks",
        )

    async def _fail(self) -> str:
        """End a boot that did not come up, and return what it said."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._started.wait, KILL_SECONDS)
            self.kill()
            self._hang_up()
            text = self._read_stderr()
            await anyio.to_thread.run_sync(self.end)
        return text

    def is_fresh(self, max_age: float) -> bool:
        """Whether `await_hello` has let it come up, and it will serve."""
        return self._is_up and not self.is_dead(max_age)

    def is_dead(self, max_age: float) -> bool:
        """Whether it has started and will not serve: failed, ended, or older than `max_age` s."""
        if not self._started.is_set():
            return False
        if self._error is not None or self._outer.has_ended():
            return True
        return time.monotonic() - self.born > max_age

    def _lost(self, error: SandboxLostError) -> SandboxLostError:
        """End a sandbox that has ended or can't be trusted, and say why it is lost."""
        if self.order.jailed:
            self.kill()  # otherwise the end of the stream does it, and takes what is below along
        cause = error.cause
        if cause == "died" and self.group and self.group.oom_kills() > self._oom_at_start:
            cause = "out of memory"
        error.message = f"sandbox {self.order.sandbox_id} is lost: {error.message}"
        error.args = (error.message,)
        error.cause = cause
        error.backend = self.order.backend
        return error

    def kill(self) -> None:
        """Kill its outer process at once; what is inside dies with it."""
        self._outer.kill()

    async def aclose(self) -> None:
        """End it; when this returns, nothing that ran inside it lives.

        What is left to free then (the outer process, the cgroup, the record) is freed in the
        background, and `drain` waits for it; a directory is deleted before this returns.
        """
        if self._ended:
            return
        self._hang_up()
        last = self._outer.last
        if last is None:  # not started yet: the spawner comes to it in its turn
            self.abandon()
            await drain()
            return
        self._outer.kill_inner()
        try:
            await self._death(last)
            if self.order.work_dir is not None:
                await anyio.to_thread.run_sync(self.end)
        finally:  # also after asyncio's own cancellation, which no shield keeps out
            submit(self.end)

    async def _death(self, last: int) -> None:
        """Wait for the end of the process that ends last, and hasten it after a while."""
        for patience in (CLOSE_SECONDS, KILL_SECONDS):
            with anyio.move_on_after(patience):
                await anyio.wait_readable(last)
                return
            self.kill()

    def dismiss(self) -> None:
        """Kill it now and free it in the background: for one in which only the warden is left."""
        self._outer.kill_inner()
        if self._loop is None:
            self.abandon()
        else:  # with the loop's next turn, before which whoever waited goes on
            self._loop.call_soon(self.abandon)

    def abandon(self) -> None:
        """End it in the background."""
        self._hang_up()
        submit(self.end)

    def _hang_up(self) -> None:
        """Close our end, on the event loop that may be watching it."""
        if self._connection is not None:
            self._connection.close()
        self._socket.close()

    def end(self) -> None:
        """End it and free all that it holds, waiting a bounded time. Safe to call again."""
        self._started.wait(KILL_SECONDS)
        with self._lock:
            if self._ended:
                return
            self._ended = True
        _live.discard(self)
        self._socket.close()
        self._close_stderr()
        dead = self._outer.wait()
        if self.group is not None:
            # Something can be left where what was started was no jail, or did not come up as one.
            if not dead or not self.group.remove(_EMPTY_SECONDS):
                self.group.kill()
                self.group.remove()
        if self.order.work_dir is not None:
            with contextlib.suppress(FileNotFoundError):  # it was never made
                remove_tree(self.order.work_dir)
        if self._recorded:
            inventory.owner().discard(self.order.sandbox_id)
        if self._uid is not None:
            inventory.owner().free_uid(self._uid)

    def disown(self) -> None:
        """Forget it, in a forked child: the sandbox is the parent's."""
        self._ended = True
        self._socket.close()

    def _close_stderr(self) -> None:
        with self._lock:
            if self._stderr is not None:
                os.close(self._stderr)
                self._stderr = None

    def _read_stderr(self) -> str:
        if self._stderr is None:
            return ""
        try:
            return os.read(self._stderr, 4096).decode("utf-8", "replace").strip()
        except BlockingIOError:
            return ""

    def __del__(self) -> None:
        if not self._ended:
            warnings.warn(
                f"sandbox {self.order.sandbox_id} was never closed", ResourceWarning, stacklevel=2
            )
            submit(_Remains(self).end)


class _Remains:
    """What is left of a boot that was never closed, to be ended in the background."""

    def __init__(self, boot: Boot) -> None:
        self._state = dict(boot.__dict__)
        boot._ended = True

    def end(self) -> None:
        boot = Boot.__new__(Boot)
        boot.__dict__.update(self._state)
        boot._ended = False
        boot.end()
