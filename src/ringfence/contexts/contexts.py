"""The contexts of one sandbox.

Theory of operation. Each context is one command in the sandbox: a relay (`_relay.py`) that starts
an ipykernel and speaks Jupyter's protocol to it, inside, over sockets in a directory of its own.
No port is opened and no network is needed: what code sends and gives back goes over the command's
stdin and stdout. A context ends as commands do, with all that it has started: when it is closed, or
with its sandbox. Whoever is inside can do to a kernel whatever they like, so the host takes what
comes as any output of a sandbox: sizes are bounded, and a message that makes no sense ends the
kernel.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio.abc import TaskGroup

from ..backend import Sandbox
from ..errors import (
    CommandError,
    ContextMissingError,
    LimitError,
    SandboxClosedError,
    UnsupportedError,
)
from ..opened import Opened
from ._context import CodeContext, Context
from ._kernel import ContextLimits, Kernel, in_use
from .outputs import CodeResult, Output
from .run import CodeRun, checked_code, seconds_of

__all__ = ("DEFAULT_CONTEXT", "CodeContexts")

DEFAULT_CONTEXT = "default"
"""The context that code runs in if none is named; it is made when it is first needed."""

_LANGUAGES = ("python",)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")


class CodeContexts(Opened):
    """Contexts of one sandbox, in which code finds what earlier code has left. Use `async with`.

    Leaving the block ends them; the sandbox is not theirs, and stays.

    Args:
        sandbox: Where; a session, or any sandbox that runs programs.
        python: The interpreter to take there, a name or a path; it has the package `ipykernel`.
        limits: What they may take.
    """

    _what = "a set of code contexts"

    def __init__(
        self, sandbox: Sandbox, *, python: str = "python3", limits: ContextLimits | None = None
    ) -> None:
        self.sandbox = sandbox
        self._python = python
        self._limits = limits or ContextLimits()
        self._contexts: dict[str, Context] = {}
        self._making: set[str] = set()
        self._count = 0
        self._default = anyio.Lock()
        self._tasks: TaskGroup | None = None

    async def create_context(
        self, language: str = "python", *, name: str | None = None
    ) -> CodeContext:
        """Start a kernel; it takes about a second.

        Args:
            language: `python` is all that there is.
            name: What it is called: letters, digits and `_.-`, at most 64. Default: `k1`, `k2`, ...

        Raises:
            CommandError: The name can't be used, or another context has it.
            UnsupportedError: There is no such language, or the sandbox runs no programs.
            KernelMissingError: The sandbox has no ipykernel; the hint says how to get one.
            ContextError: It could not be started.
            LimitError: There are as many as a sandbox can have.
            SandboxError: The sandbox could not run it.
        """
        self._count += 1
        wanted: Any = f"k{self._count}" if name is None else name
        if not isinstance(wanted, str) or not _NAME.match(wanted):
            raise CommandError(f"a context's name has letters, digits and _.-, not {wanted!r:.80}")
        if wanted in self._contexts or wanted in self._making:
            raise CommandError(f"there is a context {wanted!r} already")
        return (await self._create(wanted, language)).about()

    async def run_code(
        self,
        code: str,
        *,
        context: str | CodeContext | None = None,
        timeout: float | None = None,
        on_output: Callable[[Output], Any] | None = None,
    ) -> CodeResult:
        """Run code in a context and return what it did.

        What it has defined is there for the code after it. Code of one context runs one piece
        after the other, that of several at the same time. Code that asks for input gets an
        exception. If the caller is cancelled, the code is interrupted.

        Args:
            code: Cells of IPython: Python, with `await` at the top, and its `%` and `!` commands.
            context: Which; default: one of its own, made when it is first needed.
            timeout: Seconds; default 30, clamped to the sandbox's maximum. Then it is interrupted;
                if that does not help its kernel is killed, and `kernel_lost` says so.
            on_output: Called with each output as it comes; may be async.

        Raises:
            ContextMissingError: There is no such context.
            ContextLostError: Its kernel has died, now or before; `result` has what came of it.
            CommandError: The code or the timeout can't be right.
            SandboxLostError: The sandbox died.
        """
        async with await self._stream(code, context, timeout) as run:
            if on_output is None:
                return await run.finish()
            async for output in run:
                outcome = on_output(output)
                if inspect.isawaitable(outcome):
                    await outcome
            return run.result

    def stream_code(
        self, code: str, *, context: str | CodeContext, timeout: float | None = None
    ) -> CodeRun:
        """Run code in a context and hand out its outputs as they come; see `CodeRun`.

        Args:
            code: As for `run_code`.
            context: Which.
            timeout: As for `run_code`.

        Raises:
            ContextMissingError: There is no such context.
            CommandError: The code or the timeout can't be right.
        """
        return CodeRun(
            self._find(context),
            checked_code(code, self._limits.code_bytes),
            seconds_of(self.sandbox, timeout),
        )

    async def list_contexts(self) -> list[CodeContext]:
        """Return those that there are, those whose kernel has died too."""
        return [context.about() for context in self._contexts.values()]

    async def interrupt_context(self, context: str | CodeContext) -> None:
        """Interrupt the code that runs, as Ctrl-C does; where none runs, nothing happens.

        Raises:
            ContextMissingError: There is no such context.
            SandboxError: Its kernel or its sandbox is gone.
        """
        found = self._find(context)
        kernel = found.live()
        found.interrupted = found.lock.locked()
        await kernel.interrupt()

    async def restart_context(self, context: str | CodeContext) -> CodeContext:
        """Give it a new kernel, also if the old one has died. Its variables are gone, files stay.

        Code that runs in it is ended.

        Raises:
            ContextMissingError: There is no such context.
            ContextError: It could not be started; it can be tried again.
            SandboxError: The sandbox could not run it.
        """
        found = self._find(context)
        await found.kernel.kill("restarted")
        found.scope.cancel()
        async with found.lock:
            found.check_open()
            with in_use(self.sandbox):
                await self._begin(found, await self._start())
        return found.about()

    async def close_context(self, context: str | CodeContext) -> None:
        """End a context with all that it has started.

        Raises:
            ContextMissingError: There is no such context.
        """
        found = self._find(context)
        del self._contexts[found.name]
        await self._end(found)

    async def aclose(self) -> None:
        """End all contexts. Safe to call again."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                while self._contexts:
                    _, context = self._contexts.popitem()
                    tasks.start_soon(self._end, context)

    async def _open(self, stack: AsyncExitStack) -> None:
        self._tasks = await stack.enter_async_context(anyio.create_task_group())

    def __repr__(self) -> str:
        return f"<CodeContexts {list(self._contexts)} in {self.sandbox!r}>"

    # What follows.

    async def _create(self, name: str, language: str) -> Context:
        if language not in _LANGUAGES:
            raise UnsupportedError(
                f"there are no contexts for {language!r:.80}",
                backend=self.sandbox.backend,
                hint=f"there are for {', '.join(_LANGUAGES)}",
            )
        if not self.sandbox.capabilities.arbitrary_programs:
            raise UnsupportedError(
                f"{self.sandbox.backend} runs no kernels: it has no programs of its own",
                backend=self.sandbox.backend,
                hint="code contexts need bubblewrap, container or process",
            )
        if len(self._contexts) + len(self._making) >= self._limits.contexts:
            raise LimitError(
                "code_contexts",
                f"there are {self._limits.contexts} code contexts in this sandbox already",
                backend=self.sandbox.backend,
                hint="close one of them",
            )
        self._making.add(name)
        try:
            with in_use(self.sandbox):
                kernel = await self._start()
                context = Context(name, language, self.sandbox, self._limits, kernel)
                await self._begin(context, kernel)
        finally:
            self._making.discard(name)
        self._contexts[name] = context
        return context

    async def _start(self) -> Kernel:
        if self._closed or self._tasks is None:
            raise SandboxClosedError(
                "the code contexts are not open", hint="use them with `async with`"
            )
        return await Kernel.start(self.sandbox, self._python, self._limits)

    async def _begin(self, context: Context, kernel: Kernel) -> None:
        """Take a kernel into use, or end it."""
        assert self._tasks is not None
        context.take(kernel)
        self._tasks.start_soon(context.pump)
        try:
            await kernel.ready()
        except BaseException:
            await kernel.kill("it has not started")
            context.scope.cancel()
            raise

    async def _end(self, context: Context) -> None:
        context.is_closed = True
        await context.kernel.kill("closed")
        context.scope.cancel()

    async def _stream(
        self, code: str, context: str | CodeContext | None, timeout: float | None
    ) -> CodeRun:
        """Return a run, in the default context if none is named."""
        checked, seconds = (
            checked_code(code, self._limits.code_bytes),
            seconds_of(self.sandbox, timeout),
        )
        if context is not None:
            return CodeRun(self._find(context), checked, seconds)
        async with self._default:
            found = self._contexts.get(DEFAULT_CONTEXT)
            if found is None:
                found = await self._create(DEFAULT_CONTEXT, _LANGUAGES[0])
        return CodeRun(found, checked, seconds)

    def _find(self, context: str | CodeContext) -> Context:
        name = context.id if isinstance(context, CodeContext) else context
        found = self._contexts.get(name)
        if found is None:
            known = ", ".join(self._contexts) or "none"
            raise ContextMissingError(
                f"there is no code context {name!r:.80}",
                backend=self.sandbox.backend,
                hint=f"there are: {known}",
            )
        return found
