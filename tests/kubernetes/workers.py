"""Another worker of the same namespace, which is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .conftest import Cluster
from .pods import change_lease, config, names

WORKER = """
    import anyio, sys
    from ringfence import SandboxSpec
    from ringfence.config import KubernetesConfig
    from ringfence.registry import open_backend

    async def main():
        config = KubernetesConfig.parse(sys.argv[1])
        async with open_backend(config) as backend:
            sandbox = await backend.create(SandboxSpec(labels={"told": "any text: at all"}))
            await sandbox.exec("touch", ["x"])
            print(sandbox.id, flush=True)
            sys.stdin.read()

    anyio.run(main)
"""


@contextmanager
def killed_afterwards(
    cluster: Cluster, namespace: str, state: str, **settings: Any
) -> Iterator[str]:
    """Let another process make a sandbox, give its id, and kill the process after the block.

    Its lease then lives for an hour, however long the rest of a test takes, or until `run_out`.
    """
    given = config(cluster, namespace, **settings).model_dump_json(exclude_defaults=True)
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER), given],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"RINGFENCE_STATE_DIR": state, "PATH": "/usr/bin:/bin"},
    ) as worker:
        try:
            assert worker.stdout is not None
            name = worker.stdout.readline().strip()
            assert name, "it could not make one"
            for lease in names(cluster, namespace, "leases"):
                change_lease(cluster, namespace, lease, leaseDurationSeconds=3600)
            yield name
        finally:
            worker.send_signal(signal.SIGKILL)
