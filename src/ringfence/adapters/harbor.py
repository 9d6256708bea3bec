"""An environment for Harbor: `ringfence.adapters.harbor:HarborEnvironment`, as its import path.

Each trial runs in a hardened container of its task's image. What Harbor has outside of the
workspace (`/logs`, `/tests`, `/solution`) are memory file systems there. Three things are not as in
Harbor's own environments, since nothing in a sandbox is root or writes to the image's own files: a
command runs as the sandbox's one user also where Harbor says root, a task works in `/workspace`,
and its image is a finished one that is not built here.
"""

from __future__ import annotations

import shlex
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Literal, cast

from ._missing import missing

try:
    from harbor.environments.base import ExecResult
    from harbor.environments.capabilities import (
        EnvironmentCapabilities,
        EnvironmentResourceCapabilities,
    )
    from harbor.environments.options import EnvironmentOptions
    from harbor.models.task.config import NetworkMode
    from harbor.models.trial.config import ResourceMode
except ModuleNotFoundError as error:
    raise missing("harbor", error) from error

from pydantic import Field

from ..backend import workspace_path
from ..config import ContainerConfig
from ..errors import (
    ConfigError,
    PathError,
    UnsupportedError,
)
from ..models import TIMEOUT_MARKER, Chunk, Command, Network, SandboxSpec
from ..registry import open_backend
from ._commands import as_long_as_it_lives
from ._words import cut_note, with_note
from .harbor_files import FilesEnvironment

__all__ = ("HarborEnvironment", "HarborOptions")

MIB = 1024 * 1024
OUTPUT_BYTES = 16 * MIB
"""Bytes kept of each stream of a command."""

_PLACE_FILES = 50_000  # in each of these at most
_PLACES = ("/logs", "/tests", "/solution", "/runtime")
_ROOT = (None, "root", 0, "0")
_USER = ContainerConfig.model_fields["user"].default


class HarborOptions(EnvironmentOptions):
    """The options of an environment, given with `--ek name=value`.

    Attributes:
        image: What trials run in, instead of the image of the task.
        network: `task` for what the task asks for, where `public` is a network of its own without
            a way to this machine, its neighbours or metadata services; or `none` for none at all.
        place_mb: The size of each of `/logs`, `/tests`, `/solution` and `/runtime`, in MiB. They
            and the workspace are in memory and count as such.
        max_age_sec: Seconds after which a trial's sandbox ends.
        container: More settings of `ContainerConfig`.
    """

    image: str | None = None
    network: Literal["task", "none"] = "task"
    place_mb: int = Field(default=256, ge=1)
    max_age_sec: float = Field(default=6 * 3600.0, gt=0)
    container: dict[str, Any] = Field(default_factory=dict)


