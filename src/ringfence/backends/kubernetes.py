"""A pod of a Kubernetes cluster, made by a Job, with a warden as its PID 1.

Theory of operation. A sandbox is one Job with one pod, which is never made again: numeric user, no
capability, no way to gain privileges, the runtime's system call filter and the warden's own on top
of it, read-only root, sized volumes, limits, no service account's token. Its entry point is the
warden, a static program that comes from a ConfigMap which nobody can change, so any image will do,
also one without a shell. Commands go over the streams of one process that `pods/exec` runs in the
pod and that hands them to the warden (`warden connect`): nothing of the API is asked for them, and
nothing of what they say lands in a log. (With `transport="logs"` there is no warden: see
`_kube_logs`.)

    this process === API server === kubelet === process in the pod --> warden (PID 1) --- commands

Who kills: the warden a command's tree, on deadline or request; the kernel everything, when PID 1
ends; PID 1 ends when it is told to, when nobody takes its stream up again, or at its maximum age.
Behind it stand the pod's deadline and the Job's. The cluster removes a Job that has ended, and
`reap` what nobody owns. One watch for all pods of a backend tells what happens to them.

What survives: within a sandbox, the workspace and left-overs; between two, nothing. One ConfigMap
with the warden stays for each version of it, and the policy that denies all traffic.

What this does not protect against: faults of the node's kernel, which pods share (with a runtime
class for gVisor or Kata that is another's); the cluster itself, its administrators, and whoever may
exec into pods or change them in the namespace; a network that does not enforce policies, where a
program reaches whatever pods can reach; as many processes as the node allows.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from .. import inventory
from ..backend import Backend, Launch, Sandbox
from ..config import KubernetesConfig
from ..errors import (
    ConfigError,
    CreateError,
    SandboxClosedError,
    SandboxError,
    UnsupportedError,
)
from ..models import Capabilities, Limits, Probe, SandboxSpec, new_sandbox_id
from ..warden.sandbox import Host, WardenSandbox
from ..warden.stream import asyncio_loop
from ._kube_api import Api
from ._kube_body import ENVIRONMENT, Plan, job_body
from ._kube_box import Box
from ._kube_facts import Facts, learn
from ._kube_job import Job
from ._kube_lease import OwnerLease
from ._kube_limits import checked_limits, one_shot_limits
from ._kube_log_process import LogJob
from ._kube_logs import LogSandbox
from ._kube_objects import own_labels
from ._kube_reap import Kept, kept_in, looking_into, reap_namespace
from ._kube_setup import make_ready
from ._kube_watch import Watch
from ._undo import UNDO_SECONDS, made_or_undone

__all__ = ("KubernetesBackend",)

_MIB = 1 << 20

DEFAULT_LIMITS = Limits(
    memory_bytes=256 * _MIB,
    cpus=0.5,
    open_files=1024,
    workspace_bytes=128 * _MIB,  # in memory, and so below its limit
    tmp_bytes=64 * _MIB,
    start_timeout=60.0,  # for a node to be found, and an image to be pulled
)


class KubernetesBackend(Backend):
    """Runs commands in pods.

    Args:
        config: Its settings; the image is required.
    """

    name = "kubernetes"

    def __init__(self, config: KubernetesConfig | None = None) -> None:
        self._config = config or KubernetesConfig()
        self._api: Api | None = None
        self._facts = Facts()
        self._lease: OwnerLease | None = None
        self._watch: Watch | None = None
        self._jobs: dict[str, Job] = {}
        self._warden = ""
        self._store = ""

    @property
    def capabilities(self) -> Capabilities:
        return self._facts.capabilities(self._config)

    @property
    def default_limits(self) -> Limits:
        return self._config.limits.over(DEFAULT_LIMITS)

    def _asked(self) -> frozenset[str]:
        return self._config.limits.asked()

    async def probe(self) -> Probe:
        try:
            api, facts = await self._reach()
        except SandboxError as error:
            return Probe(False, error.message, error.hint or "")
        with anyio.CancelScope(shield=True):
            await api.aclose()
        return Probe(True, details={**facts.details, "image": self._config.image})

    async def _reach(self) -> tuple[Api, Facts]:
        """Reach the cluster and find out whether we may do there what has to be done."""
        if asyncio_loop() is None:
            raise UnsupportedError(
                "the kubernetes backend runs on asyncio only, since its client library does",
                backend=self.name,
                hint="the bubblewrap backend runs on trio too",
            )
        api = Api(self._config)
        try:
            await api.open()
            return api, await learn(api, self._config)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await api.aclose()
            raise

    async def _open(self) -> None:
        try:
            await self._prepare()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

    async def _prepare(self) -> None:
        if not self._config.image:
            raise ConfigError(
                "the kubernetes backend needs an image",
                backend=self.name,
                hint="any that the cluster can pull: image='python:3.12-slim', for one",
            )
        self._api, self._facts = await self._reach()
        await anyio.to_thread.run_sync(inventory.owner)
        self._store = await anyio.to_thread.run_sync(inventory.store_id)
        self._warden = await make_ready(self._api, self._config)
        self._lease = OwnerLease(self._api, self._config, self._store)
        await self._lease.take()
        self._watch = Watch(self._api, self._config.namespace, self._lease.name, self._jobs)
        self._watch.start()

    def _resolve(self, spec: SandboxSpec | None) -> tuple[SandboxSpec, Limits]:
        wanted, limits = super()._resolve(spec)
        asked = wanted.limits.asked() | self._asked()
        return wanted, checked_limits(limits, asked, self._config)

    async def _create(self, spec: SandboxSpec, limits: Limits, sandbox_id: str) -> Sandbox:
        return await self._begin(spec, limits, sandbox_id, self._config.reconnect_timeout)

    async def _one_shot(self, spec: SandboxSpec | None) -> Sandbox:
        wanted, limits = self._resolve(spec)
        return await self._begin(wanted, one_shot_limits(limits), new_sandbox_id(), 0.0)

    async def _begin(
        self, spec: SandboxSpec, limits: Limits, sandbox_id: str, orphan_seconds: float
    ) -> Sandbox:
        """Make a sandbox that outlives the end of its stream by so much."""
        api = self._api
        if api is None or self._watch is None:
            raise SandboxClosedError("the backend is not open", backend=self.name)
        work = self._make(api, spec, limits, sandbox_id, orphan_seconds)
        return await made_or_undone(api.tasks, work, cuts=True)

    async def _make(
        self, api: Api, spec: SandboxSpec, limits: Limits, sandbox_id: str, orphan_seconds: float
    ) -> Sandbox:
        if self._config.transport == "logs":
            return LogSandbox(
                partial(self._make_log, api, spec, limits),
                sandbox_id=sandbox_id,
                spec=spec,
                limits=limits,
                capabilities=self.capabilities,
            )
        plan = self._plan(api, spec, limits, sandbox_id, orphan_seconds)
        put_away = partial(self._put_away, sandbox_id)
        box = Box(api, sandbox_id, self._config, put_away, resumable=orphan_seconds > 0)
        await self._up(api, box, plan)
        try:
            box.check_protection(int(self._config.user.partition(":")[0]))
        except CreateError:
            await box.discard()
            raise
        sandbox = WardenSandbox(
            box.connection,
            Host(box.aclose, None, ENVIRONMENT, resume=box.resume),
            backend=self.name,
            sandbox_id=sandbox_id,
            spec=spec,
            limits=limits,
            capabilities=self.capabilities,
        )
        weakref.finalize(sandbox, box.abandon, asyncio.get_running_loop()).atexit = False
        return sandbox

    async def _make_log(
        self,
        api: Api,
        spec: SandboxSpec,
        limits: Limits,
        name: str,
        launch: Launch,
        shown: Mapping[str, Any],
    ) -> LogJob:
        plan = self._plan(api, spec, limits, name, 0.0)
        longest = launch.timeout if launch.timeout is not None else limits.max_age or 0
        plan = replace(plan, deadline=longest + (limits.start_timeout or 0), **shown)
        job = LogJob(api, name, self._config, partial(self._put_away, name))
        await self._up(api, job, plan)
        return job

    async def _up(self, api: Api, job: Job, plan: Plan) -> None:
        """Make a Job, noted before it is made, so that whoever comes next knows whose it is."""
        labels = dict(plan.told)
        entry = inventory.Entry(job.name, self.name, engine=api.where, labels=labels)
        inventory.owner().add(entry)
        self._jobs[job.name] = job
        try:
            await job.make(job_body(plan, self._config), plan.limits.start_timeout or 60.0)
        except BaseException:
            with anyio.move_on_after(UNDO_SECONDS, shield=True):
                await job.discard()
            raise

    def _plan(
        self, api: Api, spec: SandboxSpec, limits: Limits, sandbox_id: str, orphan_seconds: float
    ) -> Plan:
        assert self._lease is not None
        deadline = (limits.max_age or 0) + (limits.start_timeout or 0)
        return Plan(
            sandbox_id=sandbox_id,
            limits=limits,
            warden=self._warden,  # none with the transport `logs`
            labels=own_labels(sandbox_id, self._store, self._lease.name, api.now(), deadline),
            told=dict(spec.labels),
            await_seconds=limits.start_timeout or 60.0,
            orphan_seconds=orphan_seconds,
            deadline=deadline,
            version=self._facts.version,
        )

    def _put_away(self, sandbox_id: str) -> None:
        self._jobs.pop(sandbox_id, None)

    async def reap(self) -> int:
        async with looking_into(self._config, self._api) as api:
            return await reap_namespace(api, self._config.namespace)

    async def sandboxes(self) -> list[Kept]:
        """Return the sandboxes in the namespace, whoever made them, the oldest first.

        Raises:
            BackendUnavailableError: The cluster can't be reached, or does not let us look.
        """
        async with looking_into(self._config, self._api) as api:
            return await kept_in(api, self._config.namespace)

    async def aclose(self) -> None:
        api, self._api = self._api, None
        if api is None:
            return
        with anyio.CancelScope(shield=True):
            for job in list(self._jobs.values()):
                api.tasks.spawn(job.discard())
            await api.tasks.drain()
            if self._watch is not None:
                await self._watch.aclose()
                self._watch = None
            if self._lease is not None:
                await self._lease.release()
                self._lease = None
            await api.aclose()
