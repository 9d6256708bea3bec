"""Python code in a container that lives for one call: `DockerSandbox().execute(code)`.

The small face of the container backend, for whoever has a string of Python and wants its output::

    sandbox = DockerSandbox()
    result = sandbox.execute("print(6 * 7)")
    result.success, result.output, result.exit_code
    dict(result)  # the same three, by these names

Every call has a hardened container of its own, which is gone when the call returns, whatever
happened in it. The code travels by stdin and meets no shell. A program that fails, or is ended by
its time limit, is a result; an engine that can't run it raises a `SandboxError`.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .backend import Backend, Closeable
from .config import ContainerConfig
from .errors import CommandError, ConfigError, SandboxClosedError
from .models import MAX_TIMEOUT, TIMEOUT_MARKER, Chunk, Command, Result
from .portal import Entered, call
from .registry import open_backend

__all__ = ("AsyncDockerSandbox", "DockerSandbox", "SandboxConfig", "SandboxResult")

_MIB = 1024 * 1024
_TMP_BYTES = 64 * _MIB
_NANO = 1_000_000_000
_LEAST_MEMORY = 6 * _MIB  # no engine makes a container with less
_SIZE = re.compile(r"(\d{1,15})([bkmgt]?)b?", re.ASCII)
_UNITS = {"": 1, "b": 1, "k": 1024, "m": _MIB, "g": 1024 * _MIB, "t": 1024 * 1024 * _MIB}
_AGE_OVER_TIMEOUT = 60.0  # that a container may live longer than its code may run

# What is printed shall be there when the clock ends the program, and in order with its errors.
_ENV = {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class SandboxConfig:
    """What the container is made of, and what its code may use.

    Attributes:
        image: An image with `python3`, or `python`.
        memory_limit: Memory without swap, files in `/tmp` and `/workspace` included: a number of
            bytes, or one with a unit (`k`, `m`, `g`, each 1024 of the one before).
        nano_cpus: Processor time; 1,000,000,000 is one core.
        timeout: Seconds until the program is ended.
        network_disabled: Whether it has no network but its own loopback. If not, it makes
            connections to the outside; the machine itself is kept from it where that can be done.
        read_only: Whether it can write to `/tmp` (64 MiB) and `/workspace` alone.

    Raises:
        ConfigError: A setting that can't be right.
    """

    image: str = "ringfence-sandbox:latest"
    memory_limit: str = "512m"
    nano_cpus: int = _NANO
    timeout: float = 30
    network_disabled: bool = True
    read_only: bool = True

    def __post_init__(self) -> None:
        if type(self.image) is not str or not self.image.strip():
            raise ConfigError(f"image is the name of an image, not {self.image!r:.80}")
        if type(self.nano_cpus) is not int or self.nano_cpus <= 0:
            raise ConfigError(
                f"nano_cpus must be a whole number above zero, not {self.nano_cpus!r:.80}",
                hint=f"{_NANO:,} is one core",
            )
        if type(self.timeout) not in (int, float) or not 0 < self.timeout <= sys.float_info.max:
            raise ConfigError(
                f"timeout must be a positive number of seconds, not {self.timeout!r:.80}"
            )
        for name in ("network_disabled", "read_only"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is true or false, not {getattr(self, name)!r:.80}")
        if self.memory_bytes < _LEAST_MEMORY:
            raise ConfigError(
                f"memory_limit {self.memory_limit!r} is too little", hint="a container needs 6m"
            )

    @property
    def memory_bytes(self) -> int:
        """The memory limit as a number."""
        found = None
        if isinstance(self.memory_limit, str):
            found = _SIZE.fullmatch(self.memory_limit.strip().lower())
        if found is None:
            raise ConfigError(
                f"memory_limit is a size, not {self.memory_limit!r:.80}",
                hint="write it as '512m' or '2g'",
            )
        return int(found[1]) * _UNITS[found[2]]

    def container(self) -> ContainerConfig:
        """Return these settings as the container backend has them."""
        timeout = float(self.timeout)
        is_long = timeout > MAX_TIMEOUT  # asked for by name, so not clamped
        return ContainerConfig(
            image=self.image,
            memory_bytes=self.memory_bytes,
            cpus=self.nano_cpus / _NANO,
            timeout=timeout,
            max_timeout=timeout if is_long else None,
            max_age=timeout + _AGE_OVER_TIMEOUT if is_long else None,
            tmp_bytes=_TMP_BYTES,
            network="none" if self.network_disabled else "bridge",
            bridge_guard="preferred",  # who asks for a network gets one, also without root
            writable_rootfs=not self.read_only,
        )


@dataclass(frozen=True, eq=False)
class SandboxResult(Mapping[str, Any]):
    """What the code did. As a mapping it has `success`, `output` and `exit_code`, and no more.

    Attributes:
        output: What it printed, to stdout and stderr, in the order in which it arrived; what is
            not UTF-8 appears as U+FFFD. After a timeout the last line says so.
        result: All of it: the streams apart, why it ended, what it used.
    """

    output: str
    result: Result

    @property
    def success(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.result.ok

    @property
    def exit_code(self) -> int:
        """The program's own; 128+N for signal N; 124 for the time limit, 137 for memory."""
        return self.result.exit_code

    @property
    def stdout(self) -> str:
        """What it printed to stdout alone."""
        return self.result.stdout_text

    @property
    def stderr(self) -> str:
        """What it printed to stderr alone."""
        return self.result.stderr_text

    @property
    def timed_out(self) -> bool:
        """Whether the time limit ended it."""
        return self.result.timed_out

    @property
    def truncated(self) -> bool:
        """Whether it printed more than the 1 MiB of each stream that is kept."""
        return self.result.stdout_truncated or self.result.stderr_truncated

    def to_dict(self) -> dict[str, Any]:
        """Return `success`, `output` and `exit_code`."""
        return {"success": self.success, "output": self.output, "exit_code": self.exit_code}

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


