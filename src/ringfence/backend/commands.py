"""What is asked of a sandbox, in the forms that users give it, made into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ..errors import CommandError, PathError
from ..models import Command, without_leftovers

__all__ = ("as_command", "command_cwd", "one_shot_command", "workspace_path")


def as_command(
    command: Command | str,
    args: Sequence[str],
    timeout: float | None,
    leftovers: Literal["keep", "kill"] = "keep",
) -> Command:
    """Return a `Command` from either form that `exec` and `execute` take."""
    if isinstance(command, Command):
        if args:
            raise CommandError("a Command has its arguments in argv; give no others beside it")
        return command if timeout is None else replace(command, timeout=timeout)
    if isinstance(args, (str, bytes)):
        raise CommandError("args is a list of arguments, not one string")
    return Command((command, *args), timeout=timeout, leftovers=leftovers)


def one_shot_command(command: Command | str, args: Sequence[str], timeout: float | None) -> Command:
    """Return a `Command` that leaves nothing running, from either form that `execute` takes."""
    if isinstance(command, Command):
        return without_leftovers(as_command(command, args, timeout))
    return as_command(command, args, timeout, leftovers="kill")


def workspace_path(path: str | bytes, workspace: str) -> bytes:
    """Return a path relative to the workspace, as bytes without `.` and `..`.

    `/workspace/...` is taken on every backend, and so is the workspace's real directory.

    Raises:
        PathError: It leads outside, is empty, or contains NUL.
    """
    try:
        raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PathError(repr(path), "can't be encoded as UTF-8") from None
    shown = raw.decode("utf-8", "backslashreplace")
    if not raw or b"\0" in raw:
        raise PathError(shown, "is empty or contains NUL")
    if raw.startswith(b"/"):
        for root in (workspace.encode("utf-8", "surrogateescape"), b"/workspace"):
            if raw == root or raw.startswith(root.rstrip(b"/") + b"/"):
                raw = raw[len(root) :].lstrip(b"/")
                break
        else:
            raise PathError(shown, "is outside of the workspace", hint=f"it is {workspace}")
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise PathError(shown, "may not contain '..'")
    return b"/".join(parts) or b"."


def command_cwd(command: Command, workspace: str) -> bytes:
    """Return a command's cwd relative to the workspace.

    Raises:
        PathError: It leads outside.
    """
    return b"." if command.cwd_bytes is None else workspace_path(command.cwd_bytes, workspace)
