"""Checks of names, listings and what is said of a file."""

from __future__ import annotations

import os
import time

from ringfence.errors import PathError
from ringfence.models import Enforcement, FileKind, Limits

from . import _expect as expect
from ._context import Context
from ._heartbeat import Heartbeat
from ._model import FILES, PROGRAMS, Check, check


async def names_are_kept_exactly(ctx: Context) -> None:
    """Names are split at newlines, stripped, or lost when they are not UTF-8."""
    names = [
        b"l\nb", b" lead", b"trail ", b"t\tab", b"bad\xff", b"-n", b"*", b"\\", b"'q'", b"a\\nb",
        "ünï😀".encode(), b"\x01\x7f", b"%s", b"..x", b"...", b"x" * 255, b"a\rb", b"$(id)",
    ]  # fmt: skip
    for name in names:
        await ctx.sandbox.write_file(b"n/" + name, b"<" + name + b">")
        content = await ctx.sandbox.read_file(b"n/" + name)
        expect.equal(content, b"<" + name + b">", f"the content of {name!r}")
        info = await ctx.sandbox.stat(b"n/" + name)
        expect.equal(os.fsencode(info.name), name, "the name that stat tells")
    listed = [os.fsencode(info.name) for info in (await ctx.sandbox.list_files("n")).entries]
    expect.equal(listed, sorted(names), "the listing")
    await ctx.sh_ok("cp -r n m; printf x >\"n/$(printf 'by\\nshell\\377')\"")
    listed = [os.fsencode(info.name) for info in (await ctx.sandbox.list_files("m")).entries]
    expect.equal(listed, sorted(names), "the listing of a copy")
    expect.equal(
        await ctx.sandbox.read_file(b"n/by\nshell\xff"), b"x", "a name that the shell made"
    )
    for name in names:
        await ctx.sandbox.move(b"m/" + name, b"m/x" + name[:200])
        await ctx.sandbox.remove(b"m/x" + name[:200])
    expect.equal((await ctx.sandbox.list_files("m")).total, 0, "what is left after removing all")
    with expect.raising(PathError, "a name of 256 bytes"):
        await ctx.sandbox.write_file("x" * 256, b"")


async def listings_are_sorted_and_say_when_they_are_cut(ctx: Context) -> None:
    """A listing stops at some number without a word, or in the order of the disk."""
    await ctx.sh_ok("mkdir d; cd d; for i in $(seq 155); do : >f$i; done; mkdir z; ln -s f1 a")
    listing = await ctx.sandbox.list_files("d")
    names = [info.name for info in listing.entries]
    expect.equal(names, sorted([*(f"f{i}" for i in range(1, 156)), "z", "a"]), "the names")
    expect.equal((listing.total, listing.truncated), (157, False), "total and truncated")
    for most in (100, 1, 0, 157, 158):
        listing = await ctx.sandbox.list_files("d", max_entries=most)
        cut = [info.name for info in listing.entries]
        expect.equal(cut, names[:most], f"the first {most}")
        expect.equal((listing.total, listing.truncated), (157, most < 157), "total, truncated")
    expect.equal((await ctx.sandbox.list_files()).entries[0].name, "d", "the workspace's first")


async def a_hundred_thousand_files_can_be_listed(ctx: Context) -> None:
    """A large directory fills the memory, cuts the listing, or blocks everybody else."""
    count = 100_000
    limits = Limits()
    if ctx.capabilities.limits.workspace_files is not Enforcement.NONE:
        limits = Limits(workspace_files=count + 1000)
    sandbox = await ctx.create(limits)
    last = 10**6 + count
    script = f"mkdir d; cd d; i={10**6}; while [ $i -lt {last} ]; do i=$((i+1)); : >f${{i#1}}; done"
    made = await sandbox.exec(ctx.script(script), timeout=240)
    expect.true(made.ok, f"making the files failed: {made.stderr_text}")
    async with Heartbeat(0.2, "listing 100,000 files"):
        listing = await sandbox.list_files("d")
        expect.equal((len(listing.entries), listing.total), (10_000, count), "entries and total")
        expect.equal(listing.entries[-1].name, "f010000", "the last entry")
        listing = await sandbox.list_files("d", max_entries=count)
    expect.equal(len({info.name for info in listing.entries}), count, "different names")
    await sandbox.remove("d")


async def stat_describes_what_is_there(ctx: Context) -> None:
    """Sizes, kinds or times are those of something else; a link is followed."""
    await ctx.sh_ok("printf 12345 >f; mkdir d; ln -s f l; ln -s /etc x; mkfifo p; chmod 640 f")
    began = time.time()
    for name, kind in (
        ("f", FileKind.FILE), ("d", FileKind.DIRECTORY), ("l", FileKind.SYMLINK),
        ("x", FileKind.SYMLINK), ("p", FileKind.FIFO), (".", FileKind.DIRECTORY),
    ):  # fmt: skip
        info = await ctx.sandbox.stat(name)
        expect.equal((info.name, info.kind), (name, kind), f"name and kind of {name!r}")
        expect.true(abs(info.mtime - began) < 60, f"the time of {name!r} is {info.mtime}")
    info = await ctx.sandbox.stat("f")
    expect.equal((info.size, info.mode), (5, 0o640), "size and mode")
    listed = {info.name: info for info in (await ctx.sandbox.list_files()).entries}
    expect.equal(listed["f"], info, "the entry of the listing")


CHECKS: tuple[Check, ...] = (
    check(names_are_kept_exactly, FILES, PROGRAMS),
    check(listings_are_sorted_and_say_when_they_are_cut, FILES, PROGRAMS),
    check(a_hundred_thousand_files_can_be_listed, FILES, PROGRAMS, timeout=400),
    check(stat_describes_what_is_there, FILES, PROGRAMS),
)