class AsyncDockerSandbox(Closeable):
    """Runs Python code, each time in a container of its own. Use it with `async with`.

    Args:
        config: Default: a `SandboxConfig` as it is.
        backend: What makes the containers instead of one that is made from the config; opened and
            closed with this.
    """

    def __init__(
        self, config: SandboxConfig | None = None, *, backend: Backend | None = None
    ) -> None:
        self.config = config or SandboxConfig()
        self._backend = backend
        self._is_open = False

    async def execute(self, code: str) -> SandboxResult:
        """Run code and return what it did; its container is gone then.

        Args:
            code: A Python program.

        Raises:
            CommandError: The code is no text, or can't be encoded.
            SandboxClosedError: This is not open.
            SandboxError: The engine could not run it: not reachable, no such image, ...
        """
        if not isinstance(code, str):
            raise CommandError(f"the code is text, not {type(code).__name__}")
        command = Command(("python3", "-"), stdin=code, env=_ENV, fallback="python")
        if self._backend is None or not self._is_open:
            raise SandboxClosedError("it is not open", hint="use it with `async with`")
        printed: list[str] = []

        def keep(chunk: Chunk) -> None:
            printed.append(chunk.text)

        async with await self._backend.create() as sandbox:
            result = await sandbox.exec(command, timeout=self.config.timeout, on_output=keep)
        output = "".join(printed)
        if result.timed_out:
            output += ("" if output.endswith("\n") or not output else "\n") + TIMEOUT_MARKER + "\n"
        return SandboxResult(output, result)

    async def aclose(self) -> None:
        """Let the engine go. Safe to call again."""
        self._is_open = False
        if self._backend is not None:
            await self._backend.aclose()

    async def __aenter__(self) -> Self:
        if self._backend is None:
            self._backend = open_backend(self.config.container())
        await self._backend.__aenter__()
        self._is_open = True
        return self


class DockerSandbox:
    """Runs Python code, each time in a container of its own.

    The engine is first spoken to by the first call. Closing this, or using it in a `with` block,
    lets it go sooner than the end of the process does. Threads may share one.

    Args:
        config: Default: a `SandboxConfig` as it is.
        backend: What makes the containers instead of one that is made from the config; opened and
            closed with this.
    """

    def __init__(
        self, config: SandboxConfig | None = None, *, backend: Backend | None = None
    ) -> None:
        self._inner = AsyncDockerSandbox(config, backend=backend)
        self._entered: Entered | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def config(self) -> SandboxConfig:
        """What it was made with."""
        return self._inner.config

    def execute(self, code: str) -> SandboxResult:
        """Run code and return what it did; its container is gone then.

        Args:
            code: A Python program.

        Raises:
            CommandError: The code is no text, or can't be encoded.
            SandboxClosedError: This has been closed.
            SandboxError: The engine could not run it: not reachable, no such image, ...
        """
        self._enter()
        return call(self._inner.execute, code)

    def close(self) -> None:
        """Let the engine go. Safe to call again."""
        with self._lock:
            self._closed = True
            entered, self._entered = self._entered, None
        if entered is not None:
            entered.__exit__(None, None, None)

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _enter(self) -> None:
        with self._lock:
            if self._closed:
                raise SandboxClosedError("it has been closed")
            if self._entered is None:
                entered = Entered(self._inner)
                entered.__enter__()
                self._entered = entered
