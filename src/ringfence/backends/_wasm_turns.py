"""Interpreters that are started before there is work for them.

An interpreter takes longer to start than most of its programs take to run. So one is started
ahead, up to the point where it asks for work, and is then given one program, after which it ends;
or it is given one turn after the other and keeps its variables. Either way its thread waits in the
host meanwhile, where a stop reaches it.

CPython asks by a read of stdin of a size that nothing else uses; the size says how the turn before
ended. A program that does the same ends its own turn early, and reaches nobody else's.
"""

from __future__ import annotations

import marshal
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from ..errors import SandboxError
from ..models import Command, Exit
from ..process import Launch
from ._wasm_guest import Guest, Turns
from ._wasm_process import WasmProcess, outcome
from ._wasm_program import Entry, Program
from ._wasm_threads import submit
from ._wasm_world import World

__all__ = ("DRIVER_ARGV", "Resident", "Spares", "python_job", "turn_job")

DRIVER_ARGV = (b"python", b"-c", Path(__file__).with_name("_wasm_driver.py").read_bytes())
"""What makes CPython wait for work."""


def python_job(command: Command) -> bytes | None:
    """Return the work that is the same as a command of `python`, or None if there is none."""
    args = [arg.decode("utf-8", "surrogateescape") for arg in command.argv_bytes[1:]]
    if not args or args[0] == "-":
        argv, name, source, path = args or [""], "<stdin>", None, ""
    elif args[0] == "-c" and len(args) > 1:
        argv, name, source, path = ["-c", *args[2:]], "<string>", args[1], ""
    elif not args[0].startswith("-"):
        argv, name, source, path = args, args[0], None, args[0].rpartition("/")[0]
    else:
        return None  # options are the interpreter's own to read
    try:
        env = {name.decode(): value.decode() for name, value in command.env_bytes}
        return marshal.dumps((argv, env, path, name, source), 2)
    except UnicodeError:
        return None
    except ValueError:  # pragma: no cover - marshal has every type that is used here
        return None


def turn_job(code: str) -> bytes:
    """Return the work that runs code in CPython's own namespace and comes back."""
    return marshal.dumps((None, {}, "", "<turn>", code), 2)


class Resident:
    """An interpreter that has been started and waits for work.

    Args:
        program: Which one.
        world: What it gets to see.
        entry: How it is run up to the point where it asks for work.
    """

    def __init__(self, program: Program, world: World, entry: Entry | None = None) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._process: WasmProcess | None = None
        self._end: Exit | SandboxError | None = None
        self.ready = threading.Event()
        launch = Launch(Command(["python"]), None, None, 0.0)
        self.guest = Guest(launch, program.traits, _nothing)
        self.guest.turns = Turns(self._turn_ended)
        submit(lambda: self._work(world, entry), self.stop)

    @property
    def has_ended(self) -> bool:
        """Whether it can be given no more work."""
        return self._end is not None or bool(self.guest.stopped)

    def begin(self, launch: Launch, job: bytes) -> WasmProcess:
        """Give it work; returns the command that this is, running."""
        process = WasmProcess(self._program.engine, launch, self._program.traits, self.guest)
        with self._lock:
            self._process, end = process, self._end
            if end is None:
                process.begin(job)
        if end is not None:
            process.finish(end)
        return process

    def stop(self) -> None:
        """End it."""
        if self.guest.stop("signal 9"):
            self._program.engine.interrupt()

    def _work(self, world: World, entry: Entry | None) -> None:
        end = outcome(lambda guest: self._program.run(guest, world, entry), self.guest)
        with self._lock:
            self._end, process = end, self._process
        self.ready.set()
        if process is not None and not process.is_over:
            process.finish(end)

    def _turn_ended(self, status: int | None) -> None:
        self.ready.set()
        if status is None:
            return
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.finish(self._program.turn_exit(self.guest, status))


@dataclass
class Spares:
    """Interpreters that are ready for one program each, always as many as were asked for.

    Args:
        program: Which one.
        world: What they get to see.
        count: How many.
    """

    program: Program
    world: World
    count: int

    def __post_init__(self) -> None:
        self._waiting: deque[Resident] = deque()
        self._closed = False

    def fill(self) -> None:
        """Start as many as are missing."""
        while len(self._waiting) < self.count and not self._closed:
            world = self.world._replace(argv=DRIVER_ARGV)
            self._waiting.append(Resident(self.program, world))

    def start(self, launch: Launch) -> WasmProcess | None:
        """Run a command in one that is ready; None if it has to be run in the plain way."""
        job = python_job(launch.command) if self.count else None
        if job is None:
            return None
        resident = None
        while self._waiting and resident is None:
            resident = self._waiting.popleft()
            if resident.has_ended:
                resident = None
        process = None if resident is None else resident.begin(launch, job)
        self.fill()
        return process

    def close(self) -> None:
        """End those that wait."""
        self._closed = True
        while self._waiting:
            self._waiting.popleft().stop()


def _nothing() -> None:
    """Tell nobody: whoever would listen has not come yet."""