class HarborEnvironment(FilesEnvironment):
    """One trial's sandbox; Harbor makes it, starts it and stops it."""

    options_model: ClassVar[type[EnvironmentOptions] | None] = HarborOptions

    _held: AsyncExitStack | None = None

    @staticmethod
    def type() -> str:
        """Its name."""
        return "ringfence"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What a task can ask for."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Limits are the kernel's; nothing is reserved."""
        names = ("cpu_limit", "memory_limit", "fractional_cpus")
        return EnvironmentResourceCapabilities(**dict.fromkeys(names, True))

    @property
    def _wanted(self) -> HarborOptions:
        return cast("HarborOptions", self.options)

    @property
    def _image(self) -> str:
        return self._wanted.image or self.task_env_config.docker_image or ""

    def _validate_definition(self) -> None:
        if not self._image:
            raise UnsupportedError(
                f"task {self.environment_name!r} has no finished image, and none is built here",
                hint="set docker_image in its [environment], or the option `image`",
            )
        if self._host_mounts:
            raise UnsupportedError("a trial has no directory of this machine", hint="copy it in")
        workdir = self.task_env_config.workdir
        if workdir is not None and not _is_in_workspace(workdir):
            raise UnsupportedError(
                f"the task works in {workdir}, where it can't write here",
                hint="set workdir in its [environment] to /workspace",
            )

    # Its life.

    async def start(self, force_build: bool) -> None:
        """Make the sandbox, and bring the task's files into it.

        Args:
            force_build: Fetch the image even if it is there.

        Raises:
            ConfigError: The options can't be right.
            SandboxError: The backend can't run here, or the sandbox could not be made.
        """
        if self._sandbox is not None:
            raise ConfigError("the environment has been started already")
        config = self._config(force_build)
        async with AsyncExitStack() as held:
            backend = await held.enter_async_context(open_backend(config))
            spec = as_long_as_it_lives(backend.default_limits)
            made = await backend.create(SandboxSpec(limits=spec.limits, network=self._network()))
            self._sandbox = await held.enter_async_context(made)
            try:
                await self.ensure_dirs(self._mount_targets(writable_only=True))
                await self._upload_environment_dir_after_start()
            except BaseException:
                self._sandbox = None
                raise
            self._held = held.pop_all()

    async def stop(self, delete: bool) -> None:
        """End the sandbox, whatever `delete` says: it is not there without its owner."""
        self._sandbox = None
        held, self._held = self._held, None
        if held is not None:
            await held.aclose()

    def _config(self, force_build: bool) -> ContainerConfig:
        wanted = self._wanted
        cpus = self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT)
        memory = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        storage = self._effective_storage_mb
        uid, _, gid = str(wanted.container.get("user", _USER)).partition(":")
        owner = f"uid={uid},gid={gid},mode=0777"  # Harbor wants to change the mode itself, too
        files = f"nr_inodes={_PLACE_FILES}"
        options = f"rw,exec,nosuid,nodev,{owner},{files},size={wanted.place_mb * MIB}"
        settings: dict[str, Any] = {
            "image": self._image,
            "pull": "always" if force_build else "missing",
            "tmpfs": dict.fromkeys(_PLACES, options),
            "max_age": float(wanted.max_age_sec),
            "output_bytes": OUTPUT_BYTES,
            "cpus": None if cpus is None else float(cpus),
            "memory_bytes": None if memory is None else memory * MIB,
            "workspace_bytes": None if storage is None else storage * MIB,
        }
        return ContainerConfig(**{**settings, **wanted.container})

    def _network(self) -> Network:
        is_public = self.network_policy.network_mode is NetworkMode.PUBLIC
        return Network("bridge" if is_public and self._wanted.network == "task" else "none")

    # Commands.

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a shell command; one whose time was up is a result with 124 and a line on stderr.

        Args:
            command: For `bash -c`, or `sh -c` where there is no bash.
            cwd: Where; default: the task's workdir, or `/workspace`.
            env: Variables, over those of the task.
            timeout_sec: Seconds; default: as long as the sandbox lives.
            user: Nobody, or root, which is the sandbox's one user here.

        Raises:
            UnsupportedError: `user` is somebody else.
            SandboxError: The sandbox could not run it.
        """
        sandbox = self._open()
        if (who := self._resolve_user(user)) not in _ROOT:
            raise UnsupportedError(f"there is no user {who!r} in the sandbox, which has one alone")
        script, where = command, cwd or self.task_env_config.workdir
        if where is not None and not _is_in_workspace(where):
            script, where = f"cd -- {shlex.quote(where)} || exit 126\n{command}", None
        wanted = Command(
            ("bash", "-c", script),
            cwd=where,
            env=self._merge_env(env) or {},
            timeout=sandbox.limits.max_timeout if timeout_sec is None else timeout_sec,
            fallback="sh",
        )
        callback = self._output_callback()

        async def tell(chunk: Chunk) -> None:
            if callback is not None and chunk.text:
                await callback(chunk.text, chunk.stream)

        result = await sandbox.exec(wanted, on_output=tell if callback else None)
        stderr = with_note(result.stderr_text, cut_note(result))
        if result.timed_out:
            stderr = with_note(stderr, f"{TIMEOUT_MARKER}\n")
        return ExecResult(stdout=result.stdout_text, stderr=stderr, return_code=result.exit_code)


def _is_in_workspace(path: str) -> bool:
    try:
        workspace_path(path, "/workspace")
    except PathError:
        return False
    return True
