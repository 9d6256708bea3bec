"""What a check is given: an open backend, a fresh sandbox, and ways to look at both."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import anyio

from ringfence.backend import Backend, Sandbox
from ringfence.models import Capabilities, Command, Isolation, Limits, Result, SandboxSpec

from . import _expect as expect
from ._host import processes_with

__all__ = ("Context",)


class Context:
    """The ground a check stands on.

    Attributes:
        backend: The backend under test, open.
        factory: Makes another one like it.
        python: Path of a Python 3 inside the sandboxes, or None. Checks that make system calls
            need one.
        patience: How many times longer than others the backend may take for many operations.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Callable[[], Backend],
        python: str | None,
        stack: AsyncExitStack,
    ) -> None:
        self.backend = backend
        self.factory = factory
        self.python = python
        self.patience = 1.0
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

    async def gone(
        self, marker: str, what: str, sandbox: Sandbox | None = None, seconds: float = 1.0
    ) -> None:
        """Require the processes with this marker to be gone, now or within a moment."""
        with anyio.move_on_after(seconds):
            while await self.alive(marker, sandbox):
                await anyio.sleep(0.05)
            return
        expect.true(not await self.alive(marker, sandbox), f"{what} is still alive")

    async def appears(
        self, marker: str, sandbox: Sandbox | None = None, seconds: float = 5.0
    ) -> None:
        """Wait until a process with this marker runs, seen from the host or from inside."""
        with anyio.fail_after(seconds):
            while not await self.alive(marker, sandbox):
                await anyio.sleep(0.01)

    async def file_appears(self, sandbox: Sandbox, name: str, seconds: float = 5.0) -> None:
        """Wait until a program has made a file."""
        with anyio.move_on_after(seconds):
            while name not in {info.name for info in (await sandbox.list_files()).entries}:
                await anyio.sleep(0.02)
            return
        expect.fail(f"the file {name!r} was not made within {seconds:g} s")

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
