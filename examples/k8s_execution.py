"""Commands in hardened pods of a Kubernetes cluster, each with a warden as its PID 1.

It takes a cluster that `kubectl` reaches too, and an image that the cluster can pull. Without
either this says so and ends.
"""

import sys

import anyio

from ringfence import (
    BackendUnavailableError,
    CreateError,
    ImageError,
    KubernetesConfig,
    Limits,
    Pool,
    PoolConfig,
    SandboxSpec,
    open_backend,
    shell,
)

MIB = 1024 * 1024


async def main() -> None:
    config = KubernetesConfig(
        image=sys.argv[1] if len(sys.argv) > 1 else "python:3.12-slim",
        namespace=sys.argv[2] if len(sys.argv) > 2 else "default",
        memory_bytes=128 * MIB,
        cpus=0.5,
        # runtime_class="gvisor",  # where the cluster has it
    )
    async with open_backend(config) as backend:
        # Each `execute` has a pod of its own, gone when it returns.
        result = await backend.execute("id", ["-u"])
        print("uid inside:", result.stdout_text.strip())

        result = await backend.execute(shell("touch /etc/x; cat /proc/1/mem; exit 3"))
        print("looking around:", result.exit_code, *result.stderr_text.splitlines())

        # A live pod keeps its workspace, and a command costs no request to the cluster.
        async with await backend.create() as sandbox:
            await sandbox.write_file("words.txt", "one\ntwo\nthree\n")
            await sandbox.exec(shell("sort words.txt > sorted.txt"))
            print("sorted:", (await sandbox.read_file("sorted.txt")).decode().split())
            result = await sandbox.exec("sleep", ["60"], timeout=0.5)
            print("too slow:", result.exit_code, result.exit_reason.value)

        # Pods that are ready before they are asked for, each handed out once.
        async with Pool(PoolConfig(factory=backend.create, max_size=2)) as pool:
            await pool.warmup(1)
            print("from the pool:", (await pool.execute("echo", ["ready"])).stdout_text.strip())

        # A pod that can't run is an error that says why.
        try:
            await backend.create(SandboxSpec(limits=Limits(memory_bytes=1 << 50)))
        except CreateError as error:
            print("too large:", error.message.partition(":")[0])

        print(*backend.capabilities.notes, sep="\n")


if __name__ == "__main__":
    try:
        anyio.run(main)
    except (BackendUnavailableError, ImageError) as error:
        sys.exit(f"{error}")
