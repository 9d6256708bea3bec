"""Checks of limits of space: of the workspace, its number of files, and every other place."""

from __future__ import annotations

import errno

from ringfence.errors import NoSpaceError
from ringfence.models import Limits

from . import _expect as expect
from ._context import Context
from ._model import FILES, ISOLATED, LIVE, PROGRAMS, Check, check, enforced

_MEBIBYTE = 2**20


async def a_full_workspace_is_an_error_of_the_program(ctx: Context) -> None:
    """The size of the workspace is not limited, or the sandbox is of no use once it is full."""
    sandbox = await ctx.create(Limits(workspace_bytes=8 * _MEBIBYTE))
    script = "head -c 64000000 /dev/zero | cat >big; echo $?; wc -c <big"
    result = await sandbox.exec(ctx.script(script))
    code, size = result.stdout_text.split()
    expect.true(code != "0" and b"No space" in result.stderr, f"stderr is {result.stderr!r}")
    expect.true(2**20 < int(size) <= 8 * _MEBIBYTE, f"{size} bytes were written")
    with expect.raising(NoSpaceError, "writing a file of 1 MiB") as caught:
        await sandbox.write_file("more", b"x" * _MEBIBYTE)
    expect.equal(caught[0].errno, errno.ENOSPC, "its errno")
    await sandbox.exec(ctx.script("rm -f big more"))
    await sandbox.write_file("more", b"x" * _MEBIBYTE)
    await ctx.prints_ok(sandbox)


async def a_file_over_the_workspace_s_size_is_refused(ctx: Context) -> None:
    """Writing from outside goes past the size that holds for programs."""
    sandbox = await ctx.create(Limits(workspace_bytes=8 * _MEBIBYTE))
    with expect.raising(NoSpaceError, "writing a file of 12 MiB"):
        await sandbox.write_file("big", b"x" * 12 * _MEBIBYTE)
    await sandbox.exec(ctx.script("rm -f big"))
    await sandbox.write_file("small", b"x" * _MEBIBYTE)


async def the_number_of_files_is_limited(ctx: Context) -> None:
    """A sandbox uses up the host's inodes, or is of no use once its own are used."""
    sandbox = await ctx.create(Limits(workspace_files=300))
    script = "for i in $(seq 1000); do true >f$i || break; done 2>/dev/null; ls | wc -l"
    count = int((await sandbox.exec(ctx.script(script))).stdout_text.split()[-1])
    expect.true(250 <= count <= 300, f"{count} files were made under a limit of 300")
    with expect.raising(NoSpaceError, "writing one more file"):
        await sandbox.write_file("one-more", b"x")
    await sandbox.exec(ctx.script("rm -f f*"))
    await sandbox.write_file("one-more", b"x")
    await ctx.prints_ok(sandbox)


async def temporary_files_are_limited(ctx: Context) -> None:
    """The workspace has a size, and /tmp has none."""
    sandbox = await ctx.create(Limits(tmp_bytes=4 * _MEBIBYTE))
    for place in ("/tmp", "/dev/shm"):  # noqa: S108
        script = f"head -c 32000000 /dev/zero >{place}/big; wc -c <{place}/big; rm {place}/big"
        result = await sandbox.exec(ctx.script(script))
        size = int(result.stdout_text.split()[-1])
        expect.true(size <= 4 * _MEBIBYTE, f"{size} bytes were written to {place}")


async def no_other_place_can_be_filled(ctx: Context) -> None:
    """There is a writable place without a size besides the workspace and /tmp."""
    script = """
        for d in / /etc /usr /var /var/tmp /run /home /root /opt /srv /mnt /dev /dev/mqueue /sys \
                 /proc /sys/fs/cgroup; do
            if (: >"$d/.probe") 2>/dev/null; then echo "$d"; rm -f "$d/.probe"; fi
        done; true
    """
    await ctx.require_own_namespaces()
    writable = (await ctx.sh_ok(script)).split()
    for place in writable:
        script = 'head -c 40000000 /dev/zero >"$1/.fill"; wc -c <"$1/.fill"; rm -f "$1/.fill"'
        sandbox = await ctx.create(Limits(tmp_bytes=4 * _MEBIBYTE))
        result = await sandbox.exec(ctx.script(script, place))
        size = int(result.stdout_text.split()[-1])
        expect.true(size <= 4 * _MEBIBYTE, f"{size} bytes were written to {place}")


CHECKS: tuple[Check, ...] = (
    check(
        a_full_workspace_is_an_error_of_the_program, PROGRAMS, FILES, enforced("workspace_bytes"),
        hostile=True,
    ),
    check(
        a_file_over_the_workspace_s_size_is_refused, PROGRAMS, FILES, enforced("workspace_bytes")
    ),
    check(
        the_number_of_files_is_limited, PROGRAMS, FILES, enforced("workspace_files"), hostile=True
    ),
    check(temporary_files_are_limited, PROGRAMS, LIVE, enforced("tmp_bytes"), hostile=True),
    check(no_other_place_can_be_filled, PROGRAMS, LIVE, ISOLATED, enforced("tmp_bytes")),
)  # fmt: skip
