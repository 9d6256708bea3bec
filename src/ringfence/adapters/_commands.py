"""Commands as frameworks ask for them: in any directory, and for as long as they take."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..backend import BASE_LIMITS, Sandbox, workspace_path
from ..errors import PathError
from ..models import Command, Limits, SandboxSpec

__all__ = ("absolute", "as_long_as_it_lives", "command_in")

_CHANGE = 'cd -- "$1" || exit 126; shift; exec "$@"'


def absolute(sandbox: Sandbox, path: str) -> str:
    """Return a path as the sandbox's programs see it; what is relative begins at the workspace."""
    return posixpath.join(sandbox.workspace, path)


def command_in(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    stdin: bytes | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    output_bytes: int | None = None,
) -> Command:
    """Return a command that runs in any directory that the sandbox has.

    Outside of the workspace it is `/bin/sh` that changes the directory, as the sandbox's own user.

    Args:
        sandbox: Where it is to run.
        argv: The program and its arguments.
        cwd: Absolute, or relative to the workspace, which is the default.
        stdin: What it reads.
        env: Variables added to the sandbox's own.
        timeout: Seconds; default: the most that the sandbox allows.
        output_bytes: Bytes kept of each stream.

    Raises:
        CommandError: It can't be run anywhere.
    """
    wanted = Command(
        argv,
        stdin=stdin,
        env=env or {},
        cwd=cwd,
        timeout=sandbox.limits.max_timeout if timeout is None else timeout,
        output_bytes=output_bytes,
    )
    if cwd is None:
        return wanted
    try:
        workspace_path(cwd, sandbox.workspace)
    except PathError:
        changing = ("/bin/sh", "-c", _CHANGE, "sh", absolute(sandbox, cwd), *argv)
        return replace(wanted, argv=changing, cwd=None)
    return wanted


def as_long_as_it_lives(defaults: Limits) -> SandboxSpec:
    """Return a spec whose commands may take as long as the sandbox lives.

    That is for frameworks whose commands have no deadline unless one is given. A maximum that the
    backend's config has stays.

    Args:
        defaults: The backend's limits, its config's filled in.
    """
    age = defaults.over(BASE_LIMITS).max_age
    return SandboxSpec(limits=Limits(max_timeout=defaults.max_timeout or age))
