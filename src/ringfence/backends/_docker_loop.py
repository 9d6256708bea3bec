"""Workspaces that are file systems of their own on this machine's disk.

Each is a sparse file with ext4 in it, mounted here and shown in one container, so that it has a
size and an inode limit and does not count as memory. All of them lie in one directory of the
inventory's, `loops`: what is there and belongs to no live sandbox is a left-over. Making one takes
root, and the engine must see this machine's mounts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence

from .. import inventory
from ..errors import BackendUnavailableError, CreateError
from ..models import Limits

__all__ = ("check_loops", "left_loops", "make_loop", "remove_loop")

_NAME = "container"
_TOOLS = ("mke2fs", "mount", "umount")
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS = 20.0
_LEAST_BYTES = 1 << 20
_INODES_OF_ITS_OWN = 10  # that ext4 keeps for itself
_INODES_AT_A_TIME = 8  # to which their number is rounded, up if we let it
_OPTIONS = "loop,nosuid,nodev,noatime"
_BUSY_SECONDS = 5.0
_POLL_SECONDS = 0.05


def check_loops() -> None:
    """Find out whether this process can make such file systems.

    Raises:
        BackendUnavailableError: It can't; the message says why.
    """
    missing = [name for name in _TOOLS if shutil.which(name, path=_PATH) is None]
    why = ""
    if os.geteuid() != 0:
        why = "it takes root"
    elif missing:
        why = f"there is no {' and no '.join(missing)} here"
    elif not os.path.exists("/dev/loop-control"):
        why = "this kernel has no loop devices"
    if why:
        raise BackendUnavailableError(
            f"workspace_storage 'loop' can't be had: {why}",
            backend=_NAME,
            hint="tmpfs has a size limit too, and counts as memory",
        )


def _directory() -> str:
    path = f"{inventory.state_dir()}/loops"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o711)
    return path


def make_loop(sandbox_id: str, limits: Limits, user: str) -> str:
    """Make a workspace of its own, owned by a `uid:gid`, and return where it is mounted.

    Raises:
        CreateError: It could not be made. What there is of it is for `remove_loop` to take away.
    """
    place = f"{_directory()}/{sandbox_id}"
    image = f"{place}.img"
    size = max(limits.workspace_bytes or 0, _LEAST_BYTES)
    descriptor = os.open(image, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.truncate(descriptor, size)
    finally:
        os.close(descriptor)
    _run(mke2fs_argv(image, user, limits.workspace_files or 0))
    os.mkdir(place, 0o700)
    _run(("mount", "-t", "ext4", "-o", _OPTIONS, image, place))
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(f"{place}/lost+found")
    return place


def mke2fs_argv(image: str, user: str, files: int) -> tuple[str, ...]:
    """Return the command that makes the file system: no journal, and nothing kept back for root."""
    inodes = (files + _INODES_OF_ITS_OWN) // _INODES_AT_A_TIME * _INODES_AT_A_TIME
    return (
        "mke2fs",
        *("-q", "-F", "-t", "ext4", "-m", "0", "-O", "^has_journal,^resize_inode"),
        *("-N", str(inodes), "-E", f"root_owner={user},lazy_itable_init=1,nodiscard", image),
    )


def remove_loop(sandbox_id: str) -> None:
    """Unmount and delete a workspace; one that is not there, or only half, is fine.

    Raises:
        CreateError: It can't be unmounted.
    """
    place = f"{_directory()}/{sandbox_id}"
    deadline = time.monotonic() + _BUSY_SECONDS
    while os.path.ismount(place):
        # The container that showed it is gone; what the engine still holds of it soon is, too.
        if time.monotonic() < deadline:
            with contextlib.suppress(CreateError):
                _run(("umount", place))
                continue
            time.sleep(_POLL_SECONDS)
        else:
            _run(("umount", "--lazy", place))
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(place)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{place}.img")


def left_loops(live: frozenset[str]) -> list[str]:
    """Return the sandboxes of which something is here, although none of them is live."""
    if os.geteuid() != 0:
        return []
    found = {name.removesuffix(".img") for name in os.listdir(_directory())}
    return sorted(found - live)


def _run(argv: Sequence[str]) -> None:
    try:
        subprocess.run(argv, env={"PATH": _PATH}, check=True, capture_output=True, timeout=_SECONDS)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").strip() or f"exit code {error.returncode}"
        raise CreateError(
            f"a workspace can't be made or removed: {argv[0]}: {said}", backend=_NAME
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CreateError(
            f"a workspace can't be made or removed: {argv[0]}: {error}", backend=_NAME
        ) from error
