"""Commands in hardened containers of a Docker engine, each with a warden as its PID 1.

For code that you don't trust, with an image of your choice. It needs an engine and an image:
`ringfence image build` makes the default one. Without either this says so and ends.
"""

import sys

import anyio

from ringfence import (
    BackendUnavailableError,
    Command,
    ContainerConfig,
    Limits,
    SandboxSpec,
    open_backend,
    shell,
)

MIB = 1024 * 1024


async def main() -> None:
    config = ContainerConfig(
        image=sys.argv[1] if len(sys.argv) > 1 else "ringfence-sandbox:latest",
        memory_bytes=256 * MIB,
        cpus=1.0,
        pids=64,
        # runtime="runsc",  # gVisor, where it is installed
    )
    async with open_backend(config) as backend:
        # Each `execute` has a clean container of its own, gone when it returns.
        result = await backend.execute("id", ["-u"])
        print("uid inside:", result.stdout_text.strip())

        result = await backend.execute(shell("touch /etc/x; ls /sys/class/net; cat /proc/1/mem"))
        print("looking around:", *result.stdout_text.split(), *result.stderr_text.splitlines())

        # What kills a program is in the result, also in a container that lives on.
        async with await backend.create(SandboxSpec(limits=Limits(memory_bytes=32 * MIB))) as small:
            result = await small.exec("tail", ["/dev/zero"])  # one endless line
            print("too much memory:", result.exit_code, result.exit_reason.value)
            print("and it lives on:", (await small.exec("echo", ["yes"])).stdout_text.strip())

        # A live container keeps its workspace from one command to the next.
        async with await backend.create() as sandbox:
            await sandbox.write_file("words.txt", "one\ntwo\nthree\n")
            await sandbox.exec(shell("mkdir out; sort words.txt > out/sorted.txt"))
            print("sorted:", (await sandbox.read_file("out/sorted.txt")).decode().split())

            upper = Command(["tr", "a-z", "A-Z"], stdin="quiet please")
            print("by stdin:", (await sandbox.exec(upper)).stdout_text)

            async with sandbox.stream(shell("for i in 1 2 3; do echo $i; sleep 0.1; done")) as run:
                async for chunk in run:
                    print(f"{chunk.stream}:", chunk.text.strip())

        print(*backend.capabilities.notes, sep="\n")


if __name__ == "__main__":
    try:
        anyio.run(main)
    except BackendUnavailableError as error:
        print("no containers here:", error)
