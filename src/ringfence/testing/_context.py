"""What a check is given: an open backend, a fresh sandbox, and ways to look at both."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import anyio

from ringfence.backend import Backend, Sandbox
from ringfence.models import Capabilities, Command, Isolation, Limits, Result, SandboxSpec

from . import _expect as expect
from ._host import processes_with

__all__ = ("Context",)

_SOON = 15.0


class Context:
    """The ground a check stands on.

    Attributes:
        backend: The backend under test, open.
        factory: Makes another one like it.
        python: Path of a Python 3 inside the sandboxes, or None. Checks that make system calls
            need one.
        soon: Seconds within which something must have happened that does so at once on an idle
            machine. A check tells "soon" from "never" by it, and a busy machine from neither: what
            a fault would wait for here takes longer, and nothing that is right does.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Callable[[], Backend],
        python: str | None,
        stack: AsyncExitStack,
        patience: float = 1.0,
    ) -> None:
        self.backend = backend
        self.factory = factory
        self.python = python
        self.soon = _SOON * patience
        self._stack = stack
        self._sandbox: Sandbox | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the backend says of itself."""
        return self.backend.capabilities

    async def prepare(self) -> None:
        """Make the sandbox that most checks use, where the backend has live ones."""
        if self.capabilities.live:
            self._sandbox = await self.create()

    @property
    def sandbox(self) -> Sandbox:
        """A live sandbox that nobody has used before."""
        if self._sandbox is None:
            raise expect.NotApplicable("live")
        return self._sandbox

    @property
    def live_sandbox(self) -> Sandbox | None:
        """The same, or None where the backend has none."""
        return self._sandbox

    async def create(self, limits: Limits | None = None, **fields: Any) -> Sandbox:
        """Make another sandbox, closed at the end of the check; `fields` are those of a spec."""
        spec = SandboxSpec(limits=limits or Limits(), **fields)
        sandbox = await self.backend.create(spec)
        self._stack.push_async_callback(sandbox.aclose)
        return sandbox

    async def another(self) -> Backend:
        """Open one more backend, closed at the end of the check."""
        return await self._stack.enter_async_context(self.factory())

    async def run(self, command: Command) -> Result:
        """Run a command in the sandbox, or as a one-shot where there is no live one."""
        if self._sandbox is None:
            return await self.backend.execute(command)
        return await self._sandbox.exec(command)

    async def sh(self, script: str, *args: str, **fields: Any) -> Result:
        """Run a script of the plain shell; `fields` are those of a `Command`."""
        return await self.run(self.script(script, *args, **fields))

    async def sh_ok(self, script: str, *args: str, **fields: Any) -> str:
        """Run a script that has to succeed and return what it printed."""
        result = await self.sh(script, *args, **fields)
        expect.true(
            result.ok,
            f"the script {script!r} ended with {result.exit_code} ({result.exit_reason.value}): "
            f"{result.stderr_text!r}",
        )
        return result.stdout_text

    async def prints_ok(self, sandbox: Sandbox) -> None:
        """Require a sandbox to be of use."""
        result = await sandbox.exec("echo", ["ok"])
        expect.equal((result.exit_code, result.stdout), (0, b"ok\n"), "the next command's end")

    @staticmethod
    def script(script: str, *args: str, **fields: Any) -> Command:
        """Return the command that runs a script of the plain shell."""
        return Command(("sh", "-c", script, "sh", *args), **fields)

    async def py(self, code: str, *args: str, **fields: Any) -> Result:
        """Run Python code in the sandbox; the check does not apply without a Python."""
        return await self.run(Command((self.need_python(), "-I", "-c", code, *args), **fields))

    def need_python(self) -> str:
        """Return the path of the Python inside, without which the check does not apply."""
        if self.python is None:
            raise expect.NotApplicable("no Python inside was named")
        return self.python

    @staticmethod
    def marker() -> str:
        """Return seconds for `sleep` that no other process on this machine sleeps."""
        return f"86400.{random.randrange(10**11, 10**12)}"  # noqa: S311 - a name, not a secret

    async def alive(self, marker: str, sandbox: Sandbox | None = None) -> bool:
        """Whether a process with this marker is left, seen from the host or from inside."""
        if processes_with(marker):
            return True
        if sandbox is None:
            return False
        # The pattern is written so that the searching shell's own command line has no match.
        pattern = f"[{marker[0]}]{marker[1:]}"
        script = f'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" " " | grep -q "{pattern}"'
        return (await sandbox.exec(self.script(script))).exit_code == 0

    @contextmanager
    def promptly(self, what: str) -> Iterator[None]:
        """Require the block to end soon; one that does not is cancelled."""
        with anyio.move_on_after(self.soon) as scope:
            yield
        expect.true(anyio.current_time() <= scope.deadline, f"{what} takes over {self.soon:g} s")

    async def is_gone(self, marker: str, what: str, sandbox: Sandbox | None = None) -> None:
        """Require the processes with this marker to be gone by now: their end was told."""
        expect.true(not await self.alive(marker, sandbox), f"{what} is still alive")

    async def gone(self, marker: str, what: str, sandbox: Sandbox | None = None) -> None:
        """Require the processes with this marker to go soon."""

        async def none_left() -> bool:
            return not await self.alive(marker, sandbox)

        await self.eventually(none_left, f"{what} is still alive")

    async def appears(self, marker: str, sandbox: Sandbox | None = None) -> None:
        """Wait until a process with this marker runs, seen from the host or from inside."""
        await self.eventually(
            lambda: self.alive(marker, sandbox), f"no process with {marker} was started"
        )

    async def file_appears(self, sandbox: Sandbox, name: str) -> None:
        """Wait until a program has made a file."""

        async def is_there() -> bool:
            return name in {info.name for info in (await sandbox.list_files()).entries}

        await self.eventually(is_there, f"the file {name!r} was not made")

    async def none_left(self, name: str) -> None:
        """Require all of the sleepers of a name to go soon, as zombies too."""

        async def are_gone() -> bool:
            stats = await self.sh_ok("cat /proc/[0-9]*/stat 2>/dev/null; true")
            return f"({name})" not in stats

        await self.eventually(are_gone, f"some of {name} are left, perhaps as zombies")

    async def eventually(self, condition: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        """Require something to become true soon.

        Args:
            condition: Whether it is.
            otherwise: What the failure says.
        """
        with anyio.move_on_after(self.soon):
            while not await condition():
                await anyio.sleep(0.02)
            return
        expect.fail(f"{otherwise} after {self.soon:g} s")

    def host_dir(self) -> str:
        """Make a directory of the host, outside of every sandbox, removed after the check."""
        path = tempfile.mkdtemp(prefix="ringfence-testing-")
        os.chmod(path, 0o755)  # noqa: S103 - so that only isolation can hide it
        self._stack.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    @property
    def user_namespace(self) -> tuple[str, ...]:
        """Its name, where each sandbox must have one: containers share one unless it is mapped."""
        return ("user",) if self.capabilities.isolation is Isolation.NAMESPACE else ()

    async def make_sleeper(self, name: str) -> None:
        """Make a program in the workspace that sleeps and is known by its name, as a zombie too."""
        await self.sh_ok(f"printf '#!/bin/sh\nsleep \"$@\"\nexit\n' >{name}; chmod +x {name}")

    async def require_own_namespaces(self) -> None:
        """Fail before an attack is made where it would hit the host."""
        for kind in ("pid", "mnt", *self.user_namespace):
            inside = await self.sh_ok(f"readlink /proc/self/ns/{kind}")
            outside = os.readlink(f"/proc/self/ns/{kind}")
            expect.true(inside.strip() != outside, f"programs are in the host's {kind} namespace")

    async def runs_as_root(self, sandbox: Sandbox | None = None) -> bool:
        """Whether programs inside have user id 0, whom file permissions don't stop."""
        result = await (sandbox or self.sandbox).exec("id", ["-u"])
        return result.stdout.strip() == b"0"
