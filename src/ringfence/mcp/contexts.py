"""The code contexts of one client, from their first use to the end of its session.

What takes the outputs of kernels is a task that has to be left where it was entered, and no call
lasts as long as that. So each client that uses contexts has one task of the server's, which opens
them, waits until they are to end, and closes them. It is shielded: it ends when it is told to,
after its session, and not when somebody is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup, TaskStatus

from ..contexts import CodeContexts, ContextLimits
from ..errors import LimitError, SandboxClosedError, ToolError
from ..sessions import Session
from .options import McpOptions

__all__ = ("ClientContexts",)

_MIB = 1 << 20


class ClientContexts:
    """What one client's `run_code` has for contexts.

    Args:
        session: The client's.
        options: The server's.
        tasks: Returns where its task can be started, or None when the server ends.
    """

    def __init__(
        self, session: Session, options: McpOptions, tasks: Callable[[], TaskGroup | None]
    ) -> None:
        self._session = session
        self._options = options
        self._tasks = tasks
        self._opened: CodeContexts | None = None
        self._one_at_a_time = anyio.Lock()
        self._to_end = anyio.Event()
        self._ended = anyio.Event()

    async def ready(self, name: str) -> tuple[CodeContexts, str | None]:
        """Return the contexts, among them one of a name that code can be run in.

        It is made if there is none, and begun anew if its Python has died.

        Args:
            name: The context's.

        Returns:
            The contexts, and why the variables of this one are not those that earlier code has
            left: `""` if there was no earlier code, None if they are.

        Raises:
            CommandError: The name can't be right.
            KernelMissingError: The sandbox has no ipykernel; the hint says how to get one.
            ToolError: There are as many contexts as may be.
            SandboxError: It could not be started.
        """
        async with self._one_at_a_time:  # or two calls would both make it
            contexts = await self._open()
            known = {one.id: one for one in await contexts.list_contexts()}
            found = known.get(name)
            if found is not None and found.alive:
                return contexts, None
            if found is not None:
                await contexts.restart_context(name)
                return contexts, found.lost or ""
            if len(known) >= self._options.max_contexts:
                for one in known.values():
                    if not one.alive:  # it keeps nothing but its name
                        await contexts.close_context(one.id)
            try:
                await contexts.create_context(name=name)
            except LimitError as error:
                if error.limit != "code_contexts":
                    raise
                raise ToolError(f"{error.message}; use one of {', '.join(known)}") from None
            return contexts, ""

    async def aclose(self) -> None:
        """End them all. Safe to call again. They end sooner where the session has ended before."""
        self._to_end.set()
        if self._opened is not None:
            await self._ended.wait()

    async def _open(self) -> CodeContexts:
        tasks = self._tasks()
        if self._to_end.is_set() or tasks is None:
            raise SandboxClosedError("the session has ended, and its code contexts with it")
        if self._opened is not None:
            return self._opened
        with anyio.CancelScope(shield=True):  # it takes no time, and is for the calls to come
            opened: CodeContexts = await tasks.start(self._keep)
        self._opened = opened
        return opened

    async def _keep(self, *, task_status: TaskStatus[CodeContexts]) -> None:
        try:
            with anyio.CancelScope(shield=True):
                python, limits = self._options.python, _limits(self._options)
                async with CodeContexts(self._session, python=python, limits=limits) as contexts:
                    task_status.started(contexts)
                    await self._to_end.wait()
        finally:
            self._ended.set()


def _limits(options: McpOptions) -> ContextLimits:
    """Return what contexts may take: of outputs what can be shown, pictures being in base64."""
    return ContextLimits(
        item_bytes=_MIB + options.image_bytes * 3 // 2,
        total_bytes=_MIB + options.images_bytes * 3 // 2,
        contexts=options.max_contexts,
    )
