"""A Job whose container is the command, and the command whose output is its log."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import anyio

from ..errors import (
    BackendUnreachableError,
    SandboxLostError,
    UnsupportedError,
)
from ..execution import EXIT_TIMED_OUT
from ..models import Chunk, Exit, ExitReason
from ..process import Launch, Process
from ._kube_answers import RefusedError
from ._kube_job import Job

__all__ = ("LogJob", "LogProcess", "refuse")

_NAME = "kubernetes"
_END_SECONDS = 15.0  # from the end of a log until the kubelet has told how the container ended
_QUEUE = 64  # pieces of output that wait for their reader
_TRIES = 4
_PAUSE = 0.3
_LOOK_SECONDS = 0.5
_NOT_FOUND, _NOT_EXECUTABLE, _KILLED = 127, 126, 137
_LIVE_HINT = "transport='warden' has it"


def refuse(what: str) -> NoReturn:
    """Say that something can't be had without a warden.

    Raises:
        UnsupportedError: That.
    """
    raise UnsupportedError(
        f"the logs transport has no {what.removeprefix('a ')}", backend=_NAME, hint=_LIVE_HINT
    )


class LogJob(Job):
    """A Job whose container is the command.

    Attributes:
        silent: Set when its log has come to an end.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.silent = asyncio.Event()

    async def _until_silent(self) -> None:
        if self.is_scheduled:  # or nothing can run
            await self.silent.wait()

    async def _until_up(self) -> None:
        unfit: float | None = None
        while not self.is_running and (self.end is None or not self.end.started):
            if self.end is not None and _not_started(self.end.message) is not None:
                return
            unfit = self.check_start(unfit)
            await self.wait_for_change(_LOOK_SECONDS)

    @property
    def is_missing(self) -> bool:
        """Whether the program was not found."""
        return (
            self.end is not None
            and not self.end.started
            and _not_started(self.end.message) == _NOT_FOUND
        )

    def check_start(self, since: float | None) -> float | None:
        if self.end is not None and self.end.code is not None:
            return None  # it has run, or was not found, which is the command's affair
        return super().check_start(since)


def _not_started(message: str) -> int | None:
    """Return the exit code of a program that could not be started, from what the runtime says."""
    lower = message.lower()
    if "permission denied" in lower or "exec format error" in lower:
        return _NOT_EXECUTABLE
    if "not found" in lower or "no such file" in lower:
        return _NOT_FOUND
    return None


class LogProcess(Process):
    """A command whose output is a log.

    Args:
        job: Its Job, up.
        launch: What was asked for.
    """

    def __init__(self, job: LogJob, launch: Launch) -> None:
        self._job = job
        self._launch = launch
        self._chunks: asyncio.Queue[Chunk | None] = asyncio.Queue(_QUEUE)
        self._total = 0
        self._timed_out = False
        self._killed = False
        self._exit: Exit | None = None
        self._error: Exception | None = None
        self._done = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._timer = (
            None if launch.timeout is None else loop.call_later(launch.timeout, self._time_is_up)
        )
        self.task = loop.create_task(self._run())

    def _time_is_up(self) -> None:
        self._timed_out = True
        self._job.end_by_force()

    async def _run(self) -> None:
        try:
            await self._follow()
            self._job.silent.set()
            self._exit = await self._conclude()
        except (SandboxLostError, RefusedError, BackendUnreachableError) as error:
            self._error = error
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._done.set()

    async def _follow(self) -> None:
        """Pass the log on to its end, and go on where a stream of it has broken."""
        for attempt in range(_TRIES):
            passed = 0
            try:
                async for data in self._job.log():
                    fresh = data[max(0, self._total - passed) :]
                    passed += len(data)
                    await self._keep(fresh)
                return
            except BackendUnreachableError:
                if attempt == _TRIES - 1 or self._timed_out or self._killed:
                    return
            except RefusedError:  # it has ended so soon, or never began, that there is none
                if self._job.end is not None:
                    return
                if attempt == _TRIES - 1:
                    raise
            await anyio.sleep(_PAUSE)

    async def _keep(self, data: bytes) -> None:
        if not data or self._timed_out or self._killed:  # what comes now the kubelet says
            return
        cap = self._launch.output_bytes
        room = len(data) if cap is None else max(0, cap - self._total)
        self._total += len(data)
        if room:
            await self._chunks.put(Chunk("stdout", data[:room]))

    async def _conclude(self) -> Exit:
        if not (self._timed_out or self._killed):
            with anyio.move_on_after(_END_SECONDS):
                await self._job.until_dead()
        if self._timed_out:
            return self._ended(EXIT_TIMED_OUT, ExitReason.TIMED_OUT)
        if self._killed:
            return self._ended(_KILLED, ExitReason.SIGNALED)
        end = self._job.end
        if end is None:
            raise self._lost("nobody can tell how it ended", "unknown")
        if end.cause == "out of memory":
            return self._ended(_KILLED, ExitReason.OUT_OF_MEMORY)
        if end.cause == "maximum age":
            return self._ended(EXIT_TIMED_OUT, ExitReason.TIMED_OUT)
        if end.cause == "could not be started" and (code := _not_started(end.message)):
            return self._ended(code, ExitReason.EXITED, message=f"{end.message}\n")
        if end.cause != "ended" or end.code is None:
            raise self._lost(end.text, end.cause)
        return self._ended(end.code, ExitReason.EXITED)

    def _ended(self, code: int, reason: ExitReason, message: str = "") -> Exit:
        return Exit(code, reason, stdout_bytes=self._total, message=message)

    def _lost(self, why: str, cause: str) -> SandboxLostError:
        return SandboxLostError(
            f"sandbox {self._job.name} is lost: {why}", cause=cause, backend=_NAME
        )

    # Process.

    async def receive(self) -> Chunk | None:
        while True:
            if not self._chunks.empty():
                return self._chunks.get_nowait()
            if self._done.is_set():
                if self._error is not None:
                    raise self._failure()
                return None
            getting = asyncio.ensure_future(self._chunks.get())
            ended = asyncio.ensure_future(self._done.wait())
            try:
                await asyncio.wait((getting, ended), return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    return getting.result()
            finally:
                ended.cancel()
                if not getting.done():
                    getting.cancel()

    def _failure(self) -> Exception:
        if isinstance(self._error, SandboxLostError):
            return self._error.with_traceback(None)
        return self._lost(f"its log can't be had: {self._error}", "unreachable")

    async def wait(self) -> Exit:
        while not self._done.is_set():
            while not self._chunks.empty():
                self._chunks.get_nowait()
            with anyio.move_on_after(_LOOK_SECONDS):
                await self._done.wait()
        if self._error is not None:
            raise self._failure()
        assert self._exit is not None
        return self._exit

    async def kill(self, signal: int | None = None) -> None:
        if signal is not None:
            refuse("signals")
        if not self._done.is_set():
            self._killed = True
            await self._job.discard()

    async def write_stdin(self, data: bytes) -> None:
        refuse("a stdin")

    async def close_stdin(self) -> None:
        return
