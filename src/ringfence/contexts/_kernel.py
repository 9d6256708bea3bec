"""One kernel: a relay's process, and what comes from it."""

from __future__ import annotations

import json
import signal
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import anyio

from ..backend import Sandbox
from ..errors import (
    ContextError,
    ContextLostError,
    KernelMissingError,
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
)
from ..models import Exit, ExitReason
from ..process import Process
from ..sessions import Session
from ..sessions.process import SessionProcess
from ._boot import relay_command
from ._messages import Message, MessageError, Messages

__all__ = ("ContextLimits", "Kernel", "in_use")

_MIB = 1 << 20
_SEND_SECONDS = 10.0
_KILL_SECONDS = 15.0
_SAID_BYTES = 4096
_NOT_FOUND = (126, 127)

HOW_TO_GET_ONE = (
    "it takes the package ipykernel in the sandbox: in its image, in the Python that is mounted "
    "into it, or installed there by pip; see docs/contexts.md"
)


@dataclass(frozen=True)
class ContextLimits:
    """What contexts may take, and how long the host waits for them.

    Attributes:
        item_bytes: Of one output: a figure, a table, a piece of text.
        total_bytes: Of all outputs of one piece of code, each of which counts for 1 KiB at least.
        code_bytes: Of the code.
        contexts: How many there can be in one sandbox at a time.
        start_timeout: Seconds until a new kernel must answer.
        interrupt_grace: Seconds that code has to end when it has been interrupted; then its kernel
            is killed.
    """

    item_bytes: int = 8 * _MIB
    total_bytes: int = 32 * _MIB
    code_bytes: int = _MIB
    contexts: int = 8
    start_timeout: float = 30.0
    interrupt_grace: float = 3.0


