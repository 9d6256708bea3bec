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
import select
import signal
import socket
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
import anyio.to_thread

from .. import inventory
from ..cgroups import Group
from ..errors import CreateError, CreateTimeoutError, SandboxError, SandboxLostError
from ..host_files import remove_tree
from .connection import Connection
from .spawner import drain, submit
from .stream import SocketStream, asyncio_loop

__all__ = ("Boot", "Order", "Resources")

_CLOSE_SECONDS = 3.0  # in which a warden without a PID namespace kills all that it started
_KILL_SECONDS = 5.0
_EMPTY_SECONDS = 0.2


@dataclass(frozen=True)
class Resources:
    """What a starting sandbox was given.

    Attributes:
        uid: A host uid of its own, or None to run as the caller.
        procs_files: The cgroup files to join.
    """

    uid: int | None
    procs_files: tuple[str, ...]


@dataclass(frozen=True)
class Order:
    """How to start one sandbox.

    Attributes:
        backend: The backend's name.
        sandbox_id: The sandbox's.
        argv: Builds the program to run from what it was given.
        group: Makes its cgroup, or None where there is none.
        cgroups: The directories that `group` will make, to be recorded before they are there.
        private_uid: Whether it gets a host uid of its own.
        jailed: Whether all that is inside ends with its outer process. If not, the warden has to
            end it, and must be let.
        prepare: Makes what it needs on disk before it is started, `work_dir` for one.
        work_dir: A directory to delete with it.
        labels: For its record.
    """

    backend: str
    sandbox_id: str
    argv: Callable[[Resources], list[str]]
    group: Callable[[], Group] | None = None
    cgroups: tuple[str, ...] = ()
    private_uid: bool = False
    jailed: bool = False
    prepare: Callable[[], None] | None = None
    work_dir: str | None = None
    labels: Mapping[str, str] | None = None


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
        self.pid: int | None = None
        self.born = time.monotonic()
        self._pidfd: int | None = None
        self._inner: int | None = None
        self._inner_pid: int | None = None
        self._early = b""
        self._is_up = False
        self._mounts: int | None = None
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
        self.pid = os.posix_spawn(
            argv[0],
            argv,
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, self._theirs.fileno(), 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, self._their_stderr, 2),
            ],
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            setsid=True,  # Ctrl-C in our terminal is for us: we end what we hold, or go on with it
        )
        self._pidfd = os.pidfd_open(self.pid)
        owner.update(entry.started(self.pid))

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
        self._find_inner()
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
        if descriptor < 0 or not _readable(descriptor, timeout):
            return
        self._find_inner()
        # What holds a mount namespace keeps its mounts from being taken down while somebody waits
        # for the end of the sandbox: that is done when it is let go, in the background.
        with self._lock, contextlib.suppress(OSError):
            if not self._ended and self._inner_pid is not None:
                self._mounts = os.open(f"/proc/{self._inner_pid}/ns/mnt", os.O_RDONLY)
        with contextlib.suppress(OSError):  # closed meanwhile, or the warden has died already
            self._early = self._socket.recv(4096)
            self._has_come_up()
            self._is_up = True

    def _find_inner(self) -> None:
        """Hold a pidfd of the jail's PID 1, the one child of the outer process."""
        with self._lock:
            if self._inner is not None or self._ended or not self.order.jailed:
                return
            # Without that file in the kernel the outer process has to do.
            with contextlib.suppress(OSError):
                with open(f"/proc/{self.pid}/task/{self.pid}/children", "rb") as file:
                    children = file.read().split()
                if len(children) == 1:
                    self._inner_pid = int(children[0])
                    self._inner = os.pidfd_open(self._inner_pid)

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
            await anyio.to_thread.run_sync(self._started.wait, _KILL_SECONDS)
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
        if self._error is not None or self._pidfd is None:
            return True
        return time.monotonic() - self.born > max_age or _readable(self._pidfd, 0)

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
        with self._lock:
            if self._pidfd is not None:
                _kill(self._pidfd)

    async def aclose(self) -> None:
        """End it; when this returns, nothing that ran inside it lives.

        What is left to free then (the outer process, the cgroup, the record) is freed in the
        background, and `drain` waits for it; a directory is deleted before this returns.
        """
        if self._ended:
            return
        self._hang_up()
        last = self._pidfd if self._inner is None else self._inner
        if last is None:  # not started yet: the spawner comes to it in its turn
            self.abandon()
            await drain()
            return
        if self._inner is not None:
            _kill(self._inner)
        try:
            await self._death(last)
            if self.order.work_dir is not None:
                await anyio.to_thread.run_sync(self.end)
        finally:  # also after asyncio's own cancellation, which no shield keeps out
            submit(self.end)

    async def _death(self, last: int) -> None:
        """Wait for the end of the process that ends last, and hasten it after a while."""
        for patience in (_CLOSE_SECONDS, _KILL_SECONDS):
            with anyio.move_on_after(patience):
                await anyio.wait_readable(last)
                return
            self.kill()

    def dismiss(self) -> None:
        """Kill it now and free it in the background: for one in which only the warden is left."""
        if self._inner is not None:
            _kill(self._inner)
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
        self._started.wait(_KILL_SECONDS)
        with self._lock:
            if self._ended:
                return
            self._ended = True
        _live.discard(self)
        self._socket.close()
        self._close_stderr()
        dead = self._wait_for_death()
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

    def _wait_for_death(self) -> bool:
        """Wait for the outer process, reap it, and return whether it is gone."""
        if self.pid is None or self._pidfd is None:
            return True
        for patience in (_CLOSE_SECONDS, _KILL_SECONDS):
            if _readable(self._pidfd, patience):
                break
            self.kill()
        gone = True
        with contextlib.suppress(ChildProcessError):  # the caller ignores SIGCHLD, or reaped all
            gone = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        with self._lock:
            for descriptor in (self._pidfd, self._inner, self._mounts):
                if descriptor is not None:
                    os.close(descriptor)
            self._pidfd = self._inner = self._mounts = None
        return gone

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


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()  # unlike select it takes any descriptor's number
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
