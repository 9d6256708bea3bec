"""A live interpreter: one turn after the other, with what the turns before have left."""

from __future__ import annotations

from typing import Self

import anyio.to_thread

from ..backend import Closeable, Sandbox
from ..errors import SandboxClosedError, SandboxLostError
from ..execution import Run
from ..models import DEFAULT_OUTPUT_BYTES, DEFAULT_TIMEOUT, MAX_TIMEOUT, Command, Result
from ..process import Launch, Process
from ._wasm_program import Calls
from ._wasm_turns import Resident, turn_job
from ._wasm_world import World

__all__ = (
    "STACK_POINTER",
    "LiveInterpreter",
    "quickjs_turns",
    "scientific_turns",
    "start_quickjs",
)

_EXCEPTION_TAG = 6  # of QuickJS's boxed values
_MASK = 0xFFFF_FFFF
_QUICKJS_STACK = 8 * 1024 * 1024
STACK_POINTER = "ringfence_stack_pointer"


class LiveInterpreter(Closeable):
    """An interpreter that keeps its variables from turn to turn. Use it with `async with`.

    A turn is a result as a command's is. One that is ended, by its deadline or by what it did,
    ends the interpreter: the next turn gets a `SandboxLostError`.

    Attributes:
        sandbox: The sandbox whose workspace it has; closed with it.
    """

    def __init__(self, sandbox: Sandbox, resident: Resident, *, is_cpython: bool) -> None:
        self.sandbox = sandbox
        self._resident = resident
        self._is_cpython = is_cpython
        self._closed = False
        self._lock = anyio.Lock()

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._resident.ready.wait, 30.0)
        return self

    async def run(
        self, code: str, *, stdin: bytes | str = b"", timeout: float | None = None
    ) -> Result:
        """Run code where the turn before ended. Turns that come at once wait for one another.

        Args:
            code: Statements, in the interpreter's language.
            stdin: What they read, at most 64 KiB.
            timeout: Seconds; default 30.

        Raises:
            SandboxLostError: A turn before has ended the interpreter.
            SandboxClosedError: It is closed.
        """
        limits = self.sandbox.limits
        command = Command(["turn"], stdin=stdin, timeout=timeout or limits.timeout)
        seconds = min(command.timeout or DEFAULT_TIMEOUT, limits.max_timeout or MAX_TIMEOUT)
        given = stdin.encode() if isinstance(stdin, str) else stdin
        cap = limits.output_bytes or DEFAULT_OUTPUT_BYTES
        launch = Launch(command, seconds, cap, limits.kill_grace or 0.0, given)
        job = turn_job(code) if self._is_cpython else code.encode()

        async def start(launch: Launch) -> Process:
            self._require_alive()
            return self._resident.begin(launch, job)

        held = self.sandbox.capabilities.limits
        async with self._lock:
            run = Run(start, self._destroy, launch, None, held, keeps_deadlines=True)
            return await run.complete()

    async def aclose(self) -> None:
        """End the interpreter and its sandbox. Safe to call again."""
        self._closed = True
        self._resident.stop()
        await self.sandbox.aclose()

    async def _destroy(self, cause: str) -> None:
        self._resident.stop()

    def _require_alive(self) -> None:
        if self._closed:
            raise SandboxClosedError("the interpreter is closed", backend="wasm")
        if self._resident.has_ended:
            raise SandboxLostError(
                "the interpreter has ended, and its variables are gone",
                cause="a turn ended it",
                backend="wasm",
                hint="make a new one",
            )


def scientific_turns(calls: Calls, _: World) -> int:
    """Run the scientific Python, which takes turns by itself."""
    status = 0
    while True:
        code = calls.guest.next_turn(status & 0xFF)
        at = calls.call("host_alloc", ("i32", len(code))) & _MASK if code else 0
        if at:
            calls.write(at, code)
        status = calls.call("turn", ("i32", at), ("i32", len(code)))


def start_quickjs(calls: Calls) -> None:
    """Initialise QuickJS and give it a stack of a useful size.

    Its build has 64 KiB, which lasts for 150 calls, and does not look where it ends: what is
    below it are its own variables. In 8 MiB of its heap, the runtime's limit comes first.
    """
    calls.call("_initialize")
    base = calls.call("malloc", ("i32", _QUICKJS_STACK)) & _MASK
    if base:
        calls.set_global(STACK_POINTER, (base + _QUICKJS_STACK) & ~15)


def quickjs_turns(calls: Calls, _: World) -> int:
    """Run QuickJS, evaluating each turn in its one global scope."""
    start_quickjs(calls)
    if calls.call("qjs_init"):
        return 1
    context = ("i32", calls.call("qjs_get_context"))
    name = calls.call("malloc", ("i32", 8)) & _MASK
    calls.write(name, b"<turn>\0")
    status = 0
    while True:
        code = calls.guest.next_turn(status)
        at = calls.call("malloc", ("i32", len(code) + 1)) & _MASK
        calls.write(at, code + b"\0")
        value = calls.call(
            "JS_Eval", context, ("i32", at), ("i32", len(code)), ("i32", name), ("i32", 0)
        )
        calls.call("free", ("i32", at))
        status = 0
        if value >> 32 == _EXCEPTION_TAG:
            calls.call("js_std_dump_error", context)
            status = 1
        calls.call("JS_FreeValue", context, ("i64", value))
        status = 1 if calls.call("js_std_loop", context) else status
