"""Runs in another package's environment, and does what it is told by lines on its stdin.

`peer_worker.py PEER` says `{"ready": true}`; then, for each line, it does that once and answers
with one line of JSON. `live` runs `/bin/true` in whatever the package keeps open between two
commands; `new` makes a new sandbox for it and clears it away; `look` shows a process's own status
from inside; `burst COUNT SIZE` lets many callers at once share a pool of containers. It needs
nothing but the package, and times itself, so that the talk with it is not counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

LOOK = "cat /proc/self/status"
READABLE = ("/usr", "/bin", "/lib", "/lib64")

Make = Callable[[], Any]

Ran = tuple[int, str]
"""Exit code and output."""


class LlmSandbox:
    """llm-sandbox: its bubblewrap session starts a bwrap for each command."""

    def __init__(self) -> None:
        make = import_module("llm_sandbox").SandboxSession
        backend = import_module("llm_sandbox.const").SandboxBackend.BUBBLEWRAP
        # A bare session: the default makes a virtual environment first, which takes seconds.
        self._make: Make = lambda: make(backend=backend, lang="python", skip_environment_setup=True)
        self._live = self._make()
        self._live.open()

    def live(self, command: str) -> Ran:
        found = self._live.execute_command(command)
        return found.exit_code, found.stdout

    def new(self, command: str) -> Ran:
        with self._make() as session:
            found = session.execute_command(command)
        return found.exit_code, found.stdout


class LlmSandboxDocker:
    """llm-sandbox: its pool of containers. They are used again, by one caller after the other."""

    def burst(self, count: int, size: int) -> dict[str, Any]:
        pools = import_module("llm_sandbox.pool.config")
        session = import_module("llm_sandbox.pool.session").PooledSandboxSession
        pool = import_module("llm_sandbox.pool.factory").create_pool_manager(
            backend=import_module("llm_sandbox.const").SandboxBackend.DOCKER,
            config=pools.PoolConfig(
                max_pool_size=size,
                min_pool_size=0,
                enable_prewarming=False,
                acquisition_timeout=None,
                exhaustion_strategy=pools.ExhaustionStrategy.WAIT,
            ),
            lang="python",
            image=os.environ["RINGFENCE_BENCHMARK_IMAGE"],
            runtime_configs={"command": "sleep 3600", "network_mode": "none"},
            skip_environment_setup=True,
        )

        def one(number: int) -> float:
            began = time.perf_counter()
            with session(pool) as found:
                done = found.execute_command(f"/bin/echo {number}")
            if (done.exit_code, done.stdout.strip()) != (0, str(number)):
                raise RuntimeError(f"echo gave {done!r}")
            return time.perf_counter() - began

        began = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            took = list(threads.map(one, range(count)))
        total = time.perf_counter() - began
        pool.close()
        return {"seconds": total, "each": took}


class SweRex:
    """SWE-ReX: a container with its own server inside for each caller. It has no pool."""

    def __init__(self) -> None:
        os.environ["SWE_REX_LOG_STREAM_LEVEL"] = "ERROR"  # nobody reads what it writes meanwhile

    def burst(self, count: int, size: int) -> dict[str, Any]:
        make = import_module("swerex.deployment.docker").DockerDeployment
        command = import_module("swerex.runtime.abstract").Command
        came = time.perf_counter()

        async def run(number: int) -> float:
            box = make(
                image=os.environ["RINGFENCE_BENCHMARK_IMAGE"],
                pull="never",
                docker_args=["--label", os.environ["RINGFENCE_BENCHMARK_LABEL"]],
                remove_container=True,
                startup_timeout=120.0,
            )
            try:
                await box.start()
                done = await box.runtime.execute(command(command=["/bin/echo", str(number)]))
                took = time.perf_counter() - came
            finally:
                await box.stop()
            if (done.exit_code, done.stdout.strip()) != (0, str(number)):
                raise RuntimeError(f"echo gave {done!r}")
            return took

        # A loop for each: what it asks of docker blocks the loop that it runs in.
        with ThreadPoolExecutor(size) as threads:
            took = list(threads.map(lambda number: asyncio.run(run(number)), range(count)))
        return {"seconds": time.perf_counter() - came, "each": took}


class DeepagentsSandbox:
    """deepagents-sandbox: a bwrap for each command, a directory for each sandbox."""

    def __init__(self) -> None:
        self._make: Make = import_module("deepagents_sandbox").NativeSandbox
        self._loop = asyncio.new_event_loop()
        self._sandbox = self._make()
        self._loop.run_until_complete(self._sandbox.__aenter__())

    def live(self, command: str) -> Ran:
        found = self._loop.run_until_complete(self._sandbox.execute(command))
        return found.exit_code, found.stdout

    def new(self, command: str) -> Ran:
        async def run() -> Any:
            async with self._make() as sandbox:
                return await sandbox.execute(command)

        found = self._loop.run_until_complete(run())
        return found.exit_code, found.stdout


class Sandlock:
    """sandlock: Landlock and seccomp on a child; nothing is kept between two commands."""

    def __init__(self) -> None:
        make = import_module("sandlock").Sandbox
        self._make: Make = lambda: make(fs_readable=[*READABLE, "/proc", "/dev"])

    def new(self, command: str) -> Ran:
        found = self._make().run(_argv(command), timeout=30)
        return found.exit_code, found.stdout.decode()


class NonoPy:
    """nono-py: Landlock on a child; nothing is kept between two commands."""

    def __init__(self) -> None:
        self._nono: Any = import_module("nono_py")

    def new(self, command: str) -> Ran:
        nono = self._nono
        allowed = nono.CapabilitySet()
        for path in (*READABLE, "/proc"):
            allowed.allow_path(path, nono.AccessMode.READ)
        allowed.block_network()
        found = nono.sandboxed_exec(allowed, _argv(command), cwd="/usr", timeout_secs=30.0)
        return found.exit_code, found.stdout.decode()


def _argv(command: str) -> list[str]:
    return [command] if " " not in command else ["/bin/sh", "-c", command]


PEERS: dict[str, Callable[[], Any]] = {
    "llm-sandbox": LlmSandbox,
    "llm-sandbox[docker]": LlmSandboxDocker,
    "swe-rex": SweRex,
    "deepagents-sandbox": DeepagentsSandbox,
    "sandlock": Sandlock,
    "nono-py": NonoPy,
}


def main() -> None:
    peer = PEERS[sys.argv[1]]()
    answers = sys.stdout
    sys.stdout = sys.stderr  # what a package prints is no answer of ours
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "burst":
            print(json.dumps(peer.burst(*map(int, numbers))), file=answers, flush=True)
            continue
        run = peer.new if what == "new" or not hasattr(peer, "live") else peer.live
        began = time.perf_counter()
        code, output = run(LOOK if what == "look" else "/bin/true")
        took = time.perf_counter() - began
        answer = {"seconds": took, "exit_code": code, "output": output}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
