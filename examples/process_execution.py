"""Commands as plain processes: quick and orderly, and no isolation at all.

For code that you trust, or inside of something that isolates already. What you get over
`subprocess`: a deadline for the whole tree of processes, output apart and bounded, a clean
environment, and one result whatever the backend.
"""

import tempfile
from pathlib import Path

import anyio

from ringfence import Command, ProcessConfig, open_backend, shell


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "numbers.txt").write_text("3\n1\n2\n", "utf-8")

        # `work_dir` is the workspace, and stays when the sandbox is closed.
        async with open_backend(ProcessConfig(work_dir=Path(directory))) as backend:
            print("isolation:", backend.capabilities.isolation.name.lower())

            result = await backend.execute("sort", ["-n", "numbers.txt"])
            print("sorted:", result.stdout_text.split())

            # A program that fails is a result, not an exception; `check()` makes it one.
            result = await backend.execute("ls", ["no-such-file"])
            print("failed:", result.exit_code, result.stderr_text.strip())

            # The deadline ends everything that the command has started. The output stays.
            result = await backend.execute(shell("echo begun; sleep 60 & sleep 60", timeout=0.5))
            print("timed out:", result.timed_out, result.exit_code, result.stdout_text.strip())

            # Of the host's variables only PATH is passed on.
            result = await backend.execute(Command(["env"], env={"GREETING": "hello"}))
            names = sorted(line.split("=")[0] for line in result.stdout_text.splitlines())
            print("variables:", ", ".join(names))

            # A live sandbox: several commands, files, and output as it comes.
            async with await backend.create() as sandbox:
                await sandbox.write_file("count.sh", "for i in 1 2 3; do echo $i; sleep 0.1; done")
                async with sandbox.stream("sh", ["count.sh"]) as run:
                    async for chunk in run:
                        print(f"{chunk.stream}:", chunk.text.strip())
                print("took", f"{run.result.duration_s:.1f} s")


if __name__ == "__main__":
    anyio.run(main)
