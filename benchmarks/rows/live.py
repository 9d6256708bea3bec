"""Commands in a sandbox that is up, against the same programs bare on the host."""

from __future__ import annotations

import sys
import time

from ringfence.backend import Sandbox
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.models import Mount, SandboxSpec

from ..floors import SPAWN, run_on_host, spawn_on_host
from ..hardening import check_sandbox
from ..machine import real_python
from ..measure import TOTAL, Side, Times, alternate, check
from ..report import Line, compare
from ..settings import Settings

__all__ = ("exec_side", "run")


def exec_side(sandbox: Sandbox, argv: list[str], stdout: bytes = b"") -> Side:
    """Return a side that runs a program in a sandbox and checks what it wrote."""

    async def side() -> Times:
        began = time.perf_counter()
        result = await sandbox.exec(argv[0], argv[1:])
        took = time.perf_counter() - began
        check(result.ok, f"{argv[0]} in a sandbox ended with {result.exit_code}")
        check(result.stdout == stdout, f"{argv[0]} in a sandbox wrote {result.stdout!r}")
        return {TOTAL: took}

    return side


def host_side(argv: list[str], stdout: bytes | None = None) -> Side:
    async def side() -> Times:
        return run_on_host(argv, stdout)

    return side


async def spawn_side() -> Times:
    return spawn_on_host("/bin/true")


async def run(settings: Settings, _not_run: list[str]) -> list[Line]:
    """Measure `/bin/true` and a small Python program."""
    prefix = sys.base_prefix  # the jail shows /usr itself
    mounts = () if prefix == "/usr" or prefix.startswith("/usr/") else (Mount(prefix),)
    true, python = ["/bin/true"], [real_python(), "-c", "print(1)"]
    async with (
        BubblewrapBackend() as backend,
        await backend.create(SandboxSpec(mounts=mounts)) as sandbox,
    ):
        await check_sandbox(sandbox)
        commands = await alternate(
            {
                "ours": exec_side(sandbox, true),
                "subprocess.run": host_side(true),
                "subprocess.run, output caught": host_side(true, b""),
                SPAWN: spawn_side,
            },
            settings.rounds(500, 5),
            warm_up=5,
        )
        programs = await alternate(
            {
                "ours": exec_side(sandbox, python, b"1\n"),
                "subprocess.run": host_side(python, b"1\n"),
            },
            settings.rounds(60),
        )
    caught = commands.pop("subprocess.run, output caught")
    floor = commands.pop(SPAWN)
    what = "exec of /bin/true"
    return [
        compare(
            what, commands, limit=1.0, note="subprocess.run alone gives no pipes, ours catches both"
        ),
        compare(what, {"ours": commands["ours"], "subprocess.run, output caught": caught}),
        compare(what, {"ours": commands["ours"], SPAWN: floor}),
        compare("exec of python -c 'print(1)'", programs),
    ]
