"""The fake backend: runs nothing, does what its script says, and records every call.

It is for tests of whatever uses a backend. A `Script` says what a pretended program prints, when,
and how it ends; files live in memory. Time is real, but nothing runs beside the caller: a process
advances when somebody receives from it or waits for it, by the times that its script names, as if
it had run all along. Deadlines, kills, output caps and lost sandboxes behave as on a real backend;
the maximum age of a sandbox is not kept. It isolates nothing, for there is nothing to isolate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import anyio
import anyio.lowlevel

from ..backend import BASE_LIMITS, Backend, Launch, Sandbox
from ..config import FakeConfig
from ..errors import ConfigError, SandboxClosedError, SandboxError, SandboxLostError
from ..models import (
    Capabilities,
    Command,
    Enforced,
    Enforcement,
    FileInfo,
    FileKind,
    Isolation,
    Limits,
    Probe,
    SandboxSpec,
)
from ._fake_files import MemoryFiles
from ._fake_process import FakeProcess, Script

__all__ = ("Call", "FakeBackend", "FakeProcess", "FakeSandbox", "Script")

_ALL_ENFORCED = Enforced(*[Enforcement.ENFORCED] * 7)


Scripts: TypeAlias = Script | Callable[[Command], Script] | Iterable[Script]


@dataclass(frozen=True)
class Call:
    """Something that was asked of the fake.

    Attributes:
        verb: `open`, `create`, `start`, `kill`, `destroy`, `write_file`, `aclose`, ...
        sandbox: The id of the sandbox, or empty for the backend itself.
        detail: What it was about: a spec, a command, a signal, a path.
    """

    verb: str
    sandbox: str = ""
    detail: Any = None


class FakeBackend(Backend):
    """A backend that does what its script says.

    Args:
        config: Its limits.
        script: One `Script` for every command, a function from `Command` to `Script`, or scripts
            to be used one after the other. Default: every command succeeds and prints nothing.
        capabilities: What it claims to promise; default: everything but isolation.
        create_delay: Seconds that making a sandbox takes.

    Attributes:
        probe_result: What `probe` says.
        open_error, create_errors: Errors to raise: from opening, and from the next creations.
        calls: Everything that was asked of it, in order.
        sandboxes: Every sandbox that it made.
    """

    name = "fake"

    def __init__(
        self,
        config: FakeConfig | None = None,
        *,
        script: Scripts | None = None,
        capabilities: Capabilities | None = None,
        create_delay: float = 0.0,
    ) -> None:
        self.config = config or FakeConfig()
        self.create_delay = create_delay
        self.probe_result = Probe(True)
        self.open_error: SandboxError | None = None
        self.create_errors: list[SandboxError] = []
        self.calls: list[Call] = []
        self.sandboxes: list[FakeSandbox] = []
        self._script = iter(script) if isinstance(script, Iterable) else script or Script()
        self._capabilities = capabilities or Capabilities(
            Isolation.NONE,
            network_modes=("none", "bridge"),
            mounts=True,
            limits=_ALL_ENFORCED,
            notes=("it runs nothing",),
        )
        self._is_open = False

    @property
    def commands(self) -> list[Command]:
        """The commands that were started, in order."""
        return [call.detail for call in self.calls if call.verb == "start"]

    @property
    def live_sandboxes(self) -> int:
        """How many sandboxes are neither closed nor dead."""
        return sum(sandbox.is_live for sandbox in self.sandboxes)

    @property
    def live_processes(self) -> int:
        """How many commands have not ended."""
        return sum(process.is_live for box in self.sandboxes for process in box.processes)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def default_limits(self) -> Limits:
        return self.config.limits.over(BASE_LIMITS)

    def _asked(self) -> frozenset[str]:
        return self.config.limits.asked()

    async def probe(self) -> Probe:
        return self.probe_result

    async def _open(self) -> None:
        self.calls.append(Call("open"))
        if self.open_error:
            raise self.open_error
        self._is_open = True

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> FakeSandbox:
        if not self._is_open:
            raise SandboxClosedError("the backend is not open", backend=self.name)
        self.calls.append(Call("create", sandbox_id, spec))
        await anyio.sleep(self.create_delay)
        if self.create_errors:
            raise self.create_errors.pop(0)
        sandbox = FakeSandbox(self, spec, limits, sandbox_id)
        self.sandboxes.append(sandbox)
        return sandbox

    async def reap(self) -> int:
        self.calls.append(Call("reap"))
        return 0

    async def aclose(self) -> None:
        self._is_open = False
        self.calls.append(Call("aclose"))
        for sandbox in self.sandboxes:
            await sandbox.aclose()

    def _next_script(self, command: Command) -> Script:
        if isinstance(self._script, Script):
            return self._script
        if callable(self._script):
            return self._script(command)
        for script in self._script:
            return script
        raise ConfigError(f"the fake has no script left for {command.argv!r}", backend=self.name)


class FakeSandbox(Sandbox):
    """A sandbox of the fake; `lose` and `plant` are for the test that uses it.

    Attributes:
        processes: Every command that was started in it.
    """

    def __init__(
        self, owner: FakeBackend, spec: SandboxSpec, limits: Limits, sandbox_id: str
    ) -> None:
        self.backend = owner.name
        self.id = sandbox_id
        self.spec = spec
        self.limits = limits
        self.capabilities = owner.capabilities
        self.processes: list[FakeProcess] = []
        self._owner = owner
        self._files = MemoryFiles(limits.workspace_bytes, limits.workspace_files)
        self._lost: str | None = None
        self._closed = False

    @property
    def is_live(self) -> bool:
        """Whether it is neither closed nor dead."""
        return not self._closed and self._lost is None

    def lose(self, cause: str = "killed") -> None:
        """Let the sandbox die, with all that runs in it."""
        if self._lost is None:
            self._lost = cause
        for process in self.processes:
            process.wake()

    def plant(self, path: str, kind: FileKind, mode: int = 0o644) -> None:
        """Put a link, a FIFO, a device or a file with closed permissions into the workspace."""
        self._files.plant(path.encode(), kind, mode)

    def lost_error(self) -> SandboxLostError | None:
        """Return the error of a dead sandbox, or None while it lives."""
        if self._lost is None:
            return None
        return SandboxLostError(
            f"sandbox {self.id} is gone: {self._lost}", cause=self._lost, backend=self.backend
        )

    def record(self, verb: str, detail: object = None) -> None:
        """Note a call."""
        self._owner.calls.append(Call(verb, self.id, detail))

    async def _start(self, launch: Launch) -> FakeProcess:
        await self._enter("start", launch.command)
        script = self._owner._next_script(launch.command)
        if script.error:
            raise script.error
        process = FakeProcess(self, launch, script, len(self.processes) + 2)
        self.processes.append(process)
        return process

    async def _destroy(self, cause: str) -> None:
        self.record("destroy", cause)
        self.lose(cause)

    async def aclose(self) -> None:
        self.record("aclose")
        self._closed = True
        self.lose("closed")

    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        await self._enter("write_file", path)
        self._files.write_file(path, data, mode, append)

    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        await self._enter("read_file", path)
        return self._files.read_file(path, offset, max_bytes)

    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        await self._enter("list_files", path)
        return self._files.list_files(path, max_entries)

    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        await self._enter(operation, path)
        if operation == "stat":
            return self._files.stat(path)
        if operation == "make_dir":
            self._files.make_dir(path)
        elif operation == "remove":
            self._files.remove(path)
        else:
            self._files.move(path, target)
        return None

    async def _enter(self, verb: str, detail: object) -> None:
        """Note a call, be cancelled as a real one would, and refuse it in a dead sandbox."""
        self.record(verb, detail)
        await anyio.lowlevel.checkpoint()
        if self._closed:
            raise SandboxClosedError(f"sandbox {self.id} is closed", backend=self.backend)
        if error := self.lost_error():
            raise error
