"""Where groups can be made, and what is written into them."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ("CONTROLLERS", "Hierarchy", "Setting", "settings")

CONTROLLERS = ("memory", "cpu", "pids")

_CPU_PERIOD_US = 100_000  # the kernel's own default
_MIN_CPU_QUOTA_US = 1_000  # the kernel refuses less


@dataclass(frozen=True)
class Hierarchy:
    """Where sandboxes' groups can be made on this machine.

    Attributes:
        version: 1 or 2.
        parents: For each usable controller (`memory`, `cpu`, `pids`), the absolute directory
            that groups are made in.
        missing: For each other controller, why it can't be used.
    """

    version: int
    parents: Mapping[str, str]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def usable(self) -> frozenset[str]:
        """The controllers that can be used."""
        return frozenset(self.parents)


class Setting(NamedTuple):
    """A value to write into a group's file, and the errno that does not matter there."""

    path: str
    value: str
    tolerated: int | None = None


def settings(
    version: int,
    dirs: Mapping[str, str],
    memory_bytes: int | None,
    cpus: float | None,
    pids: int | None,
) -> list[Setting]:
    """Return what to write for these limits, in order.

    Args:
        version: 1 or 2.
        dirs: The group's directory for each controller.
        memory_bytes: Bytes, or None for no limit.
        cpus: Cores' worth of time, or None for no limit.
        pids: Processes and threads, or None for no limit.
    """
    memory, cpu = (_memory_v2, _cpu_v2) if version == 2 else (_memory_v1, _cpu_v1)
    wanted: list[Setting] = []
    if memory_bytes is not None:
        wanted += memory(dirs["memory"], memory_bytes)
    if cpus is not None:
        wanted += cpu(dirs["cpu"], max(_MIN_CPU_QUOTA_US, round(cpus * _CPU_PERIOD_US)))
    if pids is not None:
        wanted.append(Setting(f"{dirs['pids']}/pids.max", str(pids)))
    return wanted


def _memory_v2(directory: str, memory_bytes: int) -> list[Setting]:
    return [
        Setting(f"{directory}/memory.max", str(memory_bytes)),
        # Not there without swap accounting.
        Setting(f"{directory}/memory.swap.max", "0", errno.ENOENT),
        # One process dies, not the whole sandbox. Not there before 4.19.
        Setting(f"{directory}/memory.oom.group", "0", errno.ENOENT),
    ]


def _memory_v1(directory: str, memory_bytes: int) -> list[Setting]:
    return [
        Setting(f"{directory}/memory.limit_in_bytes", str(memory_bytes)),
        # Memory and swap together, so never below the memory limit. Not there without accounting.
        Setting(f"{directory}/memory.memsw.limit_in_bytes", str(memory_bytes), errno.ENOENT),
    ]


def _cpu_v2(directory: str, quota: int) -> list[Setting]:
    return [Setting(f"{directory}/cpu.max", f"{quota} {_CPU_PERIOD_US}")]


def _cpu_v1(directory: str, quota: int) -> list[Setting]:
    return [
        Setting(f"{directory}/cpu.cfs_period_us", str(_CPU_PERIOD_US)),
        # Refused if it is more than a group above has, which then holds the sandbox to less.
        Setting(f"{directory}/cpu.cfs_quota_us", str(quota), errno.EINVAL),
    ]
