"""Checks of other processes: the host's, those that keep the sandbox, and neighbours."""

from __future__ import annotations

import os

import anyio

from ringfence.errors import SandboxLostError
from ringfence.models import Command, ExitReason

from . import _expect as expect
from ._context import Context
from ._model import HOST_KERNEL, ISOLATED, KILL_TREE, LIVE, PROGRAMS, Check, check


async def the_host_s_processes_are_not_there(ctx: Context) -> None:
    """A program sees or signals processes of the host."""
    marker = ctx.marker()
    async with await anyio.open_process(["sleep", marker], stdout=None, stderr=None) as process:
        try:
            pattern = f"[{marker[0]}]{marker[1:]}"
            script = f'cat /proc/[0-9]*/cmdline | tr "\\0" " " | grep -c "{pattern}"; ls /proc'
            result = await ctx.sh(script)
            await ctx.require_own_namespaces()
            await ctx.sh(f"kill -9 {process.pid} {os.getpid()} {os.getppid()}")
            alive = process.returncode is None
        finally:
            process.kill()
    expect.equal(result.stdout_text.splitlines()[0], "0", "processes of the host that are seen")
    numbers = [int(name) for name in result.stdout_text.split()[1:] if name.isdecimal()]
    expect.true(len(numbers) < 20, f"{len(numbers)} processes are seen")
    expect.true(alive, "a process of the host was killed")


async def two_sandboxes_do_not_see_one_another(ctx: Context) -> None:
    """A program sees the processes, files or memory of a neighbour."""
    marker = ctx.marker()
    neighbour = await ctx.create()
    await neighbour.exec(ctx.script(f"echo {marker} >/dev/shm/mark; : >/tmp/mark; : >mark"))
    await neighbour.start(ctx.script(f"sleep {marker}"))
    await ctx.appears(marker, neighbour)
    pattern = f"[{marker[0]}]{marker[1:]}"
    script = (
        f'cat /proc/[0-9]*/cmdline | tr "\\0" " " | grep "{pattern}"; '
        "ls /dev/shm/mark /tmp/mark mark 2>/dev/null; true"
    )
    expect.equal(await ctx.sh_ok(script), "", "what is seen of a neighbour")


async def pid_1_can_t_be_killed_from_inside(ctx: Context) -> None:
    """A program kills or stops what keeps it, and is free of its limits or ends its sandbox."""
    await ctx.require_own_namespaces()
    await ctx.sandbox.write_file("kept", "x")
    await ctx.sh("for s in KILL STOP TERM INT HUP QUIT SEGV USR1 CHLD; do kill -$s 1; done; true")
    await ctx.prints_ok(ctx.sandbox)
    result = await ctx.sh("kill -STOP -1; kill -KILL -1; echo survived", timeout=5)
    ended = (ExitReason.SIGNALED, ExitReason.TIMED_OUT, ExitReason.EXITED)
    expect.true(result.exit_reason in ended, f"killing everything ended with {result}")
    await ctx.prints_ok(ctx.sandbox)
    expect.equal(await ctx.sandbox.read_file("kept"), b"x", "the file after killing all")


async def what_keeps_the_sandbox_can_t_be_looked_into(ctx: Context) -> None:
    """A program reads, traces or starves the process that watches over it."""
    program = """
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
for name in ("environ", "mem", "maps", "auxv", "stack"):
    try:
        with open(f"/proc/1/{name}", "rb") as file:
            file.read(1)
        print("read", name)
    except OSError:
        pass
for name in ("fd", "fdinfo", "map_files"):
    try:
        os.listdir(f"/proc/1/{name}")
        print("listed", name)
    except OSError:
        pass
for name in ("root", "cwd", "exe", "ns/mnt"):
    try:
        os.readlink(f"/proc/1/{name}")
        print("followed", name)
    except OSError:
        pass
try:
    resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))
    print("set a limit")
except OSError:
    pass
if libc.ptrace(16, 1, 0, 0) == 0 or libc.ptrace(0x4206, 1, 0, 0) == 0:
    print("traced")
try:
    fd = os.pidfd_open(1)
    if libc.syscall(438, fd, 0, 0) >= 0:
        print("got a descriptor")
except OSError:
    pass
"""
    await ctx.require_own_namespaces()
    result = await ctx.py(program)
    expect.equal((result.stdout, result.stderr), (b"", b""), "what the program reports")
    await ctx.prints_ok(ctx.sandbox)


async def noise_on_every_descriptor_does_no_harm(ctx: Context) -> None:
    """A program writes forged messages on what it holds, and they are believed."""
    program = """
import glob, os, sys
for path in [*glob.glob("/proc/[0-9]*/fd/*"), *glob.glob("/run/**", recursive=True)]:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, os.urandom(2000) + bytes(2000))
    except OSError:
        pass
for fd in range(20):
    try:
        os.set_blocking(fd, False)
        os.write(fd, os.urandom(2000) + bytes(2000))
    except OSError:
        pass
os._exit(5)
"""
    await ctx.require_own_namespaces()
    async with await ctx.backend.create() as sandbox:
        await sandbox.start(ctx.script("sleep 20"))
        result = await sandbox.exec(ctx.need_python(), ["-I", "-c", program], timeout=10)
        expect.equal((result.exit_code, result.exit_reason), (5, ExitReason.EXITED), "the end")
        await ctx.prints_ok(sandbox)


async def killing_one_s_keeper_sets_nobody_free(ctx: Context) -> None:
    """A program kills its parent, and with it the clock that would end it."""
    marker = ctx.marker()
    sandbox = await ctx.create()
    script = f"(setsid sleep {marker} &) ; kill -KILL $PPID; sleep {marker}"
    try:
        with ctx.promptly("the command"):
            await sandbox.exec(ctx.script(script), timeout=0.7)
    except SandboxLostError:
        pass  # it may be given up as a whole; then nothing of it may be left
    else:
        await ctx.prints_ok(sandbox)
    await ctx.gone(marker, "the command")


async def one_command_can_t_take_another_s_place(ctx: Context) -> None:
    """Commands of one sandbox read each other's input or output from outside of the workspace."""
    async with await ctx.backend.create() as sandbox:
        other = await sandbox.start(Command(["cat"], timeout=20), stdin_open=True)
        await sandbox.exec(ctx.script("for f in /proc/*/fd/0; do : <$f; done 2>/dev/null; true"))
        await other.write_stdin(b"mine")
        await other.close_stdin()
        with ctx.promptly("the other command"):
            chunk = await other.receive()
        expect.equal(chunk and chunk.data, b"mine", "what the other command read")


CHECKS: tuple[Check, ...] = (
    check(the_host_s_processes_are_not_there, ISOLATED),
    check(two_sandboxes_do_not_see_one_another, ISOLATED, LIVE),
    check(pid_1_can_t_be_killed_from_inside, ISOLATED, LIVE, HOST_KERNEL, hostile=True),
    check(what_keeps_the_sandbox_can_t_be_looked_into, ISOLATED, LIVE, HOST_KERNEL),
    check(noise_on_every_descriptor_does_no_harm, ISOLATED, LIVE, HOST_KERNEL, hostile=True),
    check(killing_one_s_keeper_sets_nobody_free, ISOLATED, LIVE, KILL_TREE, hostile=True),
    check(one_command_can_t_take_another_s_place, PROGRAMS, LIVE),
)
