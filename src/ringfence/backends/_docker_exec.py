"""A sandbox whose commands and file operations are each an exec of the engine's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeVar

import anyio

from ..backend import NewFile, Sandbox
from ..errors import SandboxClosedError, SandboxError, SandboxLostError, WorkspaceError
from ..models import Capabilities, Chunk, Exit, ExitReason, FileInfo, Limits, SandboxSpec
from ..process import Launch, Process
from ..warden.sandbox import Host, WardenSandbox
from ._docker_exec_box import ExecBox
from ._docker_exec_call import Call

__all__ = ("ExecSandbox",)

_T = TypeVar("_T")
_NAME = "container"
_KILLED = 137


class ExecSandbox(Sandbox):
    """A container whose commands come by the exec API.

    Args:
        box: The container, running.
        env: The variables that every command gets.
    """

    backend = _NAME

    def __init__(
        self,
        box: ExecBox,
        env: Mapping[bytes, bytes],
        *,
        spec: SandboxSpec,
        limits: Limits,
        capabilities: Capabilities,
    ) -> None:
        self.id = box.name
        self.spec = spec
        self.limits = limits
        self.capabilities = capabilities
        self._box = box
        self._host = Host(box.aclose, None, env)
        self._closed = False

    def _inside(self, call: Call) -> WardenSandbox:
        """Return the sandbox as the warden of one exec knows it."""
        return WardenSandbox(
            call.connection,
            self._host,
            backend=_NAME,
            sandbox_id=self.id,
            spec=self.spec,
            limits=self.limits,
            capabilities=self.capabilities,
        )

    async def _enter(self) -> Call:
        if self._closed:
            raise SandboxClosedError(f"sandbox {self.id} is closed", backend=_NAME)
        return await self._box.open()

    async def _start(self, launch: Launch) -> Process:
        call = await self._enter()
        try:
            return ExecProcess(self, await self._inside(call)._start(launch), call)
        except BaseException:
            call.close()
            raise

    async def _operate(self, work: Callable[[WardenSandbox], Awaitable[_T]]) -> _T:
        call = await self._enter()
        try:
            return await work(self._inside(call))
        except SandboxLostError as error:
            if call.swept:
                raise SandboxError(
                    "a file operation was ended from inside the sandbox", backend=_NAME
                ) from error
            raise
        finally:
            call.close()

    async def _write_file(self, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        await self._operate(lambda inside: inside._write_file(path, data, mode, append))

    async def _read_file(self, path: bytes, offset: int, max_bytes: int) -> tuple[bytes, int]:
        return await self._operate(lambda inside: inside._read_file(path, offset, max_bytes))

    async def _read_files(
        self, paths: Sequence[bytes], max_bytes: int
    ) -> list[bytes | WorkspaceError | None]:
        return await self._operate(lambda inside: inside._read_files(paths, max_bytes))

    async def _write_files(self, files: Sequence[NewFile]) -> list[WorkspaceError | None]:
        return await self._operate(lambda inside: inside._write_files(files))

    async def _list_files(self, path: bytes, max_entries: int) -> tuple[list[FileInfo], int]:
        return await self._operate(lambda inside: inside._list_files(path, max_entries))

    async def _file_operation(
        self, operation: Literal["stat", "make_dir", "remove", "move"], path: bytes, target: bytes
    ) -> FileInfo | None:
        return await self._operate(lambda inside: inside._file_operation(operation, path, target))

    async def _ping(self) -> None:
        if self._closed:
            raise SandboxClosedError(f"sandbox {self.id} is closed", backend=_NAME)
        await self._box.ping()

    async def _destroy(self, cause: str) -> None:
        self._box.lose(SandboxLostError(f"it was destroyed: {cause}", cause=cause))
        await self._box.aclose()

    async def aclose(self) -> None:
        """End the sandbox; when this returns, nothing of it runs."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            await self._box.aclose()


class ExecProcess(Process):
    """A command in an exec.

    Args:
        sandbox: Where it runs; nobody closes it while somebody has the command.
        inner: The command as its warden tells of it.
        call: The exec, which ends with the command.
    """

    def __init__(self, sandbox: ExecSandbox, inner: Process, call: Call) -> None:
        self._sandbox = sandbox
        self._inner = inner
        self._call = call
        self._end: Exit | SandboxError | None = None
        self._seen = {"stdout": 0, "stderr": 0}

    @property
    def pid(self) -> int | None:  # type: ignore[override]  # known only once it has started
        return self._inner.pid

    async def receive(self) -> Chunk | None:
        if self._end is not None:
            return None
        try:
            chunk = await self._inner.receive()
        except SandboxLostError:
            if not self._call.swept:
                raise
            self._finish(self._killed())
            return None
        if chunk is not None:
            self._seen[chunk.stream] += len(chunk.data)
            return chunk
        try:
            self._finish(await self._inner.wait())
        except SandboxError as error:
            self._finish(error)
        return None

    def _killed(self) -> Exit:
        """Return the end of a command that was killed together with what kept it."""
        return Exit(_KILLED, ExitReason.SIGNALED, self._seen["stdout"], self._seen["stderr"])

    def _finish(self, end: Exit | SandboxError) -> None:
        self._end = end
        self._call.close()

    async def wait(self) -> Exit:
        while await self.receive() is not None:
            pass
        assert self._end is not None
        if isinstance(self._end, SandboxError):
            raise self._end.with_traceback(None)
        return self._end

    async def kill(self, signal: int | None = None) -> None:
        if self._end is None and not self._call.swept:
            await self._inner.kill(signal)

    async def write_stdin(self, data: bytes) -> None:
        if self._end is None and not self._call.swept:
            await self._inner.write_stdin(data)

    async def close_stdin(self) -> None:
        if self._end is None and not self._call.swept:
            await self._inner.close_stdin()

    async def resize(self, rows: int, columns: int) -> None:
        if not self._call.swept:
            await self._inner.resize(rows, columns)
