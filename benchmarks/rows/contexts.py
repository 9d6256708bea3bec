"""A turn in a live code context, and a new context, beside a Jupyter kernel on the host."""

from __future__ import annotations

import sys
import time
from contextlib import AsyncExitStack

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.contexts import CodeContext, CodeContexts
from ringfence.interpreter import find_interpreter
from ringfence.models import SandboxSpec

from ..measure import TOTAL, Side, Times, alternate, check
from ..report import Line, compare
from ..settings import Settings

__all__ = ("run",)

_CODE = "1 + 1"


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure `1 + 1`, and a kernel from nothing to its first answer."""
    python = find_interpreter(sys.executable)
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(BubblewrapBackend())
        sandbox = await stack.enter_async_context(
            await backend.create(SandboxSpec(mounts=python.mounts))
        )
        contexts = await stack.enter_async_context(CodeContexts(sandbox, python=python.path))
        manager, client = await host_kernel()
        try:
            turns = await alternate(
                {
                    "ours": turn(contexts, await contexts.create_context()),
                    "a kernel on the host": host_turn(client),
                },
                settings.rounds(300, 3),
                warm_up=5,
            )
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)
        starts = await alternate(
            {"ours": start(contexts), "a kernel on the host": host_start},
            settings.rounds(10, 1),
            warm_up=1,
        )
    return [
        compare("1 + 1 in a live context", turns),
        compare("a new context, to its first answer", starts),
    ]


def turn(contexts: CodeContexts, context: CodeContext) -> Side:
    async def once() -> Times:
        began = time.perf_counter()
        result = await contexts.run_code(_CODE, context=context)
        took = time.perf_counter() - began
        check(result.ok, "the code failed")
        return {TOTAL: took}

    return once


def start(contexts: CodeContexts) -> Side:
    async def once() -> Times:
        began = time.perf_counter()
        context = await contexts.create_context()
        await contexts.run_code(_CODE, context=context)
        took = time.perf_counter() - began
        await contexts.close_context(context)
        return {TOTAL: took}

    return once


def host_turn(client: AsyncKernelClient) -> Side:
    async def once() -> Times:
        began = time.perf_counter()
        reply = await client.execute_interactive(_CODE, output_hook=lambda message: None)
        took = time.perf_counter() - began
        check(reply["content"]["status"] == "ok", "the code failed")
        return {TOTAL: took}

    return once


async def host_kernel() -> tuple[AsyncKernelManager, AsyncKernelClient]:
    """Start one over the same kind of sockets; its manager removes them."""
    manager = AsyncKernelManager(transport="ipc")
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    return manager, client


async def host_start() -> Times:
    began = time.perf_counter()
    manager, client = await host_kernel()
    await client.execute_interactive(_CODE, output_hook=lambda message: None)
    took = time.perf_counter() - began
    client.stop_channels()
    await manager.shutdown_kernel(now=True)
    return {TOTAL: took}
