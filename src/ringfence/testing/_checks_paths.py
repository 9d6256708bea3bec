"""Checks of paths that lead outside, and of files that are no files."""

from __future__ import annotations

import contextlib
import os

import anyio

from ringfence.errors import (
    FileConflictError,
    FileKindError,
    FileMissingError,
    PathError,
    WorkspaceError,
)
from ringfence.models import Command

from . import _expect as expect
from ._context import Context
from ._heartbeat import Heartbeat
from ._model import FILES, PROGRAMS, Check, check

_OUTSIDE = (
    "../x", "..", "a/../../x", "/etc/passwd", "/", "/workspace/../etc/passwd", "/workspace2/x", "",
    "/workspacex", "a\0b", "dir/..", "/proc/self/environ", "./../x", "//etc/passwd",
)  # fmt: skip
_REFUSED = (PathError, FileKindError)


async def paths_that_lead_outside_are_refused(ctx: Context) -> None:
    """A path with '..', another root or a like-named one is resolved outside."""
    sandbox = ctx.sandbox
    await sandbox.make_dir("dir")
    for path in _OUTSIDE:
        await expect.each_raises(
            PathError,
            sandbox.read_file(path), sandbox.write_file(path, "x"), sandbox.list_files(path),
            sandbox.stat(path), sandbox.make_dir(path), sandbox.remove(path),
            sandbox.move(path, "y"), sandbox.move("dir", path),
            where=f" on {path!r}",
        )  # fmt: skip
    with expect.raising(FileMissingError, "a name with an escape of the web"):
        await sandbox.read_file("%2e%2e/x")


async def paths_in_the_workspace_are_taken_in_every_form(ctx: Context) -> None:
    """An absolute path below the workspace is refused, or counts from the root."""
    sandbox = ctx.sandbox
    for path in ("a/f", "./a/./f", "a//f", "/workspace/a/f", f"{sandbox.workspace}/a/f", b"a/f"):
        await sandbox.write_file(path, repr(path))
        expect.equal(await sandbox.read_file("a/f"), repr(path).encode(), f"what {path!r} wrote")
    for path in (".", "/workspace", "/workspace/", sandbox.workspace):
        names = [info.name for info in (await sandbox.list_files(path)).entries]
        expect.equal(names, ["a"], f"the listing of {path!r}")


async def links_lead_nowhere_outside(ctx: Context) -> None:
    """A link in the workspace leads a read, a write or a listing outside."""
    sandbox = ctx.sandbox
    victim = ctx.host_dir()
    with open(os.path.join(victim, "secret"), "w") as file:
        file.write("secret")
    for root in (victim, "/tmp"):  # noqa: S108 - one that is on the host, one that is inside
        await ctx.sh_ok(
            'rm -rf file dir new; ln -s "$1/secret" file; ln -s "$1" dir; ln -s "$1/made" new', root
        )
        await expect.each_raises(
            _REFUSED,
            sandbox.read_file("file"), sandbox.write_file("file", "x"),
            sandbox.read_file("dir/secret"), sandbox.stat("dir/secret"),
            sandbox.write_file("dir/secret", "x"), sandbox.write_file("dir/made", "x"),
            sandbox.write_file("new", "x"), sandbox.write_file("new", "x", append=True),
            sandbox.list_files("dir"), sandbox.make_dir("dir/made"), sandbox.make_dir("new/x"),
            sandbox.remove("dir/secret"), sandbox.move("dir/secret", "x"),
            where=f" through a link to {root}",
        )  # fmt: skip
        inside = await ctx.sh("ls /tmp | grep -x -e made -e secret")
        expect.equal(inside.stdout, b"", "what was made in /tmp")
    expect.equal(os.listdir(victim), ["secret"], "what is in the directory outside")
    for name in ("/etc/passwd", "/proc/self/environ", "/proc/1/root", "/proc/self/cwd/../.."):
        await ctx.sh_ok('rm -f link; ln -s "$1" link', name)
        for path in ("link", "link/x"):
            with expect.raising(WorkspaceError, f"reading {path} to {name}"):
                await sandbox.read_file(path)


async def links_are_removed_and_moved_themselves(ctx: Context) -> None:
    """Removing or moving a link does it to its target; a tree's removal follows links."""
    victim = ctx.host_dir()
    os.mkdir(os.path.join(victim, "in"))
    await ctx.sh_ok(
        'mkdir kept; : >kept/f; mkdir tree; ln -s "$1" tree/out; ln -s ../kept tree/in; '
        "ln -s kept link; ln -s kept moved",
        victim,
    )
    await ctx.sandbox.remove("link")
    await ctx.sandbox.remove("tree")
    await ctx.sandbox.move("moved", "moved2")
    names = [info.name for info in (await ctx.sandbox.list_files()).entries]
    expect.equal(names, ["kept", "moved2"], "what is left")
    expect.equal((await ctx.sandbox.list_files("kept")).total, 1, "the target's entries")
    expect.equal(os.listdir(victim), ["in"], "what is in the directory outside")


async def a_race_of_links_leads_nowhere(ctx: Context) -> None:
    """Between the look and the use, a directory is swapped for a link that leads outside."""
    victim = ctx.host_dir()
    with open(os.path.join(victim, "f"), "w") as file:
        file.write("secret")
    swap = 'while :; do mkdir d; echo own >d/f; rm -r d; ln -s "$1" d; rm d; done 2>/dev/null'
    process = await ctx.sandbox.start(ctx.script(swap, victim, timeout=20))
    with anyio.move_on_after(1.5):
        while True:
            with contextlib.suppress(WorkspaceError):
                content = await ctx.sandbox.read_file("d/f")
                expect.true(content != b"secret", "the file outside was read")
            for name in ("d/made", "d/f"):
                with contextlib.suppress(WorkspaceError):
                    await ctx.sandbox.write_file(name, "x")
            with contextlib.suppress(WorkspaceError):
                await ctx.sandbox.remove("d/f")
    await process.kill()
    await process.wait()
    expect.equal(os.listdir(victim), ["f"], "what is in the directory outside")
    with open(os.path.join(victim, "f")) as file:
        expect.equal(file.read(), "secret", "the file outside")


