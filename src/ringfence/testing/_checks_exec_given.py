"""Checks of what a program is given: arguments, environment, directory."""

from __future__ import annotations

from ringfence.errors import CommandError, FileMissingError, FileNotDirectoryError, WorkspaceError
from ringfence.models import Command, SandboxSpec

from . import _expect as expect
from ._context import Context
from ._model import FILES, HOST_KERNEL, LIVE, PROGRAMS, Check, check

_PRINT_ARGUMENTS = 'for each; do printf "%s\\0" "$each"; done'


async def arguments_arrive_byte_for_byte(ctx: Context) -> None:
    """Arguments go through a shell: they are split, expanded, unquoted or lost when empty."""
    given = [
        b"a b", b"$HOME", b"`id`", b"$(id)", b"it's", b'"q"', b"\\", b"", b"-n", b"--", b"*",
        "ünï😀".encode(), b"x\ny", b"\t", b"\xff\xfe", b"a;b|c&d>e", b"", b"%s", b"{a}", b"~",
    ]  # fmt: skip
    result = await ctx.run(Command([b"sh", b"-c", _PRINT_ARGUMENTS.encode(), b"sh", *given]))
    expect.equal(result.stdout.split(b"\0")[:-1], given, "what arrived")


async def a_mebibyte_of_arguments_arrives(ctx: Context) -> None:
    """Arguments are sent in one message of a fixed size, or cut."""
    given = [chr(ord("a") + number) * 65_536 for number in range(16)]
    result = await ctx.sh('for each; do echo "${#each}"; done', *given)
    expect.equal(result.stdout, b"65536\n" * 16, "their lengths")
    result = await ctx.sh('printf "%s" "$1" | tail -c 3', given[15])
    expect.equal(result.stdout, b"ppp", "the end of the last one")


async def a_program_and_its_arguments_can_be_given_apart(ctx: Context) -> None:
    """The short form with `args` loses an argument or takes them for a script."""
    backend = ctx.backend
    result = await backend.execute("echo", ["a  b", "$HOME"], timeout=10)
    expect.equal(result.stdout, b"a  b $HOME\n", "stdout")
    expect.equal(result.timeout, 10.0, "the timeout in force")


async def arguments_beyond_the_kernel_s_limit_are_refused(ctx: Context) -> None:
    """An argument that the kernel does not take hangs the call, or kills the sandbox."""
    for argv in (["echo", "x" * 200_000], ["echo", *["x" * 100_000] * 40]):
        with expect.raising(CommandError, "a command with too long arguments"):
            await ctx.run(Command(argv))
    expect.equal((await ctx.run(Command(["echo", "ok"]))).stdout, b"ok\n", "the next command")


async def environment_values_arrive_byte_for_byte(ctx: Context) -> None:
    """Values are cut at a newline, expanded, or have to be UTF-8."""
    env: dict[str, str | bytes] = {
        "V": "a\nb=c", "EMPTY": "", "SPACES": "  x ", "DOLLAR": "$HOME `id`", "BYTES": b"\xff\x80",
        "lower": "1", "LONG": "y" * 100_000,
    }  # fmt: skip
    result = await ctx.run(Command(["env", "-0"], env=env))
    arrived = set(result.stdout.split(b"\0"))
    for name, value in env.items():
        raw = value.encode() if isinstance(value, str) else value
        expect.true(f"{name}=".encode() + raw in arrived, f"{name} did not arrive as it was given")


async def a_command_s_environment_goes_over_the_sandbox_s(ctx: Context) -> None:
    """Variables of the spec are lost, or win over those of the command."""
    sandbox = await ctx.create(env={"ONE": "spec", "TWO": "spec", "HOME": "/spec"})
    result = await sandbox.exec(ctx.script('echo "$ONE $TWO $HOME"', env={"TWO": "command"}))
    expect.equal(result.stdout, b"spec command /spec\n", "stdout")


async def bad_names_are_refused_before_anything_starts(ctx: Context) -> None:
    """A bad name or a NUL is cut off or passed on, and every backend does it differently."""
    for env in ({"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0y"}):
        with expect.raising(CommandError, f"a command with {env}"):
            await ctx.run(Command(["true"], env=env))
        with expect.raising(CommandError, f"a spec with {env}"):
            await ctx.backend.execute("true", spec=SandboxSpec(env=env))
    for argv in ([], [""], ["a\0b"], ["true", "\0"]):
        with expect.raising(CommandError, f"a command with {argv}"):
            await ctx.run(Command(argv))
    with expect.raising(CommandError, "an argv that is one string"):
        await ctx.run(Command("echo hi"))
    with expect.raising(CommandError, "args that are one string"):
        await ctx.backend.execute("echo", "hi")
    with expect.raising(CommandError, "a cwd with NUL"):
        await ctx.run(Command(["true"], cwd="a\0b"))


async def commands_run_in_the_workspace(ctx: Context) -> None:
    """Commands start in some other directory, or relative ones count from elsewhere."""
    sandbox = ctx.sandbox
    await sandbox.make_dir("a/b c")
    for cwd in (None, ".", sandbox.workspace, "/workspace"):
        result = await ctx.run(Command(["pwd"], cwd=cwd))
        expect.equal(result.stdout_text, f"{sandbox.workspace}\n", f"pwd with cwd={cwd!r}")
    for cwd in ("a/b c", f"{sandbox.workspace}/a/b c", "/workspace/a/b c", "./a//b c/"):
        result = await ctx.run(Command(["pwd"], cwd=cwd))
        expect.equal(result.stdout_text, f"{sandbox.workspace}/a/b c\n", f"pwd with cwd={cwd!r}")
    await sandbox.write_file("a/b c/run", "#!/bin/sh\necho ran\n", mode=0o755)
    result = await ctx.run(Command(["./run"], cwd="a/b c"))
    expect.equal(result.stdout, b"ran\n", "a program named relative to its cwd")


async def a_cwd_that_is_none_is_refused(ctx: Context) -> None:
    """A wrong directory is ignored, or looks like a missing program."""
    await ctx.sandbox.write_file("file", "x")
    with expect.raising(FileMissingError, "a missing cwd"):
        await ctx.run(Command(["true"], cwd="no/such"))
    with expect.raising(FileNotDirectoryError, "a cwd that is a file"):
        await ctx.run(Command(["true"], cwd="file"))
    for cwd in ("/", "/tmp", "/etc", "..", "a/../..", "/workspace/../etc", "/workspace2"):  # noqa: S108
        with expect.raising(WorkspaceError, f"cwd {cwd}"):
            await ctx.run(Command(["true"], cwd=cwd))


CHECKS: tuple[Check, ...] = (
    check(arguments_arrive_byte_for_byte, PROGRAMS),
    check(a_mebibyte_of_arguments_arrives, PROGRAMS),
    check(a_program_and_its_arguments_can_be_given_apart, PROGRAMS),
    check(arguments_beyond_the_kernel_s_limit_are_refused, PROGRAMS, HOST_KERNEL),
    check(environment_values_arrive_byte_for_byte, PROGRAMS),
    check(a_command_s_environment_goes_over_the_sandbox_s, PROGRAMS, LIVE),
    check(bad_names_are_refused_before_anything_starts),
    check(commands_run_in_the_workspace, PROGRAMS, FILES),
    check(a_cwd_that_is_none_is_refused, PROGRAMS, FILES),
)
