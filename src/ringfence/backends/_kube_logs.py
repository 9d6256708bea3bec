"""A pod for each command, without a warden: `transport="logs"`.

The command is the container's own, and the pod's log is its output, followed while it runs. So
nothing of ours is inside, and much can't be had: the streams are merged, there is no stdin, no file
operation and no second command, and a signal that ended the program looks like an exit code.

The command's time is held here; the pod's deadline stands behind it. Servers before 1.29 make
another pod where somebody deletes one that runs, which would be a second run of the command: the
Job is deleted as soon as that is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import anyio

from ..backend import Sandbox, command_cwd
from ..errors import (
    CommandError,
    SandboxClosedError,
    UnsupportedError,
)
from ..models import Capabilities, FileInfo, Limits, SandboxSpec
from ..process import Launch, Process
from ._kube_body import ENVIRONMENT, WORKSPACE
from ._kube_log_process import LogJob, LogProcess, refuse

__all__ = ("LogSandbox",)

_NAME = "kubernetes"
_LIVE_HINT = "transport='warden' has it"


class LogSandbox(Sandbox):
    """A sandbox for one command, of which there is nothing until that is started.

    Args:
        make: Makes the Job of a command, under a name.
    """

    keeps_deadlines = True

    def __init__(
        self,
        make: Callable[[str, Launch, Mapping[str, Any]], Awaitable[LogJob]],
        *,
        sandbox_id: str,
        spec: SandboxSpec,
        limits: Limits,
        capabilities: Capabilities,
    ) -> None:
        self.backend = _NAME
        self.id = sandbox_id
        self.spec = spec
        self.limits = limits
        self.capabilities = capabilities
        self._make = make
        self._process: LogProcess | None = None
        self._job: LogJob | None = None
        self._started = False
        self._cause = ""

    async def _start(self, launch: Launch) -> Process:
        if self._cause:
            raise SandboxClosedError(f"sandbox {self.id} is closed", backend=_NAME)
        if self._started:
            raise UnsupportedError(
                "a pod whose log is the output runs one command", backend=_NAME, hint=_LIVE_HINT
            )
        if launch.stdin or launch.stdin_open:
            refuse("a stdin")
        self._started = True
        shown = _shown(launch, self.workspace)
        self._job = job = await self._make(self.id, launch, shown)
        fallback = launch.command.fallback
        if fallback and job.is_missing:  # no bash, for one, but a plain shell
            await job.aclose()
            shown = {**shown, "command": [fallback, *shown["command"][1:]]}
            self._job = job = await self._make(f"{self.id}-2", launch, shown)
        self._process = LogProcess(job, launch)
        return self._process

    async def _destroy(self, cause: str) -> None:
        self._cause = self._cause or cause
        await self.aclose()

    async def aclose(self) -> None:
        """Remove the pod; when this returns, nothing of it runs."""
        self._cause = self._cause or "closed"
        with anyio.CancelScope(shield=True):
            if self._job is not None:
                await self._job.aclose()
            if self._process is not None:
                self._process.task.cancel()
                await asyncio.gather(self._process.task, return_exceptions=True)

    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        refuse("file operations")

    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        refuse("file operations")

    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        refuse("file operations")

    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        refuse("file operations")


def _shown(launch: Launch, workspace: str) -> Mapping[str, Any]:
    """Return a command as a pod's manifest has it, which is all text.

    Raises:
        CommandError: It is not.
    """
    command = launch.command
    env = {**ENVIRONMENT, **dict(command.env_bytes)}
    below = command_cwd(command, workspace)
    try:
        return {
            "command": [part.decode() for part in command.argv_bytes],
            "env": {name.decode(): value.decode() for name, value in env.items()},
            "cwd": f"{WORKSPACE}/{below.decode()}" if below != b"." else WORKSPACE,
        }
    except UnicodeDecodeError as error:
        raise CommandError(
            "a pod's command and variables are texts, and these are not UTF-8",
            backend=_NAME,
            hint=_LIVE_HINT,
        ) from error
