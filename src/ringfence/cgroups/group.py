"""The cgroup of one sandbox: limits on memory, CPU time and processes of the whole of it.

On v2 it is one directory; on v1 one in each of the memory, cpu and pids hierarchies. A child
joins by writing `0` into each of `Group.procs_files` before it gives up its privileges, and
whatever it starts is in the group too. The group counts the processes that the kernel killed in
it for lack of memory, and lists its processes for the killing of them all.

What a group does not do: it bounds no disk, no descriptors and no network.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Mapping, Sequence

from ringfence.errors import ConfigError, CreateError, LimitError

from .files import kill_all, make_group, read, remove_dirs, write
from .values import Hierarchy, Setting, settings

__all__ = ("Group", "parse_cpu_seconds", "parse_oom_kills")

_LIMIT_NAMES = {"memory": "memory_bytes", "cpu": "cpus", "pids": "pids"}
_HINT = "ringfence doctor shows which limits this machine can hold"


class Group:
    """The cgroup of one sandbox. Made by `create`; safe to use from several threads.

    Attributes:
        name: The name of its directories.
        dirs: Its absolute directories.
        procs_files: The files that a process with one thread writes `0` into to join; all of them
            are needed. On v1 they are `tasks`: moving the writing thread alone takes no global
            lock, while `cgroup.procs` waits some 7 ms for a grace period if it has been idle.
    """

    def __init__(
        self, name: str, dirs: Mapping[str, str], pids: int | None, version: int = 2
    ) -> None:
        self.name = name
        self.dirs = tuple(dict.fromkeys(dirs.values()))
        join = "cgroup.procs" if version == 2 else "tasks"
        self.procs_files = tuple(f"{directory}/{join}" for directory in self.dirs)
        self._by_controller = dict(dirs)
        self._pids_max = "max" if pids is None else str(pids)
        self._lock = threading.Lock()
        self._oom_fd: int | None = None
        self._oom_kills = 0
        self._oom_text = b""

    @classmethod
    def create(
        cls,
        hierarchy: Hierarchy,
        name: str,
        *,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
    ) -> Group:
        """Make a group and set its limits.

        Args:
            hierarchy: What `probe` found.
            name: One path component, unique among the live sandboxes of the machine.
            memory_bytes: Bytes of memory, with no swap on top; None is unlimited.
            cpus: Cores' worth of time, 0.5 being half of one; None is unlimited.
            pids: Processes and threads together; None is unlimited.

        Raises:
            ConfigError: The name is not one path component.
            LimitError: A limit is given whose controller can't be used here.
            CreateError: The kernel refused; nothing is left of the attempt.
        """
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ConfigError(f"a cgroup can't be named {name!r}", hint="use the sandbox's id")
        _check_usable(hierarchy, {"memory": memory_bytes, "cpu": cpus, "pids": pids})
        dirs = {
            controller: f"{parent}/{name}"
            for controller, parent in hierarchy.parents.items()
            # Memory and pids are made even without a limit, to count and to kill by.
            if hierarchy.version == 2 or controller != "cpu" or cpus is not None
        }
        group = cls(name, dirs, pids, hierarchy.version)
        group._make(hierarchy, settings(hierarchy.version, dirs, memory_bytes, cpus, pids))
        return group

    def _make(self, hierarchy: Hierarchy, wanted: Sequence[Setting]) -> None:
        made: list[str] = []
        try:
            for directory in self.dirs:
                make_group(directory, hierarchy.parents, version=hierarchy.version)
                made.append(directory)
            for setting in wanted:
                _apply(setting)
            if "memory" in self._by_controller:
                name = "memory.events" if hierarchy.version == 2 else "memory.oom_control"
                self._oom_fd = os.open(f"{self._by_controller['memory']}/{name}", os.O_RDONLY)
        except OSError as error:
            for directory in made:
                with contextlib.suppress(OSError):  # the first error is the one to tell
                    os.rmdir(directory)
            raise CreateError(
                f"cgroup {self.name!r} could not be made: {error.filename}: {error.strerror}",
                hint=_HINT,
            ) from error

    def attach(self, pid: int) -> None:
        """Put a running process, and the children it will have, into the group.

        Raises:
            OSError: The process is gone or may not be moved.
        """
        for directory in self.dirs:
            write(f"{directory}/cgroup.procs", str(pid))

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel has killed for lack of memory.

        Costs a few microseconds. Keeps its last value after `remove`; 0 without a memory cgroup.
        """
        with self._lock:
            return self._count_oom_kills()

    def _count_oom_kills(self) -> int:
        if self._oom_fd is not None:
            try:
                text = os.pread(self._oom_fd, 4096, 0)
                if text != self._oom_text:  # it is asked for every command, and seldom changes
                    self._oom_text, self._oom_kills = text, parse_oom_kills(text)
            except OSError as error:
                if error.errno != errno.ENODEV:  # what the files of a removed group answer
                    raise
        return self._oom_kills

    def peak_memory(self) -> int | None:
        """Return the most bytes it ever used, or None where the kernel does not tell."""
        text = self._text("memory", "memory.peak", "memory.max_usage_in_bytes")
        return None if text is None else int(text)

    def cpu_seconds(self) -> float | None:
        """Return the CPU time used so far, or None where the kernel does not tell.

        v1 tells only if cpu and cpuacct are one hierarchy and the group has a CPU limit.
        """
        nanoseconds = self._text("cpu", "cpuacct.usage")
        if nanoseconds is not None:
            return int(nanoseconds) / 1e9
        return parse_cpu_seconds(self._text("cpu", "cpu.stat") or "")

    def _text(self, controller: str, *names: str) -> str | None:
        """Return the content of the first of the files that exists, or None."""
        directory = self._by_controller.get(controller)
        for name in names if directory else ():
            with contextlib.suppress(FileNotFoundError):
                return read(f"{directory}/{name}")
        return None

    def kill(self, timeout: float = 2.0) -> bool:
        """Kill every process in the group. It can be used again afterwards.

        Args:
            timeout: Seconds to wait for the last one to be gone.

        Returns:
            Whether the group is empty now.
        """
        empty = kill_all(self.dirs, timeout)
        if "pids" in self._by_controller:
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                write(f"{self._by_controller['pids']}/pids.max", self._pids_max)
        return empty

    def remove(self, timeout: float = 2.0) -> bool:
        """Remove the group, which must have no processes left. Safe to call again.

        Args:
            timeout: Seconds to go on while the kernel says that it is busy.

        Returns:
            Whether it is gone.
        """
        with self._lock:
            self._count_oom_kills()  # the last value, for whoever asks later
            if self._oom_fd is not None:
                os.close(self._oom_fd)
                self._oom_fd = None
        return remove_dirs(self.dirs, timeout)

    def __repr__(self) -> str:
        return f"<Group {self.name} dirs={len(self.dirs)}>"