class Kernel:
    """A kernel from its start to its death.

    `pump` is a task of its own that takes what comes, as long as the kernel lives; whoever runs
    code waits for it with `next`. So a caller that is cancelled loses nothing of the stream.
    """

    def __init__(self, sandbox: Sandbox, process: Process, limits: ContextLimits) -> None:
        self.python = self.ipykernel = ""
        self.death: SandboxError | None = None
        self._sandbox = sandbox
        self._process = process
        self._limits = limits
        self._waiting: deque[Message] = deque()
        self._running = ""  # the id of the code that runs
        self._room = 0  # that its output has left
        self._count = 0
        self._news = anyio.Event()
        self._said = b""
        self._last: Message | None = None

    @classmethod
    async def start(cls, sandbox: Sandbox, python: str, limits: ContextLimits) -> Kernel:
        """Start a relay; what it says is taken by `pump` and awaited by `ready`."""
        process = await sandbox.start(relay_command(python), stdin_open=True)
        return cls(sandbox, process, limits)

    # What runs code.

    async def ready(self) -> None:
        """Wait until it answers.

        Raises:
            KernelMissingError: The sandbox has no interpreter, or no ipykernel for it.
            ContextError: It did not start in time, or died.
        """
        why = f"it has not answered within {self._limits.start_timeout:g} s"
        with anyio.move_on_after(self._limits.start_timeout):
            try:
                await self.next()
                return
            except ContextLostError as error:
                why = error.cause
        raise ContextError(
            f"no kernel could be started: {why}",
            backend=self._sandbox.backend,
            hint="one takes some 100 MB of memory and 24 processes and threads; see the limits",
        )

    async def run(self, code: str) -> str:
        """Send code to be run and return its id; `next` gives what comes of it, up to `done`."""
        self._count += 1
        self._running, self._room = str(self._count), self._limits.total_bytes
        wanted = {
            "do": "run",
            "id": self._running,
            "code": code,
            "item": self._limits.item_bytes,
            "total": self._limits.total_bytes,
        }
        self._be_heard(True)
        await self._send(wanted)
        return self._running

    async def interrupt(self) -> None:
        """Interrupt the code that runs, as Ctrl-C does."""
        await self._send({"do": "interrupt"})

    async def next(self) -> Message:
        """Return the next message.

        Raises:
            ContextError: There is none any more: it has died.
            SandboxLostError: Its sandbox has.
        """
        while not self._waiting:
            if self.death is not None:
                raise self._dead()
            await self._news.wait()
        return self._waiting.popleft()

    def over(self) -> None:
        """Note that nobody runs anything any more."""
        self._running = ""
        self._waiting.clear()
        self._be_heard(False)

    async def kill(self, cause: str) -> None:
        """End it with all that it has started, if need be with its sandbox."""
        self._die(cause)
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(_KILL_SECONDS):
                try:
                    await self._process.kill()
                    await self._process.wait()
                except (SandboxLostError, SandboxClosedError):
                    pass  # and with it the kernel
                return
            await self._sandbox._destroy("a code context could not be killed")

    async def _send(self, wanted: dict[str, object]) -> None:
        with anyio.move_on_after(_SEND_SECONDS):
            await self._process.write_stdin(json.dumps(wanted).encode() + b"\n")
            return
        self._die("it does not read any more")

    def _dead(self) -> SandboxError:
        assert self.death is not None
        return self.death.with_traceback(None)

    def _die(self, cause: str | SandboxError) -> None:
        if self.death is None:
            self.death = (
                ContextLostError(
                    f"the kernel of the context is gone: {cause}",
                    cause=cause,
                    backend=self._sandbox.backend,
                    hint="restart the context; its variables are lost, files are not",
                )
                if isinstance(cause, str)
                else cause
            )
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    def _be_heard(self, heard: bool) -> None:
        """Say whether somebody is told when the sandbox dies; if not, its session tells later."""
        if isinstance(self._process, SessionProcess):
            self._process.is_heard = heard

    # What takes what comes.

    async def pump(self) -> None:
        """Take what the relay says until it ends, or says what it can't have to say."""
        messages = Messages(self._limits.item_bytes)
        self._be_heard(False)
        try:
            while (chunk := await self._process.receive()) is not None:
                if chunk.stream == "stderr":
                    self._said = (self._said + chunk.data)[-_SAID_BYTES:]
                    continue
                for message in messages.feed(chunk.data):
                    self._take(message)
            self._die(self._cause(await self._process.wait()))
        except MessageError as error:
            await self.kill(f"it did not keep to the protocol: {error}")
        except SandboxError as error:
            if isinstance(self._sandbox, Session) and isinstance(error, SandboxLostError):
                if not self._running:
                    self._sandbox.tell_later(error)
            self._die(error)

    def _take(self, message: Message) -> None:
        if message.kind in ("missing", "dead"):
            self._last = message
            return
        if message.kind == "ready" and not self.python:
            self.python, self.ipykernel = message.text("python"), message.text("ipykernel")
        elif message.kind not in ("msg", "done") or message.text("id") != self._running:
            raise MessageError(f"a message {message.kind!r:.40} that nobody waits for")
        elif not self.python:
            raise MessageError("it has not said yet that it is ready")
        else:
            self._room -= message.size
            if message.kind == "msg" and self._room < 0:
                raise MessageError("more output than there was room for")
        self._waiting.append(message)
        self._tell()

    def _cause(self, end: Exit) -> str | SandboxError:
        """Return what is to be said of its end."""
        last = self._last
        if last is not None and last.kind == "missing":
            return self._missing(last.text("why"))
        if not self.python and end.code in _NOT_FOUND:
            return self._missing("there is no such Python in it")
        if end.reason is ExitReason.OUT_OF_MEMORY:
            return "out of memory"
        said = last.text("said") if last is not None else self._said.decode("utf-8", "replace")
        words = f"; it said: {said.strip()[-1000:]}" if said.strip() else ""
        if last is None:
            return f"its relay has ended with code {end.code}{words}"
        status = last.number("status")
        if status < 0:
            return f"it was killed by {_signal_name(-status)}{words}"
        return f"it has ended itself with code {status}{words}"

    def _missing(self, why: str) -> KernelMissingError:
        return KernelMissingError(
            f"the sandbox has no kernel: {why}",
            backend=self._sandbox.backend,
            hint=HOW_TO_GET_ONE,
        )


def in_use(sandbox: Sandbox) -> AbstractContextManager[None]:
    """Keep a session from being called idle while a block runs; other sandboxes never are."""
    return sandbox.in_use() if isinstance(sandbox, Session) else nullcontext()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
