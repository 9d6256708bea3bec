"""A session: the sandbox of one execution, made when it is first needed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Literal

from ..backend import NewFile, Sandbox
from ..errors import FileMissingError, SandboxClosedError, SandboxLostError, WorkspaceError
from ..events import Operation
from ..leases import Hold
from ..models import Command, Exit, FileInfo, SandboxSpec
from ..policy import Plan
from ..process import HOST_SLACK, Launch, Process
from .ahead import PythonAhead
from .background import BackgroundCommands
from .home import Home
from .process import SessionProcess, begin_told, exit_facts, host_deadline, start_within
from .tenure import TAKEN, Tenure

__all__ = ("Session",)


class Session(Sandbox):
    """The sandbox of one execution, as all its calls see it.

    It is a `Sandbox` like any other, but there is nothing behind it until its first use, and when
    what was behind it has died or come to its end, that is told once, by a `SandboxLostError`; the
    call after that gets a new sandbox, and `Result.workspace_is_new` says so. It ends with
    `aclose`, which is what `SessionManager.destroy_execution` does.
    """

    execution_id: str
    """The execution that it belongs to."""
    tenant_id: str
    """Whose execution it is."""
    plan: Plan
    """What the tenant may have."""

    keeps_deadlines = True  # its processes do, also where the backend's own don't

    def __init__(
        self,
        home: Home,
        tenant_id: str,
        execution_id: str,
        *,
        plan: Plan,
        spec: SandboxSpec,
        idle_timeout: float,
        forget: Callable[[Session], None],
        python_ahead: bool = False,
    ) -> None:
        self.backend = home.backend.name
        self.spec = spec
        self.limits = home.limits(spec)
        self.capabilities = home.backend.capabilities
        self.tenant_id = tenant_id
        self.execution_id = execution_id
        self.plan = plan
        self.last_used = time.monotonic()
        self._home = home
        self._idle_timeout = idle_timeout
        self._forget = forget
        self._ahead = PythonAhead(lambda: home.tasks) if python_ahead else None
        gone = self._ahead.forget if self._ahead is not None else None
        self._tenure = Tenure(home, tenant_id, execution_id, plan=plan, spec=spec, gone=gone)
        self._running: dict[SessionProcess, float] = {}
        self._users = 0  # that say themselves when they are done
        self._background = BackgroundCommands(
            self._start_unheard,
            self._tenure.tell_later,
            self._destroy,
            lambda: home.tasks,
        )

    @property
    def background(self) -> BackgroundCommands:
        """The commands in it that run on while nobody waits for them."""
        return self._background

    @property
    def id(self) -> str:  # type: ignore[override]  # that of the sandbox behind it
        """The name of its sandbox, or of the last one."""
        return self._tenure.sandbox

    @property
    def hold(self) -> Hold | None:
        """The lease of the execution, while this worker has it."""
        return self._tenure.hold

    @property
    def generation(self) -> int:
        """How many sandboxes it has had in this worker; 0 before the first use."""
        return self._tenure.generation

    @property
    def is_live(self) -> bool:
        """Whether there is a sandbox behind it now."""
        return self._box is not None

    @property
    def _box(self) -> Sandbox | None:
        return self._tenure.box

    @property
    def has_restarted(self) -> bool:
        """Whether an earlier sandbox of the execution is gone, here or in a worker that died."""
        return self.generation > 1 or (self.hold is not None and self.hold.lease.taken_over)

    @property
    def is_closed(self) -> bool:
        """Whether the execution has been destroyed."""
        return self._tenure.is_closed

    async def ensure(self) -> None:
        """Make the sandbox now, unless there is one.

        Raises:
            SandboxLostError: The one that there was has ended, and nobody was told yet.
            SessionElsewhereError: Another live worker holds the execution.
            LimitError: The tenant has as many sandboxes as its plan allows.
            LeaseStoreError: The store of leases does not answer.
            CreateError: It could not be made; nothing is left of the attempt.
        """
        await self._ready()

    # Its life.

    async def _ready(self) -> Sandbox:
        box = await self._tenure.ready()
        self.workspace, self.limits = box.workspace, box.limits
        self.last_used = time.monotonic()
        return box

    def tell_later(self, error: SandboxLostError) -> None:
        """Keep the end of its sandbox for the next call: what has met it can tell nobody."""
        self._tenure.tell_later(error)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep it from being called idle while a block runs, whatever runs in the sandbox."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self.last_used = time.monotonic()

    def overdue(self, now: float) -> str | None:
        """Return why it must end now, or None if it need not."""
        if self.hold is not None and self.hold.lost:
            return TAKEN
        if self._box is None and self.hold is None:
            return None
        if self._box is not None and now - self._tenure.born >= (self.limits.max_age or math.inf):
            return "maximum age"
        self._running = {one: end for one, end in self._running.items() if end > now}
        busy = self._running or self._users or self._background.running
        if now - self.last_used >= self._idle_timeout and not busy:
            return f"not used for {self._idle_timeout:g} s"
        return None

    async def end_if_overdue(self) -> None:
        """End the sandbox if it has been idle for too long, is too old, or is another's now."""
        await self._tenure.end_if(lambda: self.overdue(time.monotonic()))

    async def aclose(self) -> None:
        """Destroy the execution; when this returns, nothing of it runs. Safe to call again."""
        await self._tenure.close(lambda: self._background._end_all("destroyed"))
        self._forget(self)

    async def _destroy(self, cause: str) -> None:
        box = self._box
        if box is not None:
            await box._destroy(cause)
            await self._tenure.lose(box, SandboxLostError(cause, cause=cause))

    async def _ping(self) -> None:
        self._tenure.check_open()
        box = self._box
        if box is not None:
            try:
                await box._ping()
            except (SandboxLostError, SandboxClosedError) as error:
                await self._tenure.lose(box, error)
                raise

    # Its commands.

    async def _start(self, launch: Launch) -> Process:
        with self.in_use():
            box = await self._ready()
            operation = begin_told(self._home.events, launch, self._tenure.about)
            deadline = host_deadline(launch, box.keeps_deadlines)
            try:
                inner = await start_within(deadline, box, lambda: self._begun(box, launch))
            except BaseException as error:
                self._home.events.end(operation, error)
                if isinstance(error, (SandboxLostError, SandboxClosedError)):
                    await self._tenure.lose(box, error)
                raise
            is_new, self._tenure.first_command = self._tenure.first_command, False
            lost, ended = partial(self._tenure.lose, box), partial(self._process_ended, operation)
            process = SessionProcess(inner, lost, ended, deadline, is_new)
            if launch.timeout is not None:
                # One that is bound by the sandbox's age alone keeps nobody from calling it idle.
                end = self.last_used + launch.timeout + launch.kill_grace + HOST_SLACK
                self._running[process] = end
            return process

    async def _start_unheard(self, command: Command, stdin_open: bool) -> Process:
        """Start a command that nobody waits for, and whose end nobody may hear of."""
        process = await self.start(command, stdin_open=stdin_open)
        assert isinstance(process, SessionProcess)
        process.is_heard = False
        return process

    async def _begun(self, box: Sandbox, launch: Launch) -> Process:
        ahead = None if self._ahead is None else await self._ahead.take(box, launch)
        return ahead or await box._start(launch)

    def _process_ended(
        self,
        operation: Operation | None,
        process: SessionProcess,
        end: Exit | None,
        error: BaseException | None,
    ) -> None:
        self._running.pop(process, None)
        self.last_used = time.monotonic()
        if self._ahead is not None and error is None:
            self._ahead.command_ended()
        if operation is None or operation.duration_s:  # nobody asks, or it was told before
            return
        if end is not None:
            operation.attributes |= exit_facts(end)
        self._home.events.end(operation, error)

    # Its files.

    @asynccontextmanager
    async def _using(self, operation: str, path: bytes, size: int = 0) -> AsyncIterator[Sandbox]:
        with self.in_use():
            box = await self._ready()
            told = self._tenure.about()
            told |= {"operation": operation, "path": ascii(os.fsdecode(path))[1:-1]}
            if size:
                told["bytes"] = size
            try:
                with self._home.events.operation("sandbox.file", told):
                    yield box
            except (SandboxLostError, SandboxClosedError) as error:
                await self._tenure.lose(box, error)
                raise
            except FileMissingError as error:
                if self.has_restarted and error.hint is None:
                    error.hint = (
                        "what was written before the execution's last sandbox ended is gone"
                    )
                raise

    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        async with self._using("write_file", path, len(data)) as box:
            await box._write_file(path, data, mode, append)

    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        async with self._using("read_file", path) as box:
            return await box._read_file(path, offset, max_bytes)

    async def _read_files(
        self, paths: Sequence[bytes], max_bytes: int
    ) -> list[bytes | WorkspaceError | None]:
        async with self._using("read_files", paths[0] if paths else b".") as box:
            return await box._read_files(paths, max_bytes)

    async def _write_files(self, files: Sequence[NewFile]) -> list[WorkspaceError | None]:
        size = sum(len(file.data) for file in files)
        async with self._using("write_files", files[0].path if files else b".", size) as box:
            return await box._write_files(files)

    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        async with self._using("list_files", path) as box:
            return await box._list_files(path, max_entries)

    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        async with self._using(operation, path) as box:
            return await box._file_operation(operation, path, target)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "live" if self._box else "waiting"
        return f"<Session {self.execution_id!r} {state} {self.id} backend={self.backend}>"
