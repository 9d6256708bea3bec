"""The processes that hold a sandbox, from outside: the one we start, and PID 1 of its jail."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading

__all__ = ("CLOSE_SECONDS", "KILL_SECONDS", "Outer", "readable")

CLOSE_SECONDS = 3.0
"""In which a warden without a PID namespace kills all that it started."""

KILL_SECONDS = 5.0
"""In which what is killed has gone, on a machine that is not ill."""


class Outer:
    """The process that was started for a sandbox, and what is known below it. Thread-safe.

    Attributes:
        pid: The process, once it has been started.
    """

    def __init__(self) -> None:
        self.pid: int | None = None
        self._pidfd: int | None = None
        self._inner: int | None = None
        self._mounts: int | None = None
        self._lock = threading.Lock()
        self._closed = False

    def start(self, argv: list[str], stream: int, stderr: int) -> int:
        """Start it, with nothing of ours but a stream and a pipe for what it has to say.

        Raises:
            OSError: It can't be started.
        """
        pid = self.pid = os.posix_spawn(
            argv[0],
            argv,
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stream, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ],
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            setsid=True,  # Ctrl-C in our terminal is for us: we end what we hold, or go on with it
        )
        self._pidfd = os.pidfd_open(pid)
        return pid

    def find_inner(self, *, hold_mounts: bool = False) -> None:
        """Hold the jail's PID 1, the one child of the outer process.

        Args:
            hold_mounts: Hold its mount namespace too, which keeps its mounts from being taken down
                while somebody waits for the end of the sandbox: that is done when it is let go.
        """
        with self._lock:
            if self._inner is not None or self._closed:
                return
            # Without that file in the kernel the outer process has to do.
            with contextlib.suppress(OSError):
                with open(f"/proc/{self.pid}/task/{self.pid}/children", "rb") as file:
                    children = file.read().split()
                if len(children) == 1:
                    inner = int(children[0])
                    self._inner = os.pidfd_open(inner)
                    if hold_mounts:
                        self._mounts = os.open(f"/proc/{inner}/ns/mnt", os.O_RDONLY)

    @property
    def last(self) -> int | None:
        """What becomes readable at the end of the process that ends last of all that is inside."""
        return self._pidfd if self._inner is None else self._inner

    def has_ended(self) -> bool:
        """Whether it has ended, or was never there."""
        return self._pidfd is None or readable(self._pidfd, 0)

    def kill(self) -> None:
        """Kill it; what is inside dies with it."""
        with self._lock:
            if self._pidfd is not None:
                _kill(self._pidfd)

    def kill_inner(self) -> None:
        """Kill PID 1 of the jail, if there is one, and so all that is inside."""
        with self._lock:
            if self._inner is not None:
                _kill(self._inner)

    def wait(self) -> bool:
        """Wait for its end, killing it after a while; reap it; return whether it is gone."""
        if self.pid is None or self._pidfd is None:
            return True
        for patience in (CLOSE_SECONDS, KILL_SECONDS):
            if readable(self._pidfd, patience):
                break
            self.kill()
        gone = True
        with contextlib.suppress(ChildProcessError):  # the caller ignores SIGCHLD, or reaped all
            gone = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        with self._lock:
            self._closed = True
            for descriptor in (self._pidfd, self._inner, self._mounts):
                if descriptor is not None:
                    os.close(descriptor)
            self._pidfd = self._inner = self._mounts = None
        return gone


def readable(descriptor: int, seconds: float) -> bool:
    """Return whether there is something to read, or becomes so in time."""
    poll = select.poll()  # unlike select it takes any descriptor's number
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
