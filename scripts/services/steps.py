"""What every service shares: where things are kept, how a step is told, how a fault is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent.parent / ".cache" / "services"
"""Everything that is worth keeping; ignored by git, and safe to remove when all is down."""


class ServiceError(Exception):
    """A service can't be had here; the message says what to do about it."""


def say(text: str) -> None:
    """Tell what is being done, on stderr: `env` owns stdout."""
    print(f"services: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """Do something that takes time, and say how long it took."""
    began = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - began:.1f} s")


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other process brings services up or down."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Wait until something is so.

    Raises:
        ServiceError: It was not so in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)


def need_root(what: str, instead: str) -> None:
    """Refuse what only root can do.

    Raises:
        ServiceError: We are not root.
    """
    if os.geteuid() != 0:
        raise ServiceError(f"{what} needs root: {instead}")


def free_ports(count: int, address: str) -> list[int]:
    """Return ports that nobody listens on."""
    held = [socket.create_server((address, 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports
