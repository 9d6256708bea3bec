"""A sandbox for Inspect: `Task(sandbox="ringfence")`, found through its entry point.

`sandbox=("ringfence", "container")` names a backend, `("ringfence", "settings.toml")` a file with
the settings of `BackendConfig`, and `SandboxEnvironmentSpec("ringfence", BackendConfig(...))` gives
them in code. Without any, it is `auto`: the strongest that can run on the machine.
"""

from __future__ import annotations

import errno
import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, overload

import anyio
import anyio.lowlevel

from ._missing import missing

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxConnection,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
except ModuleNotFoundError as error:
    raise missing("inspect", error) from error


from .. import inventory
from ..backend import Backend, Sandbox
from ..config import CONFIGS, BackendConfig
from ..errors import (
    BackendUnavailableError,
    ConfigError,
    FileTooLargeError,
    SandboxClosedError,
    SandboxLostError,
    StreamBrokenError,
    WorkspaceError,
)
from ..registry import Config, open_backend
from ._commands import as_long_as_it_lives, command_in
from ._files import Files

__all__ = ("RingfenceSandboxEnvironment",)


@dataclass
class _Shared:
    """A backend that is open for all samples of the same settings in one event loop."""

    backend: Backend
    holders: int = 0
    opening: anyio.Lock = field(default_factory=anyio.Lock)
    is_open: bool = False


_shared: dict[tuple[object, Config], _Shared] = {}


@sandboxenv(name="ringfence")
class RingfenceSandboxEnvironment(SandboxEnvironment):
    """One sandbox for each sample, made at its start and destroyed at its end.

    Paths and working directories are anywhere that the sandbox's programs see; relative ones begin
    at the workspace. A command without a timeout may take as long as the sandbox lives: an hour,
    unless the settings say otherwise. There is one user inside, who is not root.
    """

    def __init__(self, sandbox: Sandbox, engine: str | None = None) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._files = Files(sandbox)
        self._engine = engine
        self._users: frozenset[str] | None = None

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002  # Inspect's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command and return what it did.

        A timeout is kept inside and kills the whole tree of the command, so none is tried again
        (`timeout_retry`); how many run at once is the sandbox's own limit (`concurrency`).
        """
        with _told():
            await self._check_user(user)
            command = command_in(
                self._sandbox,
                cmd,
                stdin=input,
                cwd=cwd,
                env=env,
                timeout=timeout,
                output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
            )
            try:
                result = await self._sandbox.exec(command)
            except WorkspaceError as error:  # no such directory
                return ExecResult(False, 126, "", f"{error}\n")
        if result.timed_out:
            raise TimeoutError(f"the command was ended after {result.timeout:g} s")
        if result.stdout_truncated or result.stderr_truncated:
            kept = result.stdout_text if result.stdout_truncated else result.stderr_text
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, kept)
        if result.exit_code == 126 and "permission denied" in result.stderr_text.lower():
            raise PermissionError(errno.EACCES, result.stderr_text.strip(), cmd[0])
        return ExecResult(result.ok, result.exit_code, result.stdout_text, result.stderr_text)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        with _told():
            await self._files.write(file, data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        try:
            with _told():
                data = await self._files.read(file, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        except FileTooLargeError as error:
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(limit, None) from error
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Say how a person gets a shell in it, where an engine's own client can give one.

        Raises:
            NotImplementedError: It is no container.
            ConnectionError: It is not running.
        """
        if self._engine is None:
            raise NotImplementedError(f"there is no way into a sandbox of {self._sandbox.backend}")
        try:
            await self._sandbox.ping()
        except (SandboxLostError, SandboxClosedError) as error:
            raise ConnectionError(str(error)) from error
        name = self._sandbox.id
        as_user = f" --user {user}" if user else ""
        command = f"docker --host {self._engine} exec -it{as_user} {name} /bin/sh"
        return SandboxConnection(type="ringfence", command=command, container=name)

    def default_polling_interval(self) -> float:
        return 0.2  # a call takes about a millisecond

    async def _check_user(self, user: str | None) -> None:
        if user is None:
            return
        if self._users is None:
            names = await self._sandbox.exec("/bin/sh", ["-c", "id -un 2>/dev/null; id -u"])
            self._users = frozenset(names.stdout_text.split())
        if user not in self._users:
            raise SandboxUserUnsupportedError(
                f"nothing in a sandbox runs as {user!r}: its one user is "
                + (" or ".join(sorted(self._users)) or "not known")
            )

    # What a task does with it.

    @classmethod
    def default_concurrency(cls) -> int | None:
        return 2 * (os.cpu_count() or 1)  # as many as Inspect runs containers at a time

    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        await _hold(_settings(config))

    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        settings = _settings(config)
        backend = await _hold(settings)
        try:
            sandbox = await backend.create(as_long_as_it_lives(backend.default_limits))
        except BaseException:
            await _release(settings)
            raise
        return {"default": cls(sandbox, _engine_of(sandbox))}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(RingfenceSandboxEnvironment)._sandbox.aclose()
            await _release(_settings(config))

    @classmethod
    async def task_cleanup(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool
    ) -> None:
        """Let go of the backend. Sandboxes end with their process, also without `cleanup`."""
        await _release(_settings(config))

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:  # noqa: A002  # Inspect's name
        """Remove what dead processes have left; live ones keep theirs, whatever the id."""
        inventory.reap()
        with suppress(BackendUnavailableError):  # no engine, so nothing of ours in it
            await open_backend("container").reap()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BackendConfig:
        return BackendConfig.parse(config)


def _settings(config: SandboxEnvironmentConfigType | None) -> Config:
    """Return what a task has given as the config of a backend.

    Raises:
        ConfigError: It is none.
    """
    if config is None:
        return "auto"
    if not isinstance(config, str):
        if isinstance(config, (BackendConfig, *CONFIGS.values())):
            return cast("Config", config)
        raise ConfigError(
            f"a config for ringfence is a backend's name, a file or a config of its own, not "
            f"{type(config).__name__}"
        )
    path = Path(config)
    if path.suffix not in (".toml", ".json"):
        return path.name  # Inspect takes it for a file beside the task's
    try:
        text = path.read_text("utf-8")
        return BackendConfig.parse(
            tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error


async def _hold(settings: Config) -> Backend:
    """Return an open backend, the same for all that hold it."""
    key = (anyio.lowlevel.current_token(), settings)
    if key not in _shared:
        _shared[key] = _Shared(open_backend(settings))
    shared = _shared[key]
    shared.holders += 1
    try:
        async with shared.opening:
            if not shared.is_open:
                await shared.backend.__aenter__()
                shared.is_open = True
    except BaseException:
        await _release(settings)
        raise
    return shared.backend


async def _release(settings: Config) -> None:
    key = (anyio.lowlevel.current_token(), settings)
    shared = _shared.get(key)
    if shared is None:
        return
    shared.holders -= 1
    if shared.holders == 0:
        del _shared[key]
        await shared.backend.aclose()


@contextmanager
def _told() -> Iterator[None]:
    """Tell Inspect of a sandbox that is gone in its own words."""
    try:
        yield
    except (SandboxLostError, SandboxClosedError, StreamBrokenError) as error:
        raise SandboxUnavailableError(str(error)) from error


def _engine_of(sandbox: Sandbox) -> str | None:
    """Return the address of the engine that runs a sandbox."""
    entries = (found.entry for found in inventory.scan())
    return next((entry.engine for entry in entries if entry.id == sandbox.id), None)
