"""One piece of code as it runs in a context: its outputs, its deadline, and its end."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Literal, Self

import anyio

from ..backend import Sandbox
from ..errors import CommandError, ContextError, ContextLostError, SandboxError
from ..models import DEFAULT_TIMEOUT, MAX_TIMEOUT
from ._context import Context
from ._kernel import Kernel, in_use
from ._messages import Message, MessageError
from .outputs import CodeResult, ErrorOutput, Output, RichOutput, StreamOutput

__all__ = ("CodeRun", "checked_code", "seconds_of")

_INTERRUPTED = "KeyboardInterrupt"
_STREAMS: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")


class CodeRun:
    """Code that runs, as its context's `stream_code` returns it.

    Use it with `async with`, iterate over it for outputs as they come, and read `result` after the
    last one. Leaving the block early interrupts the code, and the context can be used again.
    """

    def __init__(self, context: Context, code: str, timeout: float) -> None:
        self._context = context
        self._code = code
        self._timeout = timeout
        self._grace = context.limits.interrupt_grace
        self._kernel: Kernel | None = None
        self._busy: AbstractContextManager[None] = nullcontext()
        self._outputs: list[Output] = []
        self._error: ErrorOutput | None = None
        self._began = 0.0
        self._deadline = float("inf")
        self._timed_out = False
        self._result: CodeResult | None = None

    @property
    def result(self) -> CodeResult:
        """What the code did; there is one after the last output.

        Raises:
            RuntimeError: It has not ended yet.
        """
        if self._result is None:
            raise RuntimeError("the code has not ended: iterate to the end first")
        return self._result

    async def __aenter__(self) -> Self:
        context = self._context
        await context.lock.acquire()
        try:
            self._kernel = kernel = context.live()
            self._busy = in_use(context.sandbox)
            self._busy.__enter__()
        except BaseException:
            context.lock.release()
            raise
        try:
            context.interrupted = False
            self._began = time.monotonic()
            self._deadline = anyio.current_time() + self._timeout
            await kernel.run(self._code)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        try:
            if self._result is None and self._kernel is not None:
                with anyio.CancelScope(shield=True):
                    await self._stop(self._kernel)
        finally:
            if self._kernel is not None:
                self._kernel.over()
            self._busy.__exit__(None, None, None)
            self._context.lock.release()

    async def _stop(self, kernel: Kernel) -> None:
        """Interrupt what is left before its end; if that does not help, kill its kernel."""
        if kernel.death is not None:
            return
        await kernel.interrupt()
        with anyio.move_on_after(self._grace):
            try:
                while (await kernel.next()).kind != "done":
                    pass
            except SandboxError:
                return
            return
        await kernel.kill("its code was left and did not heed the interrupt")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        while self._result is None:
            message = await self._next()
            if message is not None:
                return message
        raise StopAsyncIteration

    async def finish(self) -> CodeResult:
        """Wait for the end and return the result."""
        while self._result is None:
            await self._next()
        return self._result

    async def _next(self) -> Output | None:
        """Return the next output, or None when there is a result or nothing to be told."""
        kernel = self._kernel
        assert kernel is not None
        message: Message | None = None
        with anyio.CancelScope(deadline=self._deadline):
            try:
                message = await kernel.next()
            except ContextError as error:
                raise self._lost(error) from None
        if message is None:
            await self._time_is_up(kernel)
            return None
        try:
            if message.kind == "done":
                self._finish(count=message.number("count"), cut=message.number("cut"))
                return None
            return self._keep(message)
        except MessageError as error:
            await kernel.kill(f"it did not keep to the protocol: {error}")
            return None  # the next call finds it dead

    async def _time_is_up(self, kernel: Kernel) -> None:
        if self._timed_out:
            await kernel.kill("its code had used up its time and did not heed the interrupt")
            self._finish(lost=True)
            return
        self._timed_out = True
        self._deadline = anyio.current_time() + self._grace
        await kernel.interrupt()

    def _keep(self, message: Message) -> Output:
        output = _output(message)
        if isinstance(output, ErrorOutput):
            self._error = output
        last = self._outputs[-1] if self._outputs else None
        if (
            isinstance(output, StreamOutput)
            and isinstance(last, StreamOutput)
            and output.stream == last.stream
            and len(last.text) < 65536  # joined up to here, so that no text is copied for ever
        ):
            self._outputs[-1] = StreamOutput(last.stream, last.text + output.text)
        else:
            self._outputs.append(output)
        return output

    def _finish(self, *, count: int = 0, cut: int = 0, lost: bool = False) -> None:
        self._result = CodeResult(
            outputs=tuple(self._outputs),
            error=self._error,
            timed_out=self._timed_out,
            interrupted=self._was_interrupted(),
            kernel_lost=lost,
            execution_count=count,
            cut_bytes=cut,
            duration_s=time.monotonic() - self._began,
            timeout=self._timeout,
        )

    def _was_interrupted(self) -> bool:
        error = self._error
        return self._context.interrupted and error is not None and error.name == _INTERRUPTED

    def _lost(self, error: ContextError) -> ContextError:
        """Return the error of a kernel that has died, with what its code had done until then."""
        if not isinstance(error, ContextLostError):
            return error
        self._finish(lost=True)
        partial, self._result = self._result, None
        return ContextLostError(
            error.message,
            cause=error.cause,
            result=partial,
            backend=error.backend,
            hint=error.hint,
        )


def _output(message: Message) -> Output:
    """Return what a message tells.

    Raises:
        MessageError: It is none that a relay sends.
    """
    kind = message.text("type", 40)
    texts = {name: data.decode("utf-8", "replace") for name, data in message.parts.items()}
    if kind == "stream":
        for stream in _STREAMS:
            if stream in texts:
                return StreamOutput(stream, texts[stream])
        raise MessageError("a stream without text")
    cut = message.cut()
    if kind == "error":
        name, value = texts.get("ename", ""), texts.get("evalue", "")
        return ErrorOutput(name, value, texts.get("traceback", ""), cut)
    if kind in ("execute_result", "display_data", "update_display_data"):
        return RichOutput(texts, kind == "execute_result", cut)
    raise MessageError(f"a message of the type {kind!r}")


def checked_code(code: Any, most: int) -> str:
    """Return code that can be sent, or raise a `CommandError`."""
    if not isinstance(code, str):
        raise CommandError(f"code is text, not {type(code).__name__}")
    try:
        size = len(code.encode())
    except UnicodeEncodeError:
        raise CommandError("the code has half of a surrogate pair") from None
    if size > most:
        raise CommandError(
            f"the code has {size} bytes, over the limit of {most}",
            hint="write data to a file of the workspace, and read that",
        )
    return code


def seconds_of(sandbox: Sandbox, timeout: float | None) -> float:
    """Return how long code may run, clamped to the sandbox's maximum, or raise a `CommandError`."""
    limits = sandbox.limits
    seconds = limits.timeout or DEFAULT_TIMEOUT if timeout is None else timeout
    if type(seconds) not in (int, float) or not seconds > 0:
        raise CommandError(f"timeout is a number of seconds above zero, not {seconds!r:.80}")
    return min(seconds, limits.max_timeout or MAX_TIMEOUT)
