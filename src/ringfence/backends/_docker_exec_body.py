"""What is said to the engine of a sandbox whose commands come by the exec API: pure functions."""

from __future__ import annotations

from typing import Any

from ..config import ContainerConfig
from ..models import Limits
from ._docker_body import HOME, WARDEN, Plan, container_body

__all__ = ("SWEEP", "call_command", "exec_container_body")

SWEEP = (WARDEN, "sweep")
"""Kills what wardens left that were killed from inside."""


def exec_container_body(plan: Plan, config: ContainerConfig) -> dict[str, Any]:
    """Return the request that creates a container: as for `attach`, but PID 1 is an init alone."""
    return {
        **container_body(plan, config),
        "Cmd": ["init", "--max-age-ms", str(round((plan.limits.max_age or 0) * 1000))],
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "OpenStdin": False,
        "StdinOnce": False,
    }


def call_command(limits: Limits) -> tuple[str, ...]:
    """Return what an exec runs: a warden for one command or one file operation."""
    return (
        *(WARDEN, "serve"),
        "--pipes",
        "--once",
        "--count-oom",
        "--seccomp",  # an exec has the engine's own filter alone
        *("--home", HOME),
        *("--open-files", str(limits.open_files)),
    )