def parse_oom_kills(text: bytes) -> int:
    """Return the `oom_kill` counter of `memory.events` (v2) or `memory.oom_control` (v1)."""
    for line in text.splitlines():
        if line.startswith(b"oom_kill "):
            return int(line[9:])
    return 0


def parse_cpu_seconds(text: str) -> float | None:
    """Return the seconds in a v2 `cpu.stat`; None for that of v1, which has none."""
    for line in text.splitlines():
        if line.startswith("usage_usec "):
            return int(line[11:]) / 1e6
    return None


def _check_usable(hierarchy: Hierarchy, wanted: Mapping[str, float | None]) -> None:
    for controller, value in wanted.items():
        if value is not None and controller not in hierarchy.parents:
            limit = _LIMIT_NAMES[controller]
            reason = hierarchy.missing.get(controller, "it was not found")
            message = f"{limit}={value} can't be enforced: no {controller} cgroup: {reason}"
            raise LimitError(limit, message, hint=_HINT)


def _apply(setting: Setting) -> None:
    try:
        write(setting.path, setting.value)
    except OSError as error:
        if error.errno != setting.tolerated:
            raise
    if setting.path.endswith(("/memory.max", "/memory.limit_in_bytes")):
        page = os.sysconf("SC_PAGE_SIZE")
        held = read(setting.path).strip()
        if held != str(int(setting.value) // page * page):
            raise OSError(errno.EIO, f"says {held} when {setting.value} was written", setting.path)