async def files_that_are_no_files_never_block(ctx: Context) -> None:
    """Opening a FIFO waits for ever, and the event loop with it; /dev/zero never ends."""
    sandbox = ctx.sandbox
    await ctx.sh_ok("mkfifo p; ln -s /dev/zero z; ln -s /dev/tty t; ln -s p l; mkdir d; mkfifo d/p")
    async with Heartbeat(0.2, "a file that is none"):
        for name in ("p", "d/p", "z", "t", "l"):
            with ctx.promptly(f"four calls on {name!r}"):
                await expect.each_raises(
                    _REFUSED,
                    sandbox.read_file(name), sandbox.write_file(name, "x"),
                    sandbox.write_file(name, "x", append=True),
                    sandbox.read_file(name, max_bytes=10),
                    where=f" on {name!r}",
                )  # fmt: skip
        with ctx.promptly("looking at them"):
            expect.equal((await sandbox.list_files()).total, 5, "the number of entries")
            await sandbox.stat("p")
            await sandbox.move("p", "q")
            await sandbox.remove("d")
            await sandbox.remove("q")


async def a_fifo_with_a_partner_is_no_file_either(ctx: Context) -> None:
    """A FIFO that a program holds open is read or written as if it were a file."""
    await ctx.sh_ok("mkfifo p")
    process = await ctx.sandbox.start(ctx.script("exec 3<>p; echo data >&3; sleep 60"))
    await anyio.sleep(0.2)
    with ctx.promptly("both calls"):
        await expect.each_raises(
            FileKindError, ctx.sandbox.read_file("p"), ctx.sandbox.write_file("p", "x")
        )
    await process.kill()


async def sockets_are_no_files(ctx: Context) -> None:
    """A socket in the workspace blocks, or has an error that nobody can tell."""
    code = "import socket; s = socket.socket(socket.AF_UNIX); s.bind('s')"
    made = await ctx.py(code)
    expect.true(made.ok, f"the socket was not made: {made.stderr_text}")
    with ctx.promptly("both calls"):
        await expect.each_raises(
            FileKindError, ctx.sandbox.read_file("s"), ctx.sandbox.write_file("s", "x")
        )
    expect.equal((await ctx.sandbox.stat("s")).kind.value, "socket", "the kind")
    await ctx.sandbox.remove("s")


async def directories_in_the_way_stay(ctx: Context) -> None:
    """A directory with something in it is replaced by a move."""
    await ctx.sh_ok("mkdir a full; : >full/f")
    with expect.raising(FileConflictError, "moving onto a full directory"):
        await ctx.sandbox.move("a", "full")
    expect.equal((await ctx.sandbox.list_files("full")).total, 1, "its entries")


async def a_cwd_through_a_link_or_proc_is_refused(ctx: Context) -> None:
    """A cwd that is a link, or /proc/self/fd/N, puts the program outside of the sandbox."""
    await ctx.sh_ok("mkdir d; ln -s /proc/self/fd/7 fd; ln -s / root; ln -s d inside; ln -s .. up")
    for cwd in ("/proc/self/fd/7", "/proc/self/cwd", "fd", "root", "root/etc", "up", "inside"):
        with expect.raising(WorkspaceError, f"cwd {cwd}"):
            await ctx.run(Command(["pwd"], cwd=cwd))
    expect.equal((await ctx.run(Command(["pwd"], cwd="d"))).exit_code, 0, "a plain directory")


async def a_cwd_that_is_swapped_leads_nowhere(ctx: Context) -> None:
    """Between its check and its use, the cwd is swapped for a link that leads outside."""
    swap = "while :; do mkdir d; rmdir d; ln -s / d; rm d; done 2>/dev/null"
    process = await ctx.sandbox.start(ctx.script(swap, timeout=20))
    places = set()
    with anyio.move_on_after(1.0):
        while True:
            with contextlib.suppress(WorkspaceError):
                result = await ctx.run(Command(["pwd", "-P"], cwd="d"))
                places.add(result.stdout_text.strip())
    await process.kill()
    await process.wait()
    inside = {"", f"{ctx.sandbox.workspace}/d", f"{ctx.sandbox.workspace}/d (deleted)"}
    expect.equal(places - inside, set(), "where programs ran")


CHECKS: tuple[Check, ...] = (
    check(paths_that_lead_outside_are_refused, FILES),
    check(paths_in_the_workspace_are_taken_in_every_form, FILES),
    check(links_lead_nowhere_outside, FILES, PROGRAMS),
    check(links_are_removed_and_moved_themselves, FILES, PROGRAMS),
    check(a_race_of_links_leads_nowhere, FILES, PROGRAMS),
    check(files_that_are_no_files_never_block, FILES, PROGRAMS),
    check(a_fifo_with_a_partner_is_no_file_either, FILES, PROGRAMS),
    check(sockets_are_no_files, FILES, PROGRAMS),
    check(directories_in_the_way_stay, FILES, PROGRAMS),
    check(a_cwd_through_a_link_or_proc_is_refused, FILES, PROGRAMS),
    check(a_cwd_that_is_swapped_leads_nowhere, FILES, PROGRAMS),
)
