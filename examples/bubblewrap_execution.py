"""Commands in a jail of Linux namespaces: no daemon, no network, nothing of yours to see.

For code that you don't trust. It needs Linux and user namespaces; `ringfence doctor` says whether
they are to be had here.
"""

import anyio

from ringfence import BubblewrapConfig, Command, Limits, SandboxSpec, open_backend, shell

MIB = 1024 * 1024


async def main() -> None:
    config = BubblewrapConfig(memory_bytes=256 * MIB, pids=64, timeout=10.0)
    async with open_backend(config) as backend:
        # Each `execute` has a clean jail of its own, gone when it returns.
        result = await backend.execute("id", ["-u"])
        print("uid inside:", result.stdout_text.strip())

        result = await backend.execute(shell("cat /etc/shadow; ls /home /root; ip addr"))
        print("looking around:", *result.stderr_text.splitlines(), sep="\n    ")

        # Input by stdin: bytes, text, or an async iterable.
        result = await backend.execute(Command(["tr", "a-z", "A-Z"], stdin="quiet please"))
        print("by stdin:", result.stdout_text)

        # Limits hold the jail as a whole. What kills a program is in the result.
        greedy = SandboxSpec(limits=Limits(memory_bytes=32 * MIB))
        result = await backend.execute("tail", ["/dev/zero"], spec=greedy)  # one endless line
        print("too much memory:", result.exit_code, result.exit_reason.value)

        # A live jail keeps its workspace from one command to the next.
        async with await backend.create() as sandbox:
            await sandbox.write_file("words.txt", "one\ntwo\nthree\n")
            await sandbox.exec(shell("mkdir out; sort words.txt > out/sorted.txt"))
            print("sorted:", (await sandbox.read_file("out/sorted.txt")).decode().split())

            async with sandbox.stream(shell("for i in 1 2 3; do echo $i; sleep 0.1; done")) as run:
                async for chunk in run:
                    print(f"{chunk.stream}:", chunk.text.strip())

            listing = await sandbox.list_files()
            print("in the workspace:", ", ".join(entry.name for entry in listing.entries))

        held = backend.capabilities.limits
        print("held here:", ", ".join(f"{name} {how.value}" for name, how in vars(held).items()))


if __name__ == "__main__":
    anyio.run(main)
