"""The main job: a stranger's report on real data, made in a jail, watched, and brought out.

The job is `untrusted/report.py`: it reads a year of sales, draws plots, writes a report, and then
looks for what it can steal. Run it with `make run`; what it wrote is in `ringfence-output`.
"""

import importlib.util
import os
import sys
from pathlib import Path

import anyio

from ringfence import (
    BackendUnavailableError,
    BubblewrapConfig,
    Command,
    Result,
    Sandbox,
    SandboxSpec,
    open_backend,
)
from ringfence.export import ExportReport, export_workspace, readable
from ringfence.interpreter import Interpreter, find_interpreter

HERE = Path(__file__).parent
JOB = HERE / "untrusted" / "report.py"
DATA = HERE / "data" / "sales.csv"
OUTPUT = Path("ringfence-output")

SECRET = "SHOP_API_TOKEN"
MIB = 1024 * 1024

# A limit that is asked for and can't be held is an error. That of CPU is left to the default, for
# not everybody may make the cgroup that it takes.
CONFIG = BubblewrapConfig(memory_bytes=512 * MIB, pids=64, workspace_bytes=64 * MIB, timeout=120.0)


async def main() -> int:
    if importlib.util.find_spec("matplotlib") is None:
        print("The job needs matplotlib: pip install 'ringfence[examples]'", file=sys.stderr)
        return 1
    os.environ[SECRET] = "what the job must not see"
    # The job may use what this interpreter's environment has installed: shown to it, read-only.
    python = find_interpreter(sys.executable)
    spec = SandboxSpec(mounts=python.mounts)
    say(f"A stranger's job, {JOB.name}, is to report on {DATA.name} ({DATA.stat().st_size:,} B).")
    try:
        async with open_backend(CONFIG) as backend, await backend.create(spec) as sandbox:
            describe(sandbox)
            result = await run_job(sandbox, python)
            report = await export_workspace(sandbox, OUTPUT)
    except BackendUnavailableError as error:
        print(f"There is no jail on this machine: {error}", file=sys.stderr)
        print("`ringfence doctor` says more.", file=sys.stderr)
        return 1
    say("The jail is gone, with all that was in it.")
    return conclude(result, report)


async def run_job(sandbox: Sandbox, python: Interpreter) -> Result:
    """Give the job its data and run it, printing what it prints as it prints it."""
    await sandbox.write_file(JOB.name, JOB.read_bytes())
    await sandbox.write_file(DATA.name, DATA.read_bytes())
    argv = [python.path, "-u", JOB.name, SECRET, str(HERE.resolve())]
    say("It begins. What it says:")
    print()
    at_line_start = True
    async with sandbox.stream(Command(argv)) as run:
        async for chunk in run:
            for line in chunk.text.splitlines(keepends=True):
                indent = "    " if at_line_start and line.strip() else ""
                print(indent + line, end="", flush=True)
                at_line_start = line.endswith("\n")
    return run.result


def describe(sandbox: Sandbox) -> None:
    limits = sandbox.limits
    say(f"Its jail, {sandbox.id} by {sandbox.backend}: no network, and a file system of its own.")
    say(
        f"It gets {size(limits.memory_bytes)} of memory, {limits.cpus:g} CPU, {limits.pids} "
        f"processes, {size(limits.workspace_bytes)} of disk and {limits.timeout:g} seconds."
    )
    shown = ", ".join(mount.target for mount in sandbox.spec.mounts) or "nothing more"
    say(f"Of this machine it sees, read-only: /usr and its kin, and {shown}.")
    for name, held in vars(sandbox.capabilities.limits).items():
        if held.value == "none":
            say(f"This machine lets nobody hold {name}; `ringfence doctor` says why.")


def conclude(result: Result, report: ExportReport) -> int:
    print()
    usage = result.usage
    say(
        f"It ended with exit code {result.exit_code} ({result.exit_reason.value}) after "
        f"{result.duration_s:.1f} s, having used {usage.cpu_s or 0:.1f} s of CPU and "
        f"{size(usage.peak_memory_bytes)} of memory."
    )
    if result.timed_out or result.out_of_memory:
        say("It was ended by a limit, so what follows may be incomplete.")
    elif not result.ok:
        say("It failed, or it got hold of something: see above.")
    say(f"Brought out of its workspace, to {report.target}:")
    for file in report.files:
        print(f"    {file.size:>9,} B  {readable(file.path)}")
    for item in report.skipped:
        print(f"      left out   {readable(item.path)}: {item.reason}")
    if result.ok:
        say(f"Open {report.target}/report.html in a browser.")
    return 0 if result.ok else 1


def size(count: int | None) -> str:
    return f"{(count or 0) // MIB} MiB"


def say(text: str) -> None:
    print(f"* {text}", flush=True)


if __name__ == "__main__":
    sys.exit(anyio.run(main))
