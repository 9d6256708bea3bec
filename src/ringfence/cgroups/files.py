"""The kernel's files and directories of cgroups: read, written, made, emptied and removed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence

__all__ = (
    "PARENT",
    "destroy",
    "hands_down",
    "kill_all",
    "make_group",
    "make_parent",
    "read",
    "remove_dirs",
    "remove_parents",
    "write",
)

PARENT = "ringfence"
"""The name of the directory that holds the sandboxes' groups."""

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_MAKE_ATTEMPTS = 20
_AGAIN = "the directory is removed again and again"
_FIRST_DELAY = 0.0005  # seconds; a killed process takes about that long to leave its group
_LONGEST_DELAY = 0.02


def read(path: str, dir_fd: int | None = None) -> str:
    """Return a kernel file's text; an `OSError` from it names the path.

    A file whose group was removed after the opening is missing like any other.
    """
    parts: list[bytes] = []
    with _kernel_file(path, os.O_RDONLY, dir_fd) as descriptor:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    return os.fsdecode(b"".join(parts))


def write(path: str, text: str) -> None:
    """Write into an existing kernel file at once; an `OSError` from it names the path."""
    with _kernel_file(path, os.O_WRONLY | os.O_TRUNC) as descriptor:
        os.write(descriptor, text.encode())


@contextlib.contextmanager
def _kernel_file(
    path: str, flags: int, dir_fd: int | None = None, *, about: str | None = None
) -> Iterator[int]:
    """Open for the block, whose errors name `about` or else the path."""
    try:
        descriptor = os.open(path, flags, dir_fd=dir_fd)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        code = errno.ENOENT if error.errno == errno.ENODEV else error.errno
        raise OSError(code, os.strerror(code or errno.EIO), about or path) from None


def make_group(directory: str, controllers: Collection[str], *, version: int) -> None:
    """Make a group, and the directory above it if need be.

    The directory above is missing at first use, and whenever another process of ours has removed
    it because it was empty. On v2 a group made in it before it hands down the controllers would
    have none of their files, so both are done to one open directory.

    Raises:
        OSError: The kernel refused, or others removed the directory above again and again.
    """
    parent, name = os.path.split(directory)
    for _ in range(_MAKE_ATTEMPTS):
        with (
            contextlib.suppress(FileNotFoundError),
            _kernel_file(parent, _DIRECTORY, about=directory) as above,
        ):
            if version == 1 or hands_down(above, controllers):
                os.mkdir(name, 0o755, dir_fd=above)
                return
        make_parent(parent, controllers, version=version)
    raise OSError(errno.ENOENT, _AGAIN, directory)


def make_parent(parent: str, controllers: Collection[str], *, version: int) -> None:
    """Make the directory of groups if it is not there, on v2 with these controllers.

    Raises:
        OSError: As for `make_group`.
    """
    for _ in range(_MAKE_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            os.mkdir(parent, 0o755)
        if version == 1:
            return
        with contextlib.suppress(FileNotFoundError):
            _hand_down(parent, controllers)
            return
    raise OSError(errno.ENOENT, _AGAIN, parent)


def hands_down(above: int, controllers: Collection[str]) -> bool:
    """Return whether the groups that are made in this v2 directory from now on have these."""
    return set(controllers) <= set(read("cgroup.subtree_control", above).split())


def _hand_down(parent: str, controllers: Iterable[str]) -> None:
    """Enable v2 controllers for the groups in a directory of ours, and in the one above it."""
    for controller in controllers:
        for directory in (os.path.dirname(parent), parent):
            path = f"{directory}/cgroup.subtree_control"
            if controller not in read(path).split():
                write(path, f"+{controller}")


def remove_parents(parents: Iterable[str]) -> None:
    """Remove directories named `ringfence` that hold no group any more; the others stay."""
    for parent in set(parents):
        if os.path.basename(parent) == PARENT:
            with contextlib.suppress(OSError):  # in use, or gone
                os.rmdir(parent)


def destroy(dirs: Iterable[str], timeout: float = 2.0) -> bool:
    """Kill whatever runs in these groups and remove them and, if empty now, their parents.

    For what a dead process left behind. A directory that is no cgroup is not touched.

    Args:
        dirs: Absolute directories, as in `Group.dirs`.
        timeout: Seconds for the killing, and again for the removing.

    Returns:
        Whether all of them are gone.
    """
    groups = [path for path in dirs if os.path.exists(f"{path}/cgroup.procs")]
    gone = kill_all(groups, timeout) and remove_dirs(groups, timeout)
    remove_parents(os.path.dirname(path) for path in groups)
    return gone


def kill_all(dirs: Sequence[str], timeout: float) -> bool:
    """Kill until the groups are empty or the seconds are over; return whether they are empty.

    Their pids limit is 0 afterwards, so nothing can be started in them.
    """
    for directory in dirs:
        # No more forks, so that the loop below gets ahead of a bomb; new v2 kills in one go.
        for name, value in (("pids.max", "0"), ("cgroup.kill", "1")):
            with contextlib.suppress(FileNotFoundError):
                write(f"{directory}/{name}", value)
    deadline = time.monotonic() + timeout
    delay = _FIRST_DELAY
    while pids := _members(dirs):
        for pid in pids - {0, os.getpid()}:  # 0 is a process outside our pid namespace
            # One that we may not kill shows in the result: the group does not get empty.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        time.sleep(delay)
        delay = min(delay * 2, _LONGEST_DELAY)
    return True


def _members(dirs: Iterable[str]) -> set[int]:
    pids: set[int] = set()
    for directory in dirs:
        with contextlib.suppress(FileNotFoundError):  # a group that is gone is empty
            pids.update(map(int, read(f"{directory}/cgroup.procs").split()))
    return pids


def remove_dirs(dirs: Iterable[str], timeout: float) -> bool:
    """Remove empty groups, trying again while they are busy; return whether all are gone."""
    deadline = time.monotonic() + timeout
    left = [directory for directory in dirs if not _remove_dir(directory, deadline)]
    return not left


def _remove_dir(directory: str, deadline: float) -> bool:
    delay = _FIRST_DELAY
    while True:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                return False
            time.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
        else:
            return True
