"""The state directory and the locks on its slots.

The directory is `RINGFENCE_STATE_DIR`; else `/run/ringfence` for root, `ringfence` in
`XDG_RUNTIME_DIR`, or `/tmp/ringfence-<uid>`. It must belong to this user, let nobody else
write, and be no link. Processes of one user see each other if they use the same one; of two
that use different ones, each hands out private uids without knowing of the other.

The lock is on the slot's directory itself: there is no file that could be removed under it, and
what cleans up old temporary files passes over a locked directory.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ringfence.errors import ConfigError, UnsupportedError

if sys.platform != "win32":
    import fcntl

__all__ = (
    "SLOTS",
    "existing_state_dir",
    "is_locked",
    "lock",
    "place",
    "release",
    "slot_dirs",
    "stage_dir",
    "state_dir",
    "store_id",
)

SLOTS = 1024
"""How many owners there can be at once."""

_HINT = "set RINGFENCE_STATE_DIR to a directory that only you can write to"
_LOCK_ATTEMPTS = 20


class _Held:
    """The locks that this process holds, by descriptor, and what guards the set."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.descriptors: set[int] = set()

    def before_fork(self) -> None:
        """Keep all others from opening a lock that the child would have and not know of."""
        self.guard.acquire()

    def after_fork(self) -> None:
        """Let them go on."""
        self.guard.release()

    def after_fork_in_child(self) -> None:
        """Close the parent's locks: a copy in a child would hold them when the parent is dead."""
        for descriptor in self.descriptors:
            os.close(descriptor)  # and no unlocking: that would take the parent's lock away
        self.descriptors.clear()
        self.guard = threading.RLock()


_held = _Held()


def place(environ: Mapping[str, str], uid: int) -> str:
    """Return where the state directory of this user is.

    Raises:
        ConfigError: `RINGFENCE_STATE_DIR` is not absolute.
    """
    given = environ.get("RINGFENCE_STATE_DIR")
    if given:
        if not os.path.isabs(given):
            raise ConfigError(f"RINGFENCE_STATE_DIR must be absolute, not {given!r}")
        return os.path.normpath(given)
    if uid == 0:
        return "/run/ringfence"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        return os.path.join(runtime, "ringfence")
    return f"/tmp/ringfence-{uid}"  # noqa: S108  # its owner and mode are checked


def state_dir() -> str:
    """Return the state directory, made if need be.

    Raises:
        ConfigError: It can't be made, or is not ours alone.
        UnsupportedError: There is no inventory on this system.
    """
    if sys.platform == "win32":
        raise UnsupportedError("there is no inventory of sandboxes on Windows")
    uid = os.geteuid()
    path = place(os.environ, uid)
    # Private uids must be able to pass through it to the stage.
    _make(path, 0o755 if uid == 0 else 0o700)
    return path


def existing_state_dir() -> str | None:
    """Return the state directory if there is one.

    Raises:
        ConfigError: It is not ours alone.
    """
    if sys.platform == "win32":
        return None
    path = place(os.environ, os.geteuid())
    try:
        _check(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint=_HINT) from error
    return path


def store_id() -> str:
    """Return what tells this state directory from all others, to label with what lies elsewhere.

    Raises:
        ConfigError: See `state_dir`.
    """
    path = f"{state_dir()}/store"
    with suppress(FileNotFoundError), open(path, encoding="ascii") as file:
        return file.read()
    new = f"{path}.{os.getpid()}.{threading.get_ident()}"
    try:
        with open(new, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(8))
        with suppress(FileExistsError):  # another process was faster
            os.link(new, path)  # whole or not at all
        os.unlink(new)
    except OSError as error:
        raise ConfigError(f"{path} can't be made: {error.strerror}", hint=_HINT) from error
    with open(path, encoding="ascii") as file:
        return file.read()


def stage_dir() -> str:
    """Return an empty directory that any uid can enter.

    Raises:
        ConfigError: See `state_dir`.
    """
    path = f"{state_dir()}/stage"
    _make(path, 0o755)
    return path


def slot_dirs(state: str) -> Iterator[str]:
    """Yield the directories of the slots that there are, lowest first."""
    try:
        names = os.listdir(f"{state}/owners")
    except FileNotFoundError:
        return
    for number in sorted(int(name) for name in names if name.isascii() and name.isdigit()):
        yield f"{state}/owners/{number}"


def _make(path: str, mode: int) -> None:
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, mode)
        held = _check(path)
        if held & mode != mode:  # the umask took something away
            os.chmod(path, held | mode)
    except OSError as error:
        raise ConfigError(f"{path} can't be made: {error.strerror}", hint=_HINT) from error


def _check(path: str) -> int:
    """Refuse a directory that others could write to; return its permission bits."""
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise ConfigError(f"{path} is not a directory", hint=_HINT)
    if sys.platform != "win32" and info.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to uid {info.st_uid}", hint=_HINT)
    if info.st_mode & 0o022:
        raise ConfigError(f"{path} can be written to by others", hint=_HINT)
    return stat.S_IMODE(info.st_mode)


# Locks.


def lock(path: str, *, make: bool = False) -> int | None:
    """Take the lock of a slot and return its descriptor, or None if it is held by another.

    The descriptor is of the directory. It ends with this process, and no child has it.

    Args:
        path: The slot's directory.
        make: Make the directory if it is not there; otherwise a missing one is None too.
    """
    for _ in range(_LOCK_ATTEMPTS):
        if make:
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
        with _held.guard:
            try:
                descriptor = _open(path)
            except FileNotFoundError:
                if make:
                    continue  # its last holder removed it in this moment
                return None
            if not _flock(descriptor, shared=False):
                os.close(descriptor)
                return None
            _held.descriptors.add(descriptor)
        if _is_still(path, descriptor):
            return descriptor
        release(descriptor)
    return None


def release(descriptor: int) -> None:
    """Give up the lock."""
    with _held.guard:
        _held.descriptors.discard(descriptor)
        _unlock(descriptor)


def is_locked(path: str) -> bool:
    """Return whether somebody holds the slot, this process included."""
    with _held.guard:
        try:
            descriptor = _open(path)
        except FileNotFoundError:
            return False
        free = _flock(descriptor, shared=True)
        _unlock(descriptor)
    return not free


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _flock(descriptor: int, *, shared: bool) -> bool:
    if sys.platform == "win32":
        raise UnsupportedError("there is no inventory of sandboxes on Windows")
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unlock(descriptor: int) -> None:
    if sys.platform != "win32":
        # Closing alone would not do if a child that is between fork and exec has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _is_still(path: str, descriptor: int) -> bool:
    """Whether the directory was not removed between the opening and the locking."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


if sys.platform != "win32":
    os.register_at_fork(
        before=_held.before_fork,
        after_in_parent=_held.after_fork,
        after_in_child=_held.after_fork_in_child,
    )
