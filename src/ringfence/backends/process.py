"""Commands as processes of this host: no isolation at all, only order.

Theory of operation. A warden is started per sandbox as a child of this process, over a socket
pair. It is a subreaper, and so is the keeper of each command, so that a command's whole tree can
be found, signalled and killed, also what has called setsid or forked twice. When the socket
closes, because of `aclose` or because this process died, the warden kills everything below it.

Each command gets a session of its own, three descriptors, and an environment of its own; of the
host's it sees PATH alone. Limits are rlimits, which hold each process and not their sum.

What this does not protect against: anything. A program runs as the caller, reads and writes
whatever the caller may, reaches the network, and can kill its own warden. There is no PID
namespace to stop everything at once, so a tree that forks faster than it can be walked can get
away. Where there is no warden (outside Linux) less is left: see `_portable`.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from .. import inventory
from ..backend import Backend, Sandbox
from ..config import ProcessConfig
from ..errors import ConfigError, SandboxClosedError
from ..models import (
    Capabilities,
    Enforced,
    Enforcement,
    Isolation,
    Limits,
    Probe,
    SandboxSpec,
    new_sandbox_id,
)
from ..warden.binary import warden_path
from ..warden.boot import Boot
from ..warden.connection import Connection
from ..warden.order import Order, Resources
from ..warden.sandbox import Host, WardenSandbox
from ..warden.spawner import drain
from ._portable import PORTABLE_CAPABILITIES, PortableSandbox

__all__ = ("CAPABILITIES", "ProcessBackend", "environment", "warden_argv")

_RLIMIT_DATA = "2"  # of what a program allocates; address space would stop Node and Java
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

CAPABILITIES = Capabilities(
    isolation=Isolation.PROCESS,
    kill_tree=False,
    network_modes=("host",),
    terminal=True,
    limits=Enforced(memory_bytes=Enforcement.PER_PROCESS, open_files=Enforcement.PER_PROCESS),
    notes=(
        "It isolates nothing: programs run as the caller, with the caller's files and network.",
        "A tree that forks faster than it is walked can survive a kill.",
        "A program can kill the warden that keeps it; the sandbox is then lost.",
        "Memory and open files are held for each process, not for all of them together.",
    ),
)


class ProcessBackend(Backend):
    """Runs commands as processes of this host. See the module for what that means."""

    name = "process"

    def __init__(self, config: ProcessConfig | None = None) -> None:
        self._config = config or ProcessConfig()
        self._warden = None if self._config.portable else warden_path()
        self._resident: WardenSandbox | None = None
        self._resident_lock = anyio.Lock()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES if self._warden else PORTABLE_CAPABILITIES

    @property
    def default_limits(self) -> Limits:
        return self._config.limits

    def _asked(self) -> frozenset[str]:
        return self._config.limits.asked()

    async def probe(self) -> Probe:
        return Probe(True, details={"warden": str(self._warden or "none on this platform")})

    async def _open(self) -> None:
        work_dir = self._config.work_dir
        if work_dir is not None and not Path(work_dir).is_dir():
            raise ConfigError(
                f"work_dir {str(work_dir)!r} is not a directory", hint="make it first"
            )
        if self._warden is not None:
            await anyio.to_thread.run_sync(inventory.reap)

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        if self._closed:
            raise SandboxClosedError("the backend is closed", backend=self.name)
        scratch = f"{tempfile.gettempdir()}/ringfence-{sandbox_id}"
        work_dir = self._config.work_dir
        workspace = os.path.realpath(work_dir or f"{scratch}/workspace")
        if self._warden is None:
            _make_dirs(scratch)
            return PortableSandbox(spec, limits, sandbox_id, workspace, work_dir is None, scratch)
        order = Order(
            backend=self.name,
            sandbox_id=sandbox_id,
            argv=partial(warden_argv, str(self._warden), workspace, limits),
            prepare=partial(_make_dirs, scratch),
            work_dir=scratch,
            labels=spec.labels,
        )
        boot = Boot(order)
        connection = await boot.connect(limits.start_timeout or 10.0)
        return self._sandbox(boot, connection, spec, limits, scratch, workspace)

    def _sandbox(
        self,
        boot: Boot,
        connection: Connection,
        spec: SandboxSpec,
        limits: Limits,
        scratch: str,
        workspace: str,
    ) -> WardenSandbox:
        return WardenSandbox(
            connection,
            Host(boot.aclose, None, environment(scratch)),
            backend=self.name,
            sandbox_id=boot.order.sandbox_id,
            spec=spec,
            limits=limits,
            capabilities=self.capabilities,
            workspace=workspace,
        )

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        """Share one warden between one-shots where they share a directory anyway."""
        if self._config.work_dir is None or self._warden is None or spec is not None:
            return await self.create(spec)
        resident = self._resident
        if resident is None or resident.connection.lost is not None:
            resident = await self._renew_resident()
        return _Guest(
            resident.connection,
            Host(_nothing, None, resident.host.env),
            backend=self.name,
            sandbox_id=resident.id,
            spec=resident.spec,
            limits=resident.limits,
            capabilities=resident.capabilities,
            workspace=resident.workspace,
        )

    async def _renew_resident(self) -> WardenSandbox:
        """Make the sandbox that one-shots share, unless another of them has done so meanwhile."""
        async with self._resident_lock:
            if self._resident is None or self._resident.connection.lost is not None:
                lost, self._resident = self._resident, None
                if lost is not None:
                    await lost.aclose()
                wanted, limits = self._resolve(None)
                created = await self._create(wanted, limits, new_sandbox_id())
                assert isinstance(created, WardenSandbox)
                self._resident = created
            return self._resident

    async def reap(self) -> int:
        return await anyio.to_thread.run_sync(inventory.reap)

    async def aclose(self) -> None:
        self._closed = True
        with anyio.CancelScope(shield=True):
            if self._resident is not None:
                await self._resident.aclose()
                self._resident = None
            await drain()


def _make_dirs(scratch: str) -> None:
    """Make the directories of one sandbox; the random id makes the name nobody else's."""
    for path in (scratch, f"{scratch}/home", f"{scratch}/tmp", f"{scratch}/workspace"):  # noqa: S108
        os.mkdir(path, 0o700)


class _Guest(WardenSandbox):
    """A one-shot's share of the resident sandbox, which lives on when it is closed."""

    async def aclose(self) -> None:
        self._closed = True


async def _nothing() -> None:
    """Close nothing: the resident sandbox lives on."""


def environment(scratch: str) -> dict[bytes, bytes]:
    """Return the variables of every command; of the host's, PATH alone."""
    home = f"{scratch}/home"
    texts = {
        "PATH": os.environ.get("PATH", _DEFAULT_PATH),
        "HOME": home,
        "TMPDIR": f"{scratch}/tmp",  # noqa: S108 - ours, by mkdtemp
        "XDG_CACHE_HOME": f"{home}/.cache",
        "MPLCONFIGDIR": f"{home}/.cache/matplotlib",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
    return {name.encode(): os.fsencode(value) for name, value in texts.items()}


def warden_argv(warden: str, workspace: str, limits: Limits, resources: Resources) -> list[str]:
    """Build the command line of a sandbox's warden."""
    argv = [warden, "launch"]
    if limits.memory_bytes is not None:
        argv += ["--limit", _RLIMIT_DATA, str(limits.memory_bytes)]
    argv += ["--", warden, "serve", "--workspace", workspace]
    if limits.open_files is not None:
        argv += ["--open-files", str(limits.open_files)]
    if limits.max_age is not None:
        argv += ["--max-age-ms", str(round(limits.max_age * 1000))]
    return argv
