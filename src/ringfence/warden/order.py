"""What a backend says of a sandbox whose warden is to be started on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..cgroups import Group

__all__ = ("Order", "Resources")


@dataclass(frozen=True)
class Resources:
    """What a starting sandbox was given.

    Attributes:
        uid: A host uid of its own, or None to run as the caller.
        procs_files: The cgroup files to join.
    """

    uid: int | None
    procs_files: tuple[str, ...]


@dataclass(frozen=True)
class Order:
    """How to start one sandbox.

    Attributes:
        backend: The backend's name.
        sandbox_id: The sandbox's.
        argv: Builds the program to run from what it was given.
        group: Makes its cgroup, or None where there is none.
        cgroups: The directories that `group` will make, to be recorded before they are there.
        private_uid: Whether it gets a host uid of its own.
        jailed: Whether all that is inside ends with its outer process. If not, the warden has to
            end it, and must be let.
        prepare: Makes what it needs on disk before it is started, `work_dir` for one.
        work_dir: A directory to delete with it.
        labels: For its record.
    """

    backend: str
    sandbox_id: str
    argv: Callable[[Resources], list[str]]
    group: Callable[[], Group] | None = None
    cgroups: tuple[str, ...] = ()
    private_uid: bool = False
    jailed: bool = False
    prepare: Callable[[], None] | None = None
    work_dir: str | None = None
    labels: Mapping[str, str] | None = None
