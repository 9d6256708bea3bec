"""Pods of a Kubernetes cluster: a command in a live one, one that is ready, and a cold one."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time

import anyio
import anyio.to_thread

from ringfence import Pool, PoolConfig
from ringfence.backend import Sandbox
from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.config import KubernetesConfig
from ringfence.errors import BackendUnavailableError

from ..cluster import PlainCluster
from ..measure import TOTAL, Side, Times, alternate, check
from ..report import Line, compare
from ..settings import Settings
from .live import exec_side

__all__ = ("run",)

_ECHO = ["/bin/echo", "hello"]
_SAID = b"hello\n"
_IMAGE = "ringfence-test:minimal"  # which the cluster of the project's own tests has
_READY_SECONDS = 120.0
_KUBECTL_SECONDS = 120.0


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure against `pods/exec`, against a cold Job of ours, and against `kubectl`."""
    config = KubernetesConfig(
        image=os.environ.get("RINGFENCE_BENCHMARK_POD_IMAGE", _IMAGE),
        pull_policy="IfNotPresent",
        cpu_request=0.01,
        memory_bytes=64 << 20,
    )
    backend = KubernetesBackend(config)
    probe = await backend.probe()
    if not probe.ok:
        raise BackendUnavailableError(f"the rows about pods need a cluster: {probe.reason}")
    async with backend, PlainCluster() as cluster:
        async with await backend.create() as sandbox:
            lines = [await _live(settings, sandbox, cluster)]
        lines.append(await _warm(settings, backend))
        if (kubectl := shutil.which("kubectl")) is None:
            not_run.append("a cold Job against kubectl: there is no kubectl here")
        else:
            lines.append(await _cold(settings, backend, kubectl, config.image))
    return lines


async def _live(settings: Settings, sandbox: Sandbox, cluster: PlainCluster) -> Line:
    pod = await cluster.pod_of(sandbox.id)

    async def by_api() -> Times:
        return await cluster.exec(pod, _ECHO, _SAID)

    sides = {"ours": exec_side(sandbox, _ECHO, _SAID), "pods/exec": by_api}
    # The node goes on clearing an exec of the API away after it has answered.
    taken = await alternate(sides, settings.rounds(50, 3), pause=settings.pause, warm_up=3)
    return compare(
        "/bin/echo in a live pod",
        taken,
        limit=1 / 10,
        note="in the same pod; the API by its own client library, over kept connections",
    )


def _cold_side(backend: KubernetesBackend) -> Side:
    async def side() -> Times:
        began = time.perf_counter()
        result = await backend.execute(_ECHO[0], _ECHO[1:])
        took = time.perf_counter() - began
        check(result.ok and result.stdout == _SAID, f"execute() gave {result}")
        return {TOTAL: took}

    return side


async def _warm(settings: Settings, backend: KubernetesBackend) -> Line:
    async with Pool(PoolConfig(factory=backend.create, max_size=2)) as pool:
        await pool.warmup(1)

        async def ours() -> Times:
            with anyio.fail_after(_READY_SECONDS):
                while pool.ready < 1 or pool.size != pool.ready:
                    await anyio.sleep(0.01)
            await anyio.sleep(settings.pause)
            began = time.perf_counter()
            sandbox = await pool.acquire()
            result = await sandbox.exec(_ECHO[0], _ECHO[1:])
            took = time.perf_counter() - began
            await pool.release(sandbox)
            check(result.ok and result.stdout == _SAID, f"exec() gave {result}")
            return {TOTAL: took}

        sides = {"ours": ours, "a cold Job of ours": _cold_side(backend)}
        taken = await alternate(sides, settings.rounds(15, 1), pause=settings.pause)
    return compare(
        "a ready pod claimed, and a command",
        taken,
        limit=1 / 10,
        note="against create, run and delete of a Job; the pool makes its next one meanwhile",
    )


async def _cold(settings: Settings, backend: KubernetesBackend, kubectl: str, image: str) -> Line:
    async def theirs() -> Times:
        return await anyio.to_thread.run_sync(_by_kubectl, kubectl, image)

    sides = {"ours": _cold_side(backend), "kubectl": theirs}
    taken = await alternate(sides, settings.rounds(15, 1), pause=settings.pause)
    return compare(
        "a cold Job for one command",
        taken,
        limit=1.0,
        note="ours hardened, deleted at the end; theirs `kubectl create job`, `wait` for its "
        "completion and `logs`, with no hardening, and deleted off the clock",
    )


def _by_kubectl(kubectl: str, image: str) -> Times:
    name = f"ringfence-benchmark-{secrets.token_hex(4)}"
    job = f"job/{name}"
    began = time.perf_counter()
    try:
        _kubectl(kubectl, "create", "job", name, f"--image={image}", "--", *_ECHO)
        _kubectl(kubectl, "wait", "--for=condition=complete", "--timeout=60s", job)
        output = _kubectl(kubectl, "logs", job)
        took = time.perf_counter() - began
    finally:
        _kubectl(kubectl, "delete", "--wait=false", "--ignore-not-found", job)
    check(output == _SAID, f"kubectl logs gave {output!r}")
    return {TOTAL: took}


def _kubectl(kubectl: str, *words: str) -> bytes:
    done = subprocess.run([kubectl, *words], capture_output=True, timeout=_KUBECTL_SECONDS)
    check(done.returncode == 0, f"kubectl {words[0]} failed: {done.stderr!r:.300}")
    return done.stdout
