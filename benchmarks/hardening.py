"""Checks from inside and outside that a sandbox has the protection that a row claims."""

from __future__ import annotations

import os
import select
import subprocess
from dataclasses import dataclass

from ringfence.backend import Sandbox
from ringfence.backends._jail import JAIL_UID
from ringfence.models import Command

from .floors import OneShots
from .measure import check
from .processes import descendants, host_uids, sandbox_pids

__all__ = (
    "Protection",
    "check_container",
    "check_look",
    "check_one_shots",
    "check_sandbox",
    "parse_protection",
)

_LOOK = "cat /proc/self/status; readlink /proc/self/ns/net"
_SECONDS = 10.0


@dataclass(frozen=True)
class Protection:
    """What a process says of itself.

    Attributes:
        uid: Inside.
        capabilities: All that it has or could get.
        no_new_privs: Whether it can't gain any by running a program.
        seccomp: Whether a filter is on it.
        network: The name of its network namespace.
    """

    uid: int
    capabilities: int
    no_new_privs: bool
    seccomp: bool
    network: str


def parse_protection(said: str) -> Protection:
    """Read what the look from inside printed."""
    *status, network = said.splitlines()
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in status)}
    capabilities = 0
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        capabilities |= int(fields[name], 16)
    return Protection(
        uid=int(fields["Uid"].split()[0]),
        capabilities=capabilities,
        no_new_privs=fields["NoNewPrivs"] == "1",
        seccomp=fields["Seccomp"] == "2",
        network=network,
    )


def _check(found: Protection, outside: set[int], who: str, *, seccomp: bool) -> None:
    check(found.uid == JAIL_UID, f"{who} runs as uid {found.uid} inside")
    check(bool(outside) and 0 not in outside, f"{who} has the uids {outside} outside")
    check(found.capabilities == 0, f"{who} has capabilities {found.capabilities:x}")
    check(found.no_new_privs, f"{who} could gain privileges")
    check(found.seccomp or not seccomp, f"{who} has no system call filter")
    check(found.network != os.readlink("/proc/self/ns/net"), f"{who} is in the host's network")


async def check_sandbox(sandbox: Sandbox, look: Command | None = None) -> None:
    """Check one of our sandboxes.

    Args:
        sandbox: It.
        look: What looks around inside and prints what the shell's script does.

    Raises:
        CheckError: It lacks something.
    """
    result = await sandbox.exec(look or Command(("/bin/sh", "-c", _LOOK)))
    check(result.ok, f"the look from inside failed: {result.stderr_text}")
    outside = host_uids(sandbox_pids(sandbox.id))
    _check(parse_protection(result.stdout_text), outside, "our sandbox", seccomp=True)


async def check_container(sandbox: Sandbox, pids: list[int]) -> None:
    """Check one of our containers.

    Args:
        sandbox: It.
        pids: Its processes, as the host sees them.

    Raises:
        CheckError: It lacks something.
    """
    result = await sandbox.exec("/bin/sh", ["-c", _LOOK])
    check(result.ok, f"the look from inside failed: {result.stderr_text}")
    _check(parse_protection(result.stdout_text), host_uids(pids), "our container", seccomp=True)


def check_look(shell: list[str], who: str) -> None:
    """Check whatever a command line runs `sh -c` in; its script is added.

    Raises:
        CheckError: It lacks something.
    """
    done = subprocess.run(
        [*shell, _LOOK], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    check(done.returncode == 0, f"{who} failed: {done.stderr.decode(errors='replace')!r:.200}")
    found = parse_protection(done.stdout.decode())
    _check(found, {found.uid}, who, seccomp=True)


def check_one_shots(one_shots: OneShots) -> None:
    """Check the one-shot bwraps that ours are compared with.

    Raises:
        CheckError: They lack something.
    """
    script = f"{_LOOK}; exec sleep {_SECONDS:.0f}"
    process = subprocess.Popen(
        one_shots.argv(["/bin/sh", "-c", script]),
        stdin=one_shots.opened(),
        stdout=subprocess.PIPE,
        env={},
    )
    try:
        said = _read_look(process)
        outside = host_uids([process.pid, *descendants(process.pid)])
    finally:
        process.kill()
        process.communicate(timeout=_SECONDS)
    filtered = one_shots.filter is not None
    _check(parse_protection(said), outside, "a one-shot bwrap", seccomp=filtered)


def _read_look(process: subprocess.Popen[bytes]) -> str:
    """Read up to the name of the network namespace, which comes last."""
    assert process.stdout is not None
    said = b""
    while b"net:[" not in said or not said.endswith(b"\n"):
        check(bool(select.select([process.stdout], [], [], _SECONDS)[0]), "a bwrap says nothing")
        part = os.read(process.stdout.fileno(), 65536)
        check(bool(part), f"a one-shot bwrap ended early, after {said!r}")
        said += part
    return said.decode()
