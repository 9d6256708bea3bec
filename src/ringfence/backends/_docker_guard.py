"""What keeps sandboxes on a bridge away from the engine's machine and from its cloud's metadata.

They are rules of the packet filter. All our bridges have names that begin alike, so one set of
rules serves every bridge of every process: it is put there before a bridge is made, and taken away
when there is none any more, both under a lock of the machine.

It takes root and `iptables` on the engine's own machine, in its network namespace. Where that is
not so there is no guard, and `bridge` is not to be had unless the config does without.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread

from ..errors import CreateError

__all__ = ("BRIDGE_PREFIX", "bridge_is_here", "held", "why_no_guard")

BRIDGE_PREFIX = "rf-"
"""How the names of our bridges begin; a sandbox's id is one as it is, and as long as one can be."""

_NAME = "container"
_LOCK = "/run/ringfence-guard.lock"
_SECONDS = 30.0
_ALL = f"{BRIDGE_PREFIX}+"  # iptables' own wildcard
_DEVICES = Path("/sys/class/net")

_FORWARDED = (
    ("-d", "169.254.0.0/16"),  # link-local, and most clouds' metadata
    ("-d", "100.100.100.200/32"),  # metadata elsewhere
    ("-d", "192.0.0.192/32"),
    ("-d", "168.63.129.16/32", "-p", "tcp", "!", "--dport", "53"),  # which is a resolver too
    ("-o", _ALL),  # one another
    ("-o", "docker0"),
)
_RULES = (
    *(("DOCKER-USER", "-i", _ALL, *rule, "-j", "REJECT") for rule in _FORWARDED),
    ("INPUT", "-i", _ALL, "-j", "REJECT"),  # the machine itself, by whichever of its addresses
)


def why_no_guard(*, local: bool) -> str:
    """Return why this process can't guard bridges; empty if it can.

    Args:
        local: Whether the engine is on this machine, as far as its address tells.
    """
    if not local:
        return "the engine is on another machine"
    if os.geteuid() != 0:
        return "that takes root"
    if shutil.which("iptables") is None:
        return "there is no iptables here"
    try:
        found = _iptables("-S", "DOCKER-USER")
    except CreateError:
        return "iptables does not answer"
    return "" if found.returncode == 0 else "the engine has no packet filter here"


def bridge_is_here(name: str) -> bool:
    """Whether a bridge is in our own network namespace, where the rules are."""
    return (_DEVICES / name).exists()


@asynccontextmanager
async def held(*, making: bool) -> AsyncIterator[None]:
    """Make or remove a bridge, while no other process does; afterwards the rules are as they must.

    Args:
        making: Whether a bridge is made, so that the rules must be there before it.

    Raises:
        CreateError: The rules can't be had.
    """
    lock = await anyio.to_thread.run_sync(_lock)
    try:
        if making:
            await anyio.to_thread.run_sync(_put)
        yield
    finally:
        try:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_remove_if_idle)
        finally:
            os.close(lock)


def _lock() -> int:
    """Return the descriptor of a file that is locked until it is closed."""
    try:
        number = os.open(_LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CreateError(f"a bridge can't be guarded: {error}", backend=_NAME) from error
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            os.close(number)
            raise CreateError(
                f"another process has been at the packet filter for {_SECONDS:g} s", backend=_NAME
            ) from None
        return number


def _put() -> None:
    for rule in _RULES:
        if _iptables("-C", *rule).returncode == 0:
            continue
        chain, *what = rule
        put = _iptables("-I", chain, "1", *what)
        if put.returncode != 0:
            said = put.stderr.decode("utf-8", "replace").strip()
            raise CreateError(f"a bridge can't be guarded: {said:.500}", backend=_NAME)


def _remove_if_idle() -> None:
    if any(name.startswith(BRIDGE_PREFIX) for name in os.listdir(_DEVICES)):
        return
    for rule in _RULES:
        _iptables("-D", *rule)


def _iptables(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    argv = ["iptables", "-w", "5", *arguments]
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise CreateError(
            f"a bridge can't be guarded: iptables did not run ({type(error).__name__})",
            backend=_NAME,
        ) from error
